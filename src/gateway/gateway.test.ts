import { setTimeout as sleep } from 'node:timers/promises';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { scriptedLogprob } from '../../packages/testing/src/trajectories.ts';
import { postTo } from '../../test/fixtures/gateway/messages.ts';
import {
  answerTo,
  LOOKUP,
  open as openWith,
  ask as question,
  renderer,
  say,
  timeless,
  tools,
} from '../../test/fixtures/gateway/streams.ts';
import type { Role, Session, SessionSpec } from '../core/contracts.ts';
import type { Turn } from '../core/types.ts';
import { listen } from './gateway.ts';

const ANSWER = 'It costs $81.<|im_end|>';
const ask = [{ role: 'system' as const, content: 'You are a shop assistant.' }, ...question];

interface Options {
  readonly replies?: readonly string[];
  readonly spec?: Partial<SessionSpec>;
  readonly roles?: Record<string, Role>;
  readonly reply?: (call: number) => Promise<number[]>;
}

function open({ replies, spec, roles = {}, reply }: Options = {}) {
  return openWith({
    contextLength: 4096,
    reply: (_, call) => reply?.(call) ?? say(replies?.[call] ?? ANSWER),
    spec: {
      roles,
      sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 64 },
      limits: { turns: 4, tokens: 1000, deadlineMs: 1000 },
      ...spec,
    },
  });
}

/** Two turns with a tool in between, with the stock client. */
async function converse(session: Session, fetch?: typeof globalThis.fetch): Promise<OpenAI.ChatCompletion> {
  const handle = session.model();
  const client = new OpenAI({ baseURL: handle.baseURL, apiKey: handle.apiKey, ...(fetch ? { fetch } : {}) });
  const first = await client.chat.completions.create({ model: handle.name, messages: ask, tools });
  const call = first.choices[0]!.message.tool_calls![0]!;
  return await client.chat.completions.create({
    model: handle.name,
    messages: [...ask, first.choices[0]!.message, { role: 'tool', tool_call_id: call.id, content: '{"price":81}' }],
    tools,
  });
}

const post = (session: Session, body: unknown) => postTo(session, 'chat/completions', body);

it('a conversation through the gateway gives the client structured tool calls and records the engine’s exact ids, in process and over HTTP alike', async () => {
  const { session } = open({ replies: [LOOKUP, ANSWER] });
  const last = await converse(session, session.model().fetch);
  expect(last.choices[0]).toMatchObject({
    index: 0,
    finish_reason: 'stop',
    message: { role: 'assistant', content: 'It costs $81.' },
  });
  const turns = session.seal();
  const [first, second] = turns as [Turn, Turn];
  expect(first.response.tool_calls?.[0]?.function).toEqual({ name: 'lookup', arguments: '{"item": "Binklex glove"}' });
  expect([...first.sampledIds]).toEqual(say(LOOKUP));
  expect([...first.logprobs]).toEqual(say(LOOKUP).map(scriptedLogprob));
  expect([...second.sampledIds]).toEqual(say(ANSWER));
  // Token-in, token-out: the second prompt is the first turn verbatim plus the new message.
  const soFar = [...first.promptIds, ...first.sampledIds];
  expect([...second.promptIds.subarray(0, soFar.length)]).toEqual(soFar);
  expect([...second.promptIds]).toEqual([...renderer.extend(first, [{ role: 'tool', content: '{"price":81}' }])!]);
  const overHttp = open({ replies: [LOOKUP, ANSWER] });
  await using listener = await listen(overHttp.gateway);
  expect(listener.origin).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/);
  await converse(overHttp.session);
  expect(timeless(overHttp.session.seal())).toEqual(timeless(turns));
});

