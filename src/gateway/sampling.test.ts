/** What engines say, whichever they are, is checked and copied before it is a turn: each lie below was trained once without a word. */
import { setImmediate } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { scriptedEngine } from '../../packages/testing/src/trajectories.ts';
import { renderer, say, specOf } from '../../test/fixtures/gateway/streams.ts';
import type { Engine, SampleRequest, SampleResult } from '../core/policy.ts';
import type { Turn } from '../core/types.ts';
import { Gateway } from './gateway.ts';

const MOST = 16;

type Lie = (honest: SampleResult, request: SampleRequest) => unknown;

/** Two calls at an engine that lies, one after the other. */
async function turnsOf(lie: Lie): Promise<readonly Turn[]> {
  const { vocabSize } = renderer;
  const honest = scriptedEngine({ vocabSize, contextLength: 1000, reply: () => say('It costs $81.<|im_end|>') });
  const engine: Engine = {
    ...{ vocabSize, contextLength: 1000, policyVersion: 3 },
    sample: async (request) => lie({ ...(await honest.sample(request)), policyVersion: 3 }, request) as SampleResult,
  };
  const gateway = new Gateway({ engine, renderer, modelName: 'policy' });
  const session = gateway.open(specOf('r', { sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: MOST } }));
  for (const content of ['first', 'second']) await session.model().generate({ messages: [{ role: 'user', content }] });
  return session.seal();
}

const withId = (honest: SampleResult, place: number, id: number) => ({ ...honest, ids: [...honest.ids].with(place, id) });

describe('what an engine says it sampled', () => {
  it.each<[string, Lie, RegExp]>([
    ['an id outside the vocabulary', (honest) => withId(honest, 0, 1_000_000), /id 1000000/],
    ['half an id', (honest) => withId(honest, 0, 1.5), /id 1\.5/],
    ['a log-probability too few', (honest) => ({ ...honest, logprobs: honest.logprobs.slice(1) }), /log-probabilities/],
    ['no log-probabilities', (honest) => ({ ...honest, logprobs: undefined }), /no log-probabilities/],
    ['a log-probability of 0.5', (honest) => ({ ...honest, logprobs: honest.logprobs.map(() => 0.5) }), /log-probability 0\.5/],
    ['no number', (honest) => ({ ...honest, logprobs: honest.logprobs.map(() => Number.NaN) }), /log-probability NaN/],
    ['no ids', (honest) => ({ ...honest, ids: [], logprobs: [] }), /no ids/],
    ['nothing at all', () => null, /no ids/],
    ['more than asked for', (honest) => ({ ...honest, ids: Array(17).fill(5), logprobs: Array(17).fill(-1) }), /17 ids.*16/],
    ['a stop without its stop id', (honest) => withId(honest, honest.ids.length - 1, 5), /last id 5/],
    ['ids after a stop id', (honest) => withId(honest, 0, honest.ids.at(-1)!), /after stop id/],
    ['another reason to stop', (honest) => ({ ...honest, stopReason: 'content_filter' }), /"content_filter"/],
    ['a version of tomorrow', (honest) => ({ ...honest, policyVersion: 103 }), /version 103, expected version 3/],
    ['a version of yesterday', (honest) => ({ ...honest, policyVersion: 2 }), /version 2, expected version 3/],
    ['no version', (honest) => ({ ...honest, policyVersion: undefined }), /version undefined/],
  ])('is refused where it is %s', async (_, lie, message) => {
    await expect(turnsOf(lie)).rejects.toMatchObject({ code: 'POLICY_GARBLED', message: expect.stringMatching(message) });
  });

  it('is a stop where the budget ran out at a stop id', async () => {
    const [turn] = await turnsOf((honest) => ({ ...honest, stopReason: 'length' }));
    expect(turn!.stopReason).toBe('stop');
  });

  it('stays as it was when the engine uses its buffers, and those it was given, again', async () => {
    const [ids, logprobs] = [new Int32Array(64), new Float32Array(64)];
    const honest = await turnsOf((result) => result);
    const reused = await turnsOf((result, request) => {
      ids.fill(7).set(result.ids);
      logprobs.fill(-9).set(result.logprobs);
      const length = result.ids.length;
      void setImmediate().then(() => logprobs.fill(-9));
      request.promptIds.fill(3);
      Object.assign(request.sampling, { temperature: 0.5 });
      return { ...result, ids: ids.subarray(0, length), logprobs: logprobs.subarray(0, length) };
    });
    await setImmediate();
    const what = ({ promptIds, sampledIds, sampling }: Turn) => [promptIds, sampledIds, sampling.effective];
    expect(reused.map(what)).toEqual(honest.map(what));
    expect(reused[1]!.logprobs).toEqual(honest[1]!.logprobs);
  });
});
