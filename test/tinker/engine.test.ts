/**
 * The Tinker engine against a server that plays a script.
 */
import { describe, expect, it } from 'vitest';
import type { SampleRequest } from '../../src/core/contracts.ts';
import { TinkerEngine } from '../../src/engine/tinker.ts';
import { TinkerConnection } from '../../src/tinker/connection.ts';
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
});
