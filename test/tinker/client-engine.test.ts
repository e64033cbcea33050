/**
 * The Tinker engine against a server that plays a script.
 */
import { describe, expect, it, vi } from 'vitest';
import type { SampleRequest } from '../../src/core/policy.ts';
import { TinkerConnection } from '../../src/tinker/client/connection.ts';
import { TinkerEngine } from '../../src/tinker/client/tinker-engine.ts';
import { type Script, ScriptedServer } from '../fixtures/tinker/scripted-server.ts';

const KEY = 'tml-secret-key';

const request: SampleRequest = {
  promptIds: Int32Array.of(1, 2, 3),
  sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 8 },
  stopIds: [9],
  seed: 7,
};

const sampled = { sequences: [{ stop_reason: 'stop', tokens: [4, 5, 9], logprobs: [-0.5, -0.25, -1] }] };

/** An engine whose server gives this result to every sample. */
function answering(result: unknown): Script {
  return ({ verb }) => (verb === 'retrieve_future' ? { json: result } : undefined);
}

async function withEngine<T>(
  script: Script,
  use: (engine: TinkerEngine, server: ScriptedServer) => Promise<T>,
  patienceMs = 400,
): Promise<T> {
  await using server = await ScriptedServer.start(script);
  await using connection = await TinkerConnection.open({ baseURL: server.url, apiKey: KEY, patienceMs });
  const parts = { connection, vocabSize: 10, contextLength: 16, samplingSessionId: 's-0', policyVersion: 3 };
  return await use(new TinkerEngine(parts), server);
}

describe('the Tinker engine', () => {
  it('asks under the session and gives what was sampled, with the version of that session', async () => {
    await withEngine(answering(sampled), async (engine, server) => {
      const result = await engine.sample(request);
      expect(result).toEqual({
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
  });

  it('does not believe two sequences for one', async () => {
    const [one] = sampled.sequences;
    await withEngine(answering({ sequences: [one, one] }), async (engine) => {
      const message = expect.stringMatching(/2 sequences/);
      await expect(engine.sample(request)).rejects.toMatchObject({ code: 'POLICY_GARBLED', message });
    });
  });

  it('asks for no more tokens than the context has room for, and refuses a prompt without room before it asks', async () => {
    await withEngine(
      answering({ sequences: [{ stop_reason: 'length', tokens: [1, 2], logprobs: [-1, -1] }] }),
      async (engine, server) => {
        await engine.sample({ ...request, promptIds: new Int32Array(14).fill(1) });
        expect(server.of('asample')[0]?.json['sampling_params']).toMatchObject({ max_tokens: 2 });
        await expect(engine.sample({ ...request, promptIds: new Int32Array(16).fill(1) })).rejects.toMatchObject({
          code: 'CONTEXT_OVERFLOW',
        });
        expect(server.of('asample')).toHaveLength(1);
      },
    );
  });

  it('numbers the requests of each session, and a result keeps the version it was asked for under', async () => {
    let release = (): void => {};
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    const script: Script = async ({ verb }, count) => {
      if (verb !== 'retrieve_future') return undefined;
      if (count === 1) await held;
      return { json: sampled };
    };
    await withEngine(script, async (engine, server) => {
      const early = engine.sample(request);
      await vi.waitFor(() => expect(server.of('retrieve_future')).toHaveLength(1));
      engine.serve('s-1', 4);
      expect(engine.policyVersion).toBe(4);
      expect((await engine.sample(request)).policyVersion).toBe(4);
      release();
      expect((await early).policyVersion).toBe(3);
      const sources = server.of('asample').map(({ json }) => [json['sampling_session_id'], json['seq_id']]);
      expect(sources).toEqual([
        ['s-0', 1],
        ['s-1', 1],
      ]);
    });
  });

  it('ends at once when cancelled, and tells the server', async () => {
    const script: Script = ({ verb }) => (verb === 'retrieve_future' ? () => undefined : undefined);
    await withEngine(script, async (engine, server) => {
      const controller = new AbortController();
      const result = engine.sample(request, controller.signal);
      const ended = expect(result).rejects.toMatchObject({ code: 'CANCELLED' });
      await vi.waitFor(() => expect(server.of('retrieve_future')).toHaveLength(1));
      controller.abort();
      await ended;
      await vi.waitFor(() => expect(server.of('cancel_future')[0]?.json).toEqual({ request_id: 'f1' }));
    });
  });

  it('keeps what the listener wants of a result', async () => {
    await withEngine(answering(sampled), async (engine) => {
      const heard: number[] = [];
      const result = await engine.sample(request, undefined, (ids) => {
        heard.push(...ids);
        return { keep: 1 };
      });
      expect(heard).toEqual([4, 5, 9]);
      expect(result).toMatchObject({ ids: Int32Array.of(4), logprobs: Float32Array.of(-0.5), stopReason: 'stop' });
    });
  });

  it('folds seeds into 31 bits, equal ones to equal ones', async () => {
    await withEngine(answering(sampled), async (engine, server) => {
      const seeds = [7, -1, 2 ** 40 + 7, Number.MAX_SAFE_INTEGER, 7];
      for (const seed of seeds) await engine.sample({ ...request, seed });
      const sent = server.of('asample').map(({ json }) => (json['sampling_params'] as { seed: number }).seed);
      for (const seed of sent) expect(seed).toBeGreaterThanOrEqual(0);
      for (const seed of sent) expect(seed).toBeLessThan(2 ** 31);
      expect(sent[4]).toBe(sent[0]);
      expect(new Set(sent).size).toBe(4);
    });
  });

  it('has no more requests under way than the server wants', async () => {
    let underWay = 0;
    let most = 0;
    const script: Script = async ({ verb }) => {
      if (verb === 'client/config') return { json: { sample_max_concurrent_requests: 3 } };
      if (verb === 'asample') most = Math.max(most, ++underWay);
      if (verb !== 'retrieve_future') return undefined;
      await new Promise((resolve) => setTimeout(resolve, 5));
      underWay--;
      return { json: sampled };
    };
    await withEngine(script, async (engine) => {
      await Promise.all(Array.from({ length: 20 }, () => engine.sample(request)));
      expect(most).toBe(3);
    });
  });
});