describe('the sampling rule', () => {
  it('the run’s settings win for trainable roles, both are recorded, and the smaller token limit holds', async () => {
    const { session, engine } = open();
    await post(session, { messages: ask, temperature: 0, top_p: 0.5, max_completion_tokens: 7 });
    const effective = { temperature: 1, topP: 1, topK: 0, maxTokens: 7 };
    expect(engine.requests[0]!.sampling).toEqual(effective);
    expect(session.seal()[0]!.sampling).toMatchObject({ requested: { temperature: 0, topP: 0.5, maxTokens: 7 }, effective });
  });

  it('a call that failed or was cancelled gives its seed back; calls side by side never share one', async () => {
    const { session, engine } = open({
      spec: { limits: { turns: 16, tokens: 1000, deadlineMs: 1000 } },
      reply: async (call) => {
        if (call === 1) throw new Error('the engine stumbled');
        return say(ANSWER);
      },
    });
    const statuses: number[] = [];
    for (let i = 0; i < 3; i++) statuses.push((await post(session, { messages: ask })).status);
    await Promise.all([post(session, { messages: ask }), post(session, { messages: ask })]);
    expect(statuses).toEqual([200, 502, 200]);
    const [first, stumbled, again, ...others] = engine.requests.map(({ seed }) => seed);
    expect(again).toBe(stumbled);
    expect(new Set([first, again, ...others]).size).toBe(4);
    const recorded = session.turns.map(({ sampling }) => sampling.seed);
    expect(new Set(recorded).size).toBe(recorded.length);
  });

  it('seeds depend on rollout, prompt and repetition, never on arrival', async () => {
    const seeds = async (order: readonly string[]) => {
      const { session, engine } = open();
      for (const content of order) await post(session, { messages: [{ role: 'user', content }] });
      return new Map(
        engine.requests.map(({ seed }, i) => [`${order[i]}${order.slice(0, i).filter((o) => o === order[i]).length}`, seed]),
      );
    };
    const one = await seeds(['a', 'b', 'a']);
    const other = await seeds(['a', 'a', 'b']);
    expect(new Set(one.values()).size).toBe(3);
    expect([...other].toSorted()).toEqual([...one].toSorted());
  });
});

describe('odd requests', () => {
  it('harmless defaults of stock clients pass', async () => {
    const { session } = open();
    const defaults = { stream: false, n: 1, stop: null, presence_penalty: 0, tool_choice: 'auto', parallel_tool_calls: true };
    expect((await post(session, { messages: ask, user: 'u', seed: 4, ...defaults })).status).toBe(200);
  });

  it('a role named like something every object has is just a role', async () => {
    const { session } = open();
    await session.model('constructor').generate({ messages: ask });
    expect(session.seal()[0]).toMatchObject({ role: 'constructor', trainable: true });
  });
});

describe('limits', () => {
  it('the call after the last allowed turn is refused, also when calls overlap', async () => {
    const { session } = open();
    const statuses = await Promise.all(Array.from({ length: 6 }, async () => (await post(session, { messages: ask })).status));
    expect(statuses.toSorted()).toEqual([200, 200, 200, 200, 400, 400]);
    expect(session.unanswered.at(-1)?.failure?.limit).toBe('turns');
    expect(session.seal().length).toBe(4);
  });

  it('tokens are reserved for calls in flight, so that overlapping ones cannot exceed the limit together', async () => {
    const { session } = open({
      spec: { limits: { turns: 9, tokens: 10, deadlineMs: 1000 } },
      reply: async () => {
        await sleep(10);
        return Array(64).fill(50);
      },
    });
    const statuses = await Promise.all(
      Array.from({ length: 3 }, async () => (await post(session, { messages: ask, max_tokens: 8 })).status),
    );
    expect(statuses).toEqual([200, 200, 400]);
    expect(session.seal().reduce((sum, { sampledIds }) => sum + sampledIds.length, 0)).toBe(10);
  });

  it('sampled tokens are limited over the whole rollout', async () => {
    const { session } = open({ spec: { limits: { turns: 9, tokens: 5, deadlineMs: 1000 } } });
    await post(session, { messages: ask, max_tokens: 3 });
    await post(session, { messages: ask });
    expect((await post(session, { messages: ask })).status).toBe(400);
    expect(session.unanswered.at(-1)?.failure?.limit).toBe('tokens');
    expect(session.seal().map(({ sampledIds }) => sampledIds.length)).toEqual([3, 2]);
  });
});

describe('a retry', () => {
  it('gets an answer that was sampled but not delivered, as the same turn, in the same seat only', async () => {
    const { gateway, session } = open();
    const send = (role?: string) => answerTo(gateway, session.model(role), JSON.stringify({ messages: ask }));
    const lost = await send();
    lost.undelivered?.();
    await send('judge');
    expect(session.turns.map(({ role }) => role)).toEqual(['default', 'judge']);
    const again = await send();
    expect(again.body).toBe(lost.body);
    expect(session.turns.length).toBe(2);
    await send();
    expect(session.seal().length).toBe(3);
  });
});
