import { describe, expect, it } from 'vitest';
import type { SampleRequest } from '../core/policy.ts';
import { scriptedEngine } from './trajectories.ts';

async function* reply(): AsyncGenerator<readonly number[]> {
  yield [5, 6, 7];
  yield [8, 9, 10];
  yield [11, 2];
}
const engine = () => scriptedEngine({ vocabSize: 100, contextLength: 50, reply });
const request: SampleRequest = {
  promptIds: Int32Array.of(1),
  sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 20 },
  stopIds: [2],
  seed: 1,
};

describe('a scripted engine', () => {
  it('streams its pieces as the script gives them, all of the result’s before it resolves', async () => {
    const pieces: { ids: Int32Array; logprobs: Float32Array }[] = [];
    const result = await engine().sample(request, undefined, (ids, logprobs) => {
      pieces.push({ ids, logprobs });
      return undefined;
    });
    expect(pieces.map(({ ids }) => ids.length)).toEqual([3, 3, 2]);
    expect(pieces.flatMap(({ ids }) => [...ids])).toEqual([...result.ids]);
    expect(pieces.flatMap(({ logprobs }) => [...logprobs])).toEqual([...result.logprobs]);
    expect(await engine().sample(request)).toEqual(result);
  });

  it('ends where the listener has enough', async () => {
    const cut = await engine().sample(request, undefined, (ids) => (ids.includes(9) ? { keep: ids.indexOf(9) + 1 } : undefined));
    expect(cut).toMatchObject({ ids: Int32Array.of(5, 6, 7, 8, 9), stopReason: 'stop' });
    expect(cut.logprobs.length).toBe(5);
  });

  it('streams nothing after a cancellation', async () => {
    const stop = new AbortController();
    let pieces = 0;
    const cancelled = engine().sample(request, stop.signal, () => {
      pieces++;
      stop.abort();
    });
    await expect(cancelled).rejects.toThrow();
    expect(pieces).toBe(1);
  });
});
