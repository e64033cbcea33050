import type { IncomingMessage, ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { ask, open } from '../../test/fixtures/gateway/streams.ts';
import { completion } from '../../test/fixtures/grader/judge-server.ts';
import { jsonOf, localServer } from '../../test/fixtures/local-server.ts';
import { knowsItself } from '../../test/fixtures/system.ts';
import { Downtime } from '../core/async.ts';
import type { SamplingSettings } from '../core/types.ts';
import { askServer, type Question } from './model-server.ts';

interface Call {
  readonly body: Record<string, unknown>;
  readonly reply: ServerResponse;
  readonly incoming: IncomingMessage;
  /** From 1. */
  readonly count: number;
}

/** A real server that plays its part by hand. */
async function serve(plays: (call: Call) => unknown) {
  const calls: Call[] = [];
  const server = await localServer(async (incoming, reply, bytes) => {
    const call = { body: jsonOf<Call['body']>(bytes), reply, incoming, count: calls.length + 1 };
    calls.push(call);
    await plays(call);
  });
  return { ...server, server: { name: 'house', baseURL: `${server.origin}/v1`, apiKey: 'sk-secret-0123' }, calls };
}

const SOON = { 'retry-after-ms': '5' };
const answers = ({ reply }: Call) => reply.end(completion('yes'));
const refuses = ({ reply }: Call, status: number, body = 'no', headers: object = SOON) =>
  reply.writeHead(status, { ...headers }).end(body);

type Asking = Partial<Question<{ said: string | null }>> & { readonly sampling?: Partial<SamplingSettings> };
const asked = ({ server }: Awaited<ReturnType<typeof serve>>, { sampling, ...options }: Asking = {}) =>
  askServer(server, {
    request: () => ({ messages: ask, ...sampling }),
    read: ({ content }) => ({ said: content }),
    signal: new AbortController().signal,
    backoffMs: 5,
    ...options,
  });

describe('a server that fails for a while', () => {
  it('every second call, with 429, 500 or a reset: each rollout has its answer, and one turn', async () => {
    const faults = [
      (call: Call) => refuses(call, 429),
      (call: Call) => refuses(call, 500),
      (call: Call) => call.incoming.socket.destroy(),
      ({ reply }: Call) => reply.writeHead(200, { 'content-length': 999 }).write('{"cho') && sleep(1).then(() => reply.destroy()),
      ({ reply }: Call) => reply.end('{"choices":[{"mess'),
      ({ reply }: Call) => reply.end('{"choices":[{"finish_reason":"error","message":{"content":""}}]}'),
      ({ reply }: Call) => reply.end('{"choices":[{"message":{"content":null,"tool_calls":[null]}}]}'),
      (call: Call) => refuses(call, 529),
    ];
    await using house = await serve((call) => (call.count % 2 === 0 ? answers(call) : faults[(call.count >> 1) % 8]!(call)));
    const sessions = Array.from({ length: 8 }, () =>
      open({ spec: { roles: { default: { trainable: false, default: house.server } } } }),
    );
    for (const { session } of sessions) {
      expect((await session.model().generate({ messages: ask })).text).toBe('yes');
      expect([session.turns.length, session.unanswered.length]).toEqual([1, 0]);
    }
    expect(house.calls).toHaveLength(16);
  });

  it.each([408, 409, 429, 500, 502, 503, 504, 529])('with %d is asked again', async (status) => {
    await using house = await serve((call) => (call.count < 3 ? refuses(call, status) : answers(call)));
    expect(await asked(house)).toMatchObject({ value: { said: 'yes' }, calls: 3, promptTokens: 100, completionTokens: 20 });
  });

  it.each([
    ['400', (call: Call) => refuses(call, 400)],
    ['404', (call: Call) => refuses(call, 404)],
    ['a quota that is used up', (call: Call) => refuses(call, 429, '{"error":{"code":"insufficient_quota"}}')],
    ['a failure that it says is final', (call: Call) => refuses(call, 502, 'no', { 'x-should-retry': 'false' })],
    ['a wait beyond any sense', (call: Call) => refuses(call, 429, 'no', { 'retry-after': '86400' })],
  ])('but not with %s', async (_, plays) => {
    await using house = await serve(plays);
    const message = expect.stringMatching(/^answered (4..|502): .*(no|quota)|asks for a wait of 86400 s/);
    await expect(asked(house)).rejects.toMatchObject({ details: { tries: 1 }, message });
    expect(house.calls).toHaveLength(1);
  });

  it('and goes on failing is told with the number of tries, by the name of the model, without the key', async () => {
    await using house = await serve((call) => refuses(call, 500, `busy ${call.incoming.headers.authorization}`));
    const { session } = open({ spec: { roles: { default: { trainable: false, default: house.server } } } });
    await expect(session.model().generate({ messages: ask })).rejects.toMatchObject({
      code: 'DEFAULT_MODEL_FAILED',
      message: 'default model house answered 500: busy Bearer [key] (10 tries in 0 s)',
    });
    expect([house.calls.length, session.turns.length]).toEqual([10, 0]);
  });

  it.each(['seconds', 'date'])('is left alone for as long as it says, in %s', async (unit) => {
    const later = () => (unit === 'seconds' ? '0.2' : new Date(Date.now() + 1999).toUTCString());
    await using house = await serve((call) =>
      call.count === 1 ? refuses(call, 503, '', { 'retry-after': later() }) : answers(call),
    );
    const began = performance.now();
    await asked(house);
    expect(performance.now() - began).toBeGreaterThan(unit === 'seconds' ? 195 : 900);
  });

  it('is not waited for once the rollout has ended', async () => {
    await using house = await serve((call) => refuses(call, 429, '', { 'retry-after': '20' }));
    const ended = new AbortController();
    const waiting = asked(house, { signal: ended.signal });
    while (house.calls.length === 0) await sleep(1);
    await sleep(10);
    ended.abort(new Error('over'));
    await expect(waiting).rejects.toThrow('over');
  });

  it('and was never there is given up soon', async () => {
    const house = await serve(answers);
    await house[Symbol.asyncDispose]();
    await expect(asked(house)).rejects.toMatchObject({
      details: { tries: 3 },
      message: expect.stringMatching(/^cannot be reached.*ECONNREFUSED/),
    });
  });
});

describe('a server that is busy', () => {
  /** Serves four calls at once, each for some milliseconds, and refuses the others. */
  async function narrow() {
    const state = { now: 0, most: 0, refused: 0 };
    const house = await serve(async (call) => {
      state.most = Math.max(state.most, ++state.now);
      if (state.now > 4) {
        state.refused++;
        refuses(call, call.count % 2 === 0 ? 429 : 503);
      } else {
        await sleep(10);
        answers(call);
      }
      state.now--;
    });
    return { house, state };
  }

  it('gets fewer calls at once, and none of them fails', async () => {
    const { house, state } = await narrow();
    await using _ = house;
    const waits = new Downtime();
    await Promise.all(Array.from({ length: 64 }, () => asked(house, { waits })));
    expect(state.most).toBeGreaterThan(4);
    state.most = 0;
    state.refused = 0;
    await Promise.all(Array.from({ length: 64 }, () => asked(house)));
    expect(state.most).toBeLessThan(16);
    expect(state.refused).toBeLessThan(64);
    expect(waits.milliseconds).toBeGreaterThan(50);
  });

  it('with so many calls a second serves a hundred at once in its time, each of them', async () => {
    let [tokens, refused] = [2, 0];
    const refill = setInterval(() => (tokens = Math.min(2, tokens + 1)), 15);
    await using house = await serve((call) => {
      if (tokens-- > 0) return answers(call);
      [tokens, refused] = [0, refused + 1];
      return refuses(call, 429, '', { 'retry-after-ms': '15' });
    });
    const all = await Promise.all(Array.from({ length: 100 }, () => asked(house)));
    clearInterval(refill);
    expect(all.every(({ value }) => value.said === 'yes')).toBe(true);
    expect(refused).toBeGreaterThan(10);
    expect(Math.max(...all.map(({ calls }) => calls))).toBeGreaterThan(3);
  });

  it('to all is given up after ten tries', async () => {
    await using house = await serve((call) => refuses(call, 503));
    await expect(asked(house)).rejects.toMatchObject({ details: { tries: 10 }, message: 'answered 503: no' });
  });

  it('keeps the other calls waiting as well, for as long as it says', async () => {
    await using house = await serve((call) =>
      call.count === 1 ? refuses(call, 429, '', { 'retry-after': '1' }) : answers(call),
    );
    const first = asked(house);
    while (house.calls.length === 0) await sleep(1);
    await sleep(20);
    const [began, waits] = [performance.now(), new Downtime()];
    await asked(house, { waits });
    expect(performance.now() - began).toBeGreaterThan(120);
    expect(waits.milliseconds).toBeGreaterThan(120);
    await first;
  });
});

describe('a reply', () => {
  it.skipIf(!knowsItself)('that unpacks to more than can be read is a failure, in little memory', async () => {
    const bomb = gzipSync(Buffer.alloc(128 * 1024 * 1024, ' '));
    await using house = await serve(({ reply }) => reply.writeHead(200, { 'content-encoding': 'gzip' }).end(bomb));
    const before = process.memoryUsage().rss;
    await expect(asked(house)).rejects.toMatchObject({ details: { tries: 1 }, message: 'answered more than 16777216 bytes' });
    expect(process.memoryUsage().rss - before).toBeLessThan(100 * 1024 * 1024);
  });

  it('that says which parameter it does not take gets the question in another form, from then on', async () => {
    await using house = await serve((call) => {
      const { max_tokens: old, temperature } = call.body;
      if (old !== undefined) return refuses(call, 400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'");
      if (temperature !== undefined) return refuses(call, 400, "Unsupported value: 'temperature' does not support 0.5");
      return answers(call);
    });
    const sampling = { maxTokens: 7, temperature: 0.5 };
    for (const calls of [3, 1]) expect(await asked(house, { sampling })).toMatchObject({ calls });
    expect(house.calls.at(-1)!.body).toEqual({ model: 'house', messages: ask, max_completion_tokens: 7 });
  });

  it('that refuses a temperature out of range is told', async () => {
    await using house = await serve((call) => refuses(call, 400, 'temperature: range: 0..1'));
    await expect(asked(house, { sampling: { temperature: 1.5 } })).rejects.toThrow('answered 400: temperature: range: 0..1');
  });
});
