/** The Tinker engine against a server that plays a script. */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, vi } from 'vitest';
import type { SampleRequest } from '../../src/core/policy.ts';
import { TinkerEngine } from '../../src/engines/tinker/client/tinker-engine.ts';
import { failure, KEY, scripted } from '../fixtures/tinker/scripted-server.ts';

const request: SampleRequest = {
  promptIds: Int32Array.of(1, 2, 3),
  sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 8 },
  stopIds: [9],
  seed: 7,
};
const sampled = { sequences: [{ stop_reason: 'stop', tokens: [4, 5, 9], logprobs: [-0.5, -0.25, -1] }] };
const [one] = sampled.sequences;

const it = scripted.extend('result', sampled).extend('engine', ({ connection, server, result }) => {
  server.script = ({ verb }) => (verb === 'retrieve_future' ? { json: result } : undefined);
  return new TinkerEngine({ connection, vocabSize: 10, contextLength: 16, samplingSessionId: 's-0', policyVersion: 3 });
});

describe('the Tinker engine', () => {
  it('asks under the session and gives what was sampled, with the version of that session', async ({ engine, server }) => {
    expect(await engine.sample(request)).toEqual({
      ids: Int32Array.of(4, 5, 9),
      logprobs: Float32Array.of(-0.5, -0.25, -1),
      stopReason: 'stop',
      policyVersion: 3,
    });
    expect(server.of('asample')[0]).toMatchObject({
      headers: { 'x-api-key': KEY },
      json: { sampling_session_id: 's-0', seq_id: 1, num_samples: 1, sampling_params: { max_tokens: 8, top_k: -1, stop: [9] } },
    });
  });

  it('asks for no more tokens than there is room for, and refuses a prompt without room', async ({ engine, server }) => {
    await engine.sample({ ...request, promptIds: new Int32Array(14).fill(1) });
    expect(server.of('asample')[0]?.json['sampling_params']).toMatchObject({ max_tokens: 2 });
    const tooLong = engine.sample({ ...request, promptIds: new Int32Array(16).fill(1) });
    await expect(tooLong).rejects.toMatchObject(failure('CONTEXT_OVERFLOW'));
    expect(server.of('asample')).toHaveLength(1);
  });

  it('that is held samples nothing, and samples again what was in flight, under the weights served next', async ({
    engine,
    server,
  }) => {
    const slow = Promise.withResolvers<void>();
    server.script = async ({ verb }, count) => {
      if (verb !== 'retrieve_future') return undefined;
      if (count === 1) await slow.promise;
      return { json: sampled };
    };
    const early = engine.sample(request);
    await expect.poll(() => server.of('retrieve_future')).toHaveLength(1);
    engine.hold();
    slow.resolve();
    const late = engine.sample({ ...request, seed: 8 });
    const left = engine.sample({ ...request, seed: 9 }, AbortSignal.timeout(100));
    await expect(left).rejects.toMatchObject(failure('CANCELLED'));
    expect(server.of('asample')).toHaveLength(1);
    engine.serve('s-1', 4);
    expect([(await early).policyVersion, (await late).policyVersion]).toEqual([4, 4]);
    const asked = server.of('asample').map(({ json }) => json['sampling_session_id']);
    expect(asked).toEqual(['s-0', 's-1', 's-1']);
  });

  it('numbers the requests of each session, and a result keeps the version it was asked for', async ({ engine, server }) => {
    const held = Promise.withResolvers<void>();
    server.script = async ({ verb }, count) => {
      if (verb !== 'retrieve_future') return undefined;
      if (count === 1) await held.promise;
      return { json: sampled };
    };
    const early = engine.sample(request);
    await expect.poll(() => server.of('retrieve_future')).toHaveLength(1);
    engine.serve('s-1', 4);
    expect(engine.policyVersion).toBe(4);
    expect((await engine.sample(request)).policyVersion).toBe(4);
    held.resolve();
    expect((await early).policyVersion).toBe(3);
    const sources = server.of('asample').map(({ json }) => `${json['sampling_session_id']} ${json['seq_id']}`);
    expect(sources).toEqual(['s-0 1', 's-1 1']);
  });

  it('ends at once when cancelled, and tells the server', async ({ engine, server }) => {
    server.script = ({ verb }) => (verb === 'retrieve_future' ? () => undefined : undefined);
    const controller = new AbortController();
    const ended = expect(engine.sample(request, controller.signal)).rejects.toMatchObject(failure('CANCELLED'));
    await expect.poll(() => server.of('retrieve_future')).toHaveLength(1);
    controller.abort();
    await ended;
    await expect.poll(() => server.of('cancel_future')[0]?.json).toEqual({ request_id: 'f1' });
  });

  it('keeps what the listener wants of a result', async ({ engine }) => {
    const listener = vi.fn(() => ({ keep: 1 }));
    const result = await engine.sample(request, undefined, listener);
    expect(listener).toHaveBeenCalledWith(Int32Array.of(4, 5, 9), expect.anything());
    expect(result).toMatchObject({ ids: Int32Array.of(4), logprobs: Float32Array.of(-0.5), stopReason: 'stop' });
  });

  it('folds seeds into 31 bits, equal ones to equal ones', async ({ engine, server }) => {
    for (const seed of [7, -1, 2 ** 40 + 7, Number.MAX_SAFE_INTEGER, 7]) await engine.sample({ ...request, seed });
    const sent = server.of('asample').map(({ json }) => (json['sampling_params'] as { seed: number }).seed);
    expect(sent.every((seed) => seed >= 0 && seed < 2 ** 31)).toBe(true);
    expect(sent[4]).toBe(sent[0]);
    expect(new Set(sent).size).toBe(4);
  });

  describe('given two sequences', () => {
    it.override('result', { sequences: [one!, one!] });
    it('does not take them for one', async ({ engine }) => {
      await expect(engine.sample(request)).rejects.toMatchObject(failure('POLICY_GARBLED', /2 sequences/));
    });
  });

  describe('of a server that wants three requests at once', () => {
    it.override('config', { sample_max_concurrent_requests: 3 });
    it('has no more under way', async ({ engine, server }) => {
      let [underWay, most] = [0, 0];
      server.script = async ({ verb }) => {
        if (verb === 'asample') most = Math.max(most, ++underWay);
        if (verb !== 'retrieve_future') return undefined;
        await sleep(5);
        underWay--;
        return { json: sampled };
      };
      await Promise.all(Array.from({ length: 20 }, () => engine.sample(request)));
      expect(most).toBe(3);
    });
  });

  it('asks for equal prompts that arrive together at once, if it may; one that is cancelled leaves the others', async ({
    connection,
    server,
  }) => {
    const words = [4, 5, 6].map((token) => ({ stop_reason: 'stop', tokens: [token, 9], logprobs: [-1, -1] }));
    server.script = ({ verb, json }) => {
      const asked = server.of('asample').map((call) => call.json['num_samples'] as number);
      const count = asked[Number(/\d+$/.exec(String(json['request_id']))?.[0] ?? 0)] ?? asked.at(-1)!;
      return verb === 'retrieve_future' ? { json: { sequences: words.slice(0, count) } } : undefined;
    };
    const parts = { connection, vocabSize: 10, contextLength: 16, samplingSessionId: 's-0', policyVersion: 3, gathers: true };
    const engine = new TinkerEngine(parts);
    const leave = new AbortController();
    const all = [
      engine.sample(request),
      engine.sample({ ...request, seed: 8 }, leave.signal),
      engine.sample({ ...request, seed: 9 }),
    ];
    leave.abort();
    await expect(all[1]).rejects.toMatchObject(failure('CANCELLED'));
    const [first, , third] = await Promise.allSettled(all);
    expect([first, third].map((one) => (one?.status === 'fulfilled' ? [...one.value.ids] : one))).toEqual([
      [4, 9],
      [6, 9],
    ]);
    expect(server.of('asample').map(({ json }) => json['num_samples'])).toEqual([3]);
  });
});
