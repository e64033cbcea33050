/** The shop example as a newcomer runs it: the agent against a server that says what a test wants, and its grader. */
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import workflow, { grader } from '../../examples/shop/agent.ts';
import { runTool, SYSTEM_PROMPT, TOOLS } from '../../models/shop-domain.ts';
import type { ModelHandle, WorkflowContext } from '../../src/core/contracts.ts';
import type { Message, PromptMessage } from '../../src/core/types.ts';
import { rolloutInput } from '../fixtures/grader/rollout-input.ts';
import { jsonOf, localServer } from '../fixtures/local-server.ts';

interface ModelRequest {
  readonly messages: readonly Message[];
  readonly tools: readonly object[];
}

/** Runs the agent on one question; the server gives these replies one after the other. */
async function play(
  question: string,
  replies: readonly object[],
): Promise<{ output: unknown; requests: readonly ModelRequest[] }> {
  const requests: ModelRequest[] = [];
  await using server = await localServer((_, response, body) => {
    requests.push(jsonOf(body));
    const message = { role: 'assistant', content: null, ...replies[requests.length - 1] };
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ id: 'x', object: 'chat.completion', choices: [{ index: 0, finish_reason: 'stop', message }] }));
  });
  return { output: await workflow.run(context(question, `${server.origin}/v1`)), requests };
}

function context(question: string, baseURL: string): WorkflowContext {
  const prompt: PromptMessage[] = [{ role: 'user', content: question }];
  const model = (): ModelHandle => ({ name: 'policy', baseURL, apiKey: 'key' }) as ModelHandle;
  return { prompt, signal: new AbortController().signal, model } as WorkflowContext;
}

function calling(name: string, given: string): object {
  return { tool_calls: [{ id: 'c', type: 'function', function: { name, arguments: given } }] };
}

const catalog = JSON.parse(readFileSync(new URL('../../examples/shop/catalog.json', import.meta.url), 'utf8')) as Record<
  string,
  { readonly price: number; readonly stock: number }
>;
const [name = '', item = { price: 0, stock: 0 }] = Object.entries(catalog)[0] ?? [];

describe('the shop agent', () => {
  it('runs tools until there is an answer, and returns it', async () => {
    const expression = `3*${item.price}`;
    const { output, requests } = await play(`Total for 3 "${name}"?`, [
      calling('lookup', JSON.stringify({ item: name })),
      calling('calculator', JSON.stringify({ expression })),
      { content: `That is $${3 * item.price}.` },
    ]);
    expect(output).toBe(`That is $${3 * item.price}.`);
    const roles = requests[2]?.messages.map((message) => message.role);
    expect(requests[0]).toMatchObject({ messages: [{ role: 'system', content: SYSTEM_PROMPT }, {}], tools: TOOLS });
    expect(roles?.join()).toBe('system,user,assistant,tool,assistant,tool');
    expect(requests[2]?.messages[3]?.content).toBe(JSON.stringify(item));
    expect(requests[2]?.messages[5]?.content).toBe(`{"result":${3 * item.price}}`);
  });

  it('gives up after four turns', async () => {
    const { requests } = await play(
      '?',
      Array.from({ length: 6 }, () => calling('lookup', '{}')),
    );
    expect(requests).toHaveLength(4);
  });

  it.each([
    ['lookup', JSON.stringify({ item: name })],
    ['lookup', '{"item":"nothing like it"}'],
    ['lookup', '{"item":"toString"}'],
    ['lookup', '{}'],
    ['lookup', 'null'],
    ['lookup', '{"item":'],
    ['calculator', '{"expression":"9*99"}'],
    ['calculator', '{"expression":"2+21"}'],
    ['calculator', '{"expression":"2-21"}'],
    ['calculator', '{"expression":"2/21"}'],
    ['calculator', '{"expression":"12345*2"}'],
    ['calculator', '{"expression":7}'],
    ['weather', '{}'],
  ])('answers %s(%s) as the tools in the pretraining data do', async (toolName, given) => {
    const { requests } = await play('?', [calling(toolName, given), { content: 'ok' }]);
    const items = new Map(Object.entries(catalog).map(([key, value]) => [key, { name: key, ...value }]));
    expect(requests[1]?.messages.at(-1)?.content).toBe(runTool(items, toolName, given));
  });
});

describe('the shop grader', () => {
  const task = { id: 't', prompt: [], answer: 81 };
  const ctx = { signal: new AbortController().signal, model: undefined };
  const grade = (last: Message): unknown =>
    grader.grade(rolloutInput({ task, messages: [{ role: 'user', content: 'Price?' }, last] }), ctx);

  it.each([
    ['It costs $81.', 1],
    ['81', 1],
    ['It costs $18.', 0],
    ['It costs $81 or $82.', 0],
    ['It costs $81.5.', 0],
    ['I do not know.', 0],
    ['', 0],
  ])('gives %j the reward %d', (content, reward) => {
    expect(grade({ role: 'assistant', content })).toBe(reward);
  });

  it('gives nothing for a tool call or for somebody else’s number', () => {
    const call = { id: 'c', type: 'function', function: { name: 'lookup', arguments: '{}' } } as const;
    expect(grade({ role: 'assistant', content: '81', tool_calls: [call] })).toBe(0);
    expect(grade({ role: 'tool', content: '{"price":81}' })).toBe(0);
    expect(grade({ role: 'assistant', content: null })).toBe(0);
  });
});
