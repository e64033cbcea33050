import { setTimeout as sleep } from 'node:timers/promises';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { scriptedEngine } from '../../packages/testing/src/trajectories.ts';
import { ANSWER, answerTo, ask, body, open, post, renderer, say, specOf, until } from '../../test/fixtures/gateway/streams.ts';
import type { ModelHandle } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { Gateway, listen } from './gateway.ts';

const whole = JSON.stringify({ messages: ask });
const retry = { headers: { 'x-stainless-retry-count': '1' } };

it.each([
  ['streamed', body],
  ['whole', whole],
])('a retry that itself comes too late does not use up the answer that was missed (%s)', async (_, text) => {
  const { session, gateway } = open();
  const lost = await answerTo(gateway, session.model(), text);
  await until(() => session.turns.length === 1);
  lost.undelivered?.();
  await expect(post(session, text, { signal: AbortSignal.abort(new Error('timed out')) })).rejects.toThrow('timed out');
  expect(await (await post(session, text)).text()).toContain('It costs $81.');
  expect(session.seal().length).toBe(1);
});

it('the second of two identical questions is sampled for its retry when its first attempt timed out, from the seed it would have had undisturbed', async () => {
  let aborted = 0;
  const seedsOf = async (isDisturbed: boolean) => {
    const late = new AbortController();
    const { gateway, session } = open({
      reply: async (_, call, signal) => {
        if (isDisturbed && call === 1) {
          late.abort(new DOMException('waited for too long', 'TimeoutError'));
          await sleep(240_000, undefined, signal ? { signal } : {}).catch(() => aborted++);
        }
        return say(ANSWER);
      },
    });
    await using _ = await listen(gateway);
    const send = async (count: number, signal: AbortSignal | null = null) =>
      (await post(session, whole, { headers: { 'x-stainless-retry-count': `${count}` }, signal }, fetch)).json();
    await send(0);
    if (isDisturbed) await expect(send(0, late.signal)).rejects.toMatchObject({ name: 'TimeoutError' });
    await send(isDisturbed ? 1 : 0);
    return session.seal().map(({ sampling }) => sampling.seed);
  };
  const seeds = await seedsOf(true);
  expect(seeds.length).toBe(2);
  await until(() => aborted === 1);
  expect(seeds).toEqual(await seedsOf(false));
});

describe('an idempotency key', () => {
  const named = (key: string) => ({ headers: { 'idempotency-key': key } });

  it('makes one question of all attempts that carry it, also if the retry overtakes the first', async () => {
    const { session } = open();
    const late = { headers: { ...retry.headers, ...named('a').headers } };
    const replies = await Promise.all([post(session, whole, late), post(session, whole, named('a'))]);
    const texts = await Promise.all(replies.map((reply) => reply.text()));
    expect(texts[0]).toBe(texts[1]);
    expect(session.seal().length).toBe(1);
  });

  it('tells identical questions apart: each retry gets its own answer', async () => {
    const { session } = open();
    const read = async (init: RequestInit) => (await post(session, whole, init)).text();
    const first = await read(named('a'));
    const second = await read(named('b'));
    expect(await read(named('a'))).toBe(first);
    expect(await read(named('b'))).toBe(second);
    expect(first).not.toBe(second);
    expect(session.seal().length).toBe(2);
  });
});

describe('a client made from the model’s options retries by itself', () => {
  const CLIENTS: Readonly<Record<string, (model: ModelHandle) => Promise<unknown>>> = {
    openai: (model) => new OpenAI(model.openai()).chat.completions.create({ model: 'policy', messages: ask }),
    anthropic: (model) => new Anthropic(model.anthropic()).messages.create({ model: 'policy', max_tokens: 99, messages: ask }),
  };
  const clients = Object.entries(CLIENTS);

  it.each(clients)('while the engine is starting, and leaves one turn (%s)', async (_, call) => {
    const engine = scriptedEngine({ vocabSize: renderer.vocabSize, contextLength: 10_000, reply: async () => say(ANSWER) });
    const started = Promise.withResolvers<void>();
    const gateway = new Gateway({ engine, renderer, modelName: 'policy', ready: started.promise });
    const session = gateway.open(specOf('r1'));
    const answered = call(session.model());
    await sleep(50);
    started.resolve();
    await answered;
    expect([session.turns.length, engine.requests.length]).toEqual([1, 1]);
  });

  it.each(
    clients.flatMap(([name, call]) => [
      [name, 'is busy', new TrainyardError('ENGINE_BUSY', 'too many'), call] as const,
      [name, 'failed before the first token', new Error('the GPU fell off the bus'), call] as const,
    ]),
  )('%s: when the engine %s, and leaves one turn', async (_, _how, thrown, call) => {
    const reply = async (_: unknown, count: number) => {
      if (count === 0) throw thrown;
      return say(ANSWER);
    };
    const { session, engine } = open({ reply });
    await call(session.model());
    expect([session.turns.length, engine.requests.length]).toEqual([1, 2]);
    expect(session.turns[0]!.sampling.seed).toBe(engine.requests[0]!.seed);
  });

  it.each(clients)(
    'but not a failure that is final: a default model’s, a policy’s behind an API, a limit (%s)',
    async (_, call) => {
      let calls = 0;
      const fail = () => {
        calls++;
        throw new Error('broken');
      };
      const { session } = open();
      const played = session.model('other', { default: fail, trainable: () => false });
      await expect(call(played)).rejects.toMatchObject({ status: 502 });
      const behindApi = new Gateway({ model: fail, modelName: 'policy' }).open(specOf('r2'));
      await expect(call(behindApi.model())).rejects.toMatchObject({ status: 502 });
      expect(calls).toBe(2);
      const spent = open({ spec: { limits: { turns: 0, tokens: 1e9, deadlineMs: 1000 } } }).session;
      await expect(call(spent.model())).rejects.toMatchObject({ status: 400 });
      expect([session.turns.length, session.unanswered.length, spent.unanswered.length]).toEqual([0, 1, 1]);
    },
  );

  it('and is told by a header what not to send again: what was used up, not what an engine failed at', async () => {
    const headerOf = async ({ session }: ReturnType<typeof open>) => (await post(session, whole)).headers.get('x-should-retry');
    const broken = () => {
      throw new Error('broken');
    };
    expect(await headerOf(open({ reply: broken }))).toBeNull();
    expect(await headerOf(open({ contextLength: 3 }))).toBe('false');
    expect(await headerOf(open({ spec: { limits: { turns: 0, tokens: 1e9, deadlineMs: 1000 } } }))).toBe('false');
  });
});

it.each([
  ['whole', whole],
  ['streamed', body],
])('what an engine throws that is no error of ours is its failure, for the client as for the rollout (%s)', async (_, text) => {
  const reply = () => {
    throw new Error('the GPU fell off the bus');
  };
  const { session } = open({ reply });
  const response = await post(session, text);
  expect([response.status, await response.json()]).toMatchObject([502, { error: { code: 'engine_failed' } }]);
  const failure = { code: 'ENGINE_FAILED', message: 'the GPU fell off the bus' };
  expect([session.unanswered, session.seal()]).toMatchObject([[{ failure }], []]);
});
