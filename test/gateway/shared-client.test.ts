/** One client, made when its module is loaded, for all rollouts of a process. */
import { setTimeout as sleep } from 'node:timers/promises';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { runInRollout } from '../../src/core/context.ts';
import type { Session, WorkflowContext } from '../../src/core/contracts.ts';
import { ambientModel, rolloutFetch } from '../../src/index.ts';
import { contextOf } from '../../src/rollout/rollout-context.ts';
import { ask, open, say, specOf, tokenizer } from '../fixtures/gateway/streams.ts';

const client = new OpenAI({ apiKey: 'unused', fetch: rolloutFetch, maxRetries: 0 });
const elsewhere = new OpenAI({ apiKey: 'k', baseURL: 'http://10.0.0.1/v1/proxy/v1/', fetch: rolloutFetch, maxRetries: 0 });
const anthropic = new Anthropic({ apiKey: 'unused', fetch: rolloutFetch, maxRetries: 0 });

const contextFor = (session: Session, rolloutId: string): WorkflowContext =>
  contextOf({
    identity: specOf(rolloutId).identity,
    task: { id: 't1', prompt: [] },
    workflow: {},
    session,
    signal: new AbortController().signal,
    seed: 1,
    now: Date.now,
  }).ctx;

/** The policy repeats what it was asked last, after a while. */
const echoing = () =>
  open({
    reply: async ({ promptIds }, call) => {
      await sleep(call % 7);
      const said = tokenizer.decode(promptIds).match(/.*<\|im_start\|>user\n([^<]*)/s)?.[1] ?? '';
      return say(`${said}<|im_end|>`);
    },
  });

describe('rolloutFetch', () => {
  it('keeps 500 rollouts apart that share one client', async () => {
    const { gateway } = echoing();
    const names = Array.from({ length: 500 }, (_, i) => `rollout-${i}`);
    const sessions = names.map((name) => gateway.open(specOf(name)));
    const said = await Promise.all(
      names.map((name, i) =>
        runInRollout(contextFor(sessions[i]!, name), async () => {
          const messages: OpenAI.ChatCompletionMessageParam[] = [];
          for (const round of [0, 1]) {
            await sleep(i % 3);
            messages.push({ role: 'user', content: `${name} round ${round}` });
            const { choices } = await client.chat.completions.create({ model: 'any', messages });
            messages.push(choices[0]!.message);
          }
          return messages.map(({ content }) => content);
        }),
      ),
    );
    for (const [i, name] of names.entries()) {
      const words = [0, 1].flatMap((round) => [`${name} round ${round}`, `${name} round ${round}`]);
      expect(said[i]).toEqual(words);
      const turns = sessions[i]!.seal();
      expect(turns.map(({ after }) => after)).toEqual([undefined, 0]);
      expect(turns.map(({ response }) => response.content)).toEqual([words[1], words[3]]);
    }
  });

  it('does not care where the client was made to send, in which dialect, or whether it is streamed', async () => {
    const { session } = open();
    const azure = 'https://example.openai.azure.com/openai/deployments/gpt/chat/completions?api-version=1';
    await runInRollout(contextFor(session, 'r1'), async () => {
      await elsewhere.chat.completions.create({ model: 'any', messages: ask });
      await client.responses.create({ model: 'any', input: 'hello' });
      await anthropic.messages.create({ model: 'any', max_tokens: 20, messages: ask });
      for await (const _ of await client.chat.completions.create({ model: 'any', messages: ask, stream: true }));
      const headers = { 'api-key': 'x', 'content-type': 'application/json' };
      const init = { method: 'POST', headers, body: JSON.stringify({ messages: ask }) };
      expect((await rolloutFetch(azure, init)).status).toBe(200);
      expect((await rolloutFetch(new Request(azure, init))).status).toBe(200);
      expect((await rolloutFetch('https://api.openai.com/v1/embeddings', init)).status).toBe(404);
      expect((await client.models.list()).data.map(({ id }) => id)).toEqual(['policy']);
    });
    const chats = ['chat', 'chat', 'chat'];
    expect(session.turns.map(({ request }) => request.dialect)).toEqual(['chat', 'responses', 'messages', ...chats]);
  });

  it('is of no rollout outside of one', async () => {
    const hint = expect.stringMatching('inside the workflow');
    await expect(rolloutFetch('https://api.openai.com/v1/models')).rejects.toMatchObject({ code: 'NO_ROLLOUT', hint });
    await expect(client.models.list()).rejects.toThrow();
  });
});

describe('ambientModel', () => {
  it('is the model of the rollout it is asked for in', async () => {
    const { session } = open();
    await runInRollout(contextFor(session, 'r1'), async () => {
      await sleep(1);
      expect(ambientModel()).toBe(session.model());
      expect(ambientModel('judge')).toBe(session.model('judge'));
    });
    expect(() => ambientModel()).toThrow(expect.objectContaining({ code: 'NO_ROLLOUT' }));
  });
});
