/** What an agent asks for in vain, told by a run and by a server, each name once. */
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { ModelHandle } from '../../src/core/contracts.ts';
import { defineWorkflow } from '../../src/core/define.ts';
import type { RunEvent } from '../../src/core/events.ts';
import { serve } from '../../src/serve/serve.ts';
import { SERVE_DEFAULTS } from '../../src/settings/server-defaults.ts';
import { train } from '../../src/training/train.ts';
import { temporaryFolder } from '../fixtures/folder.ts';

const functionTool = { type: 'function', name: 'f', parameters: { type: 'object' } };
const RESPONSES = {
  input: 'hi',
  max_output_tokens: 2,
  tools: [functionTool, { type: 'web_search' }, { type: 'custom', name: 'apply_patch' }],
  parallel_tool_calls: false,
  reasoning: { effort: 'low' },
  prompt_cache_key: 'k',
};
const MESSAGES = {
  messages: [{ role: 'user', content: 'hi' }],
  max_tokens: 2,
  tools: [{ type: 'bash_20250124', name: 'bash' }],
  thinking: { type: 'adaptive' },
};

type Door = Pick<ModelHandle, 'baseURL' | 'apiKey'> & { readonly fetch?: ModelHandle['fetch'] };

async function post({ baseURL, apiKey, fetch = globalThis.fetch }: Door, path: string, body: object): Promise<void> {
  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  const response = await fetch(`${baseURL}/${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
  expect(response.status).toBe(200);
  await response.text();
}

async function askThrice(door: Door): Promise<void> {
  await post(door, 'responses', RESPONSES);
  // Elsewhere in the list, it is the same tool.
  await post(door, 'responses', { ...RESPONSES, tools: RESPONSES.tools.toReversed() });
  await post(door, 'messages', MESSAGES);
}

const expected = (rollout: string) => {
  const told = (names: string) => [
    'WITHOUT_EFFECT',
    `the policy is not shown, or not held to, what its agent asks for: ${names} (rollout ${rollout})`,
  ];
  return [told('parallel_tool_calls:false, the tool web_search, the tool custom:apply_patch'), told('the tool bash')];
};

const newRun = async (): Promise<string> => join(temporaryFolder(), 'run');

describe('tools that the policy never sees, and calls that it cannot be held to make one at a time', () => {
  it('are told once by a run; parameters that change nothing for the agent are not', async () => {
    let reward = 0;
    const workflow = defineWorkflow(async (ctx) => {
      await askThrice(ctx.model());
      return { reward: reward++ % 2 };
    });
    const events: RunEvent[] = [];
    const tasks = ['a', 'b', 'c', 'd'].map((prompt) => ({ prompt }));
    const settings = { steps: 1, group: 2, groupsPerStep: 1, threads: 1, concurrency: 1, run: await newRun() };
    await train({ entry: { workflow }, tasks, ...settings }, (event) => events.push(event));
    const told = events.filter((event) => event.type === 'warning' && event.code === 'WITHOUT_EFFECT');
    const names = ['parallel_tool_calls:false, the tool web_search, the tool custom:apply_patch, the tool bash'];
    expect(told).toMatchObject(names.map((text) => ({ message: expect.stringContaining(`: ${text} (rollout g`) })));
  });

  it('are told once by a server', async () => {
    const told: (readonly [string, string])[] = [];
    const none = { model: undefined, token: undefined, temperature: undefined, entry: undefined, tasks: undefined };
    const waits = { maxGroups: undefined, groupTimeout: undefined };
    const settings = { ...SERVE_DEFAULTS, ...none, ...waits, threads: 1, run: await newRun() };
    const warn = (code: string, message: string): void => void told.push([code, message]);
    await using served = await serve(settings, { warn, onTurn: () => {}, onFailure: () => {} });
    await askThrice(served);
    await askThrice(served);
    expect(told).toEqual(expected('local'));
  });
});
