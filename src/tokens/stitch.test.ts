import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { endOfTurn, renderer, tokenizer } from '../../test/fixtures/tokens/base.ts';
import { trainedTurn } from '../../test/fixtures/trained-rows.ts';
import type { Sample, Turn } from '../core/types.ts';
import { type StitchOptions, stitch } from './stitch.ts';

const options: StitchOptions = { advantageOf: (turn) => turn.index + 0.5, weight: 0.25, rolloutId: 'r1', groupId: 'g1' };

interface Draft {
  readonly index: number;
  readonly promptIds: readonly number[];
  readonly sampledIds: readonly number[];
  readonly role?: string;
  readonly trainable?: boolean;
  readonly temperature?: number;
}

/** Every sampled token of a rollout gets a log-probability of its own, by which it is found again in the samples. */
const logprobOf = (index: number, position: number) => Math.fround(-(index * 64 + position + 1) / 1024);

function turnOf({ index, promptIds, sampledIds, role = 'main', trainable = true, temperature = 1 }: Draft): Turn {
  return trainedTurn(index, {
    ...{ thread: role, role, trainable, policyVersion: 10 + index },
    promptIds: Int32Array.from(promptIds),
    sampledIds: Int32Array.from(sampledIds),
    logprobs: Float32Array.from(sampledIds, (_, position) => logprobOf(index, position)),
    sampling: { requested: {}, effective: { temperature, topP: 1, topK: 0, maxTokens: 8 }, seed: index },
  });
}

/** A chain of calls that goes on from, goes back to, repeats or ignores what was there before, over an alphabet of three tokens. */
const ids = (minLength: number, maxLength: number) => fc.array(fc.integer({ min: 0, max: 2 }), { minLength, maxLength });
const step = fc.record({
  from: fc.nat(),
  how: fc.constantFrom<'continue' | 'retry' | 'go back' | 'start over'>(
    'continue',
    'continue',
    'continue',
    'retry',
    'go back',
    'start over',
  ),
  added: ids(0, 4),
  sampledIds: ids(0, 4),
  role: fc.constantFrom('main', 'main', 'judge'),
  trainable: fc.constantFrom(true, true, true, false),
  temperature: fc.constantFrom(1, 1, 0.7),
});
const rollout = fc.array(step, { maxLength: 14 }).map((steps) => {
  const turns: Turn[] = [];
  for (const [index, { from, how, added, ...rest }] of steps.entries()) {
    const base = turns[from % Math.max(1, turns.length)];
    const complete = base ? [...base.promptIds, ...base.sampledIds] : [];
    const starts = {
      continue: complete,
      retry: [...(base?.promptIds ?? [])],
      'go back': complete.slice(0, from % 7),
      'start over': [],
    };
    const start = starts[how];
    const prompt = how === 'retry' && base ? start : [...start, ...added];
    turns.push(turnOf({ index, promptIds: prompt.length === 0 ? [0] : prompt, ...rest }));
  }
  return turns;
});

const sum = (values: Iterable<number>) => [...values].reduce((total, value) => total + value, 0);
const trainedTurns = (turns: readonly Turn[]) => turns.filter((turn) => turn.trainable && turn.sampledIds.length > 0);

/** All trained tokens of all samples, by their log-probability. */
function trainedTokens(samples: readonly Sample[]) {
  return samples.flatMap((sample) =>
    [...sample.mask.keys()].filter((at) => sample.mask[at] === 1).map((at) => ({ sample, at, logprob: sample.logprobs[at]! })),
  );
}

describe('stitching any rollout', () => {
  it('trains every sampled token exactly once, after the tokens it was sampled after, as it was sampled, one role a sample', () => {
    fc.assert(
      fc.property(rollout, (turns) => {
        const samples = stitch(turns, options);
        const trained = trainedTokens(samples);
        const roleOf = new Map<Sample, string>();
        const expected = trainedTurns(turns).flatMap((turn) =>
          Array.from(turn.sampledIds, (id, position) => ({ turn, id, position })),
        );
        expect(sum(samples.flatMap((sample) => [...sample.mask]))).toBe(expected.length);
        for (const { turn, id, position } of expected) {
          const [found, ...more] = trained.filter(({ logprob }) => logprob === logprobOf(turn.index, position));
          expect(more).toEqual([]);
          const { sample, at } = found!;
          expect(sample.tokens[at]).toBe(id);
          expect([...sample.tokens.subarray(0, at)]).toEqual([...turn.promptIds, ...turn.sampledIds.subarray(0, position)]);
          expect(sample.versions[at]).toBe(turn.policyVersion);
          expect(sample.advantages[at]).toBe(turn.index + 0.5);
          expect(sample.temperature).toBe(turn.sampling.effective.temperature);
          expect(roleOf.get(sample) ?? turn.role).toBe(turn.role);
          roleOf.set(sample, turn.role);
        }
        expect(samples.length).toBeLessThanOrEqual(trainedTurns(turns).length);
      }),
      { numRuns: 1000 },
    );
  });

  it('has zeros wherever nothing was sampled, and arrays of one length', () => {
    fc.assert(
      fc.property(rollout, (turns) => {
        for (const { tokens, mask, logprobs, advantages, versions, weight, rolloutId, groupId } of stitch(turns, options)) {
          for (const values of [mask, logprobs, advantages, versions]) expect(values).toHaveLength(tokens.length);
          for (const at of [...mask.keys()].filter((at) => mask[at] === 0)) {
            expect([logprobs[at], advantages[at], versions[at]]).toEqual([0, 0, 0]);
          }
          expect({ weight, rolloutId, groupId }).toEqual({ weight: 0.25, rolloutId: 'r1', groupId: 'g1' });
        }
      }),
      { numRuns: 300 },
    );
  });

  it('gives the same samples in the same order, however the turns were ordered', () => {
    const shuffled = rollout.chain((turns) =>
      fc.tuple(fc.constant(turns), fc.shuffledSubarray(turns, { minLength: turns.length })),
    );
    fc.assert(
      fc.property(shuffled, ([turns, others]) => {
        expect(stitch(others, options)).toEqual(stitch(turns, options));
      }),
      { numRuns: 300 },
    );
  });
});

describe('a conversation', () => {
  const first = { index: 0, promptIds: [1, 2], sampledIds: [3, 4] };
  const second = { index: 1, promptIds: [1, 2, 3, 4, 5], sampledIds: [6] };
  /** The tokens of each sample, trained ones marked. */
  const samplesOf = (...drafts: Draft[]) =>
    stitch(drafts.map(turnOf), options).map(({ tokens, mask }) =>
      [...tokens].map((id, i) => (mask[i] ? `${id}!` : id)).join(' '),
    );

  it.each<[string, readonly Draft[], readonly string[]]>([
    ['that goes on is one sample', [first, second], ['1 2 3! 4! 5 6!']],
    [
      'that forks is one sample per branch, its shared turn trained in the first',
      [first, second, { index: 2, promptIds: [1, 2, 3, 4, 7], sampledIds: [8] }],
      ['1 2 3! 4! 5 6!', '1 2 3 4 7 8!'],
    ],
    ['that is retried is one sample per try', [first, { ...first, index: 1, sampledIds: [9] }], ['1 2 3! 4!', '1 2 9!']],
    [
      'goes on where it is longest',
      [
        { index: 0, promptIds: [1], sampledIds: [2] },
        { index: 1, promptIds: [1], sampledIds: [2, 3] },
        { index: 2, promptIds: [1, 2, 3, 4], sampledIds: [5] },
      ],
      ['1 2!', '1 2! 3! 4 5!'],
    ],
    [
      'goes on through a turn that is not trained, which is context',
      [first, { ...second, trainable: false }, { index: 2, promptIds: [1, 2, 3, 4, 5, 6, 7], sampledIds: [8] }],
      ['1 2 3! 4! 5 6 7 8!'],
    ],
  ])('%s', (_, drafts, samples) => {
    expect(samplesOf(...drafts)).toEqual(samples);
  });

  it.each([
    ['one changed token', { ...second, promptIds: [1, 2, 3, 9, 5] }],
    ['another role', { ...second, role: 'judge' }],
    ['another temperature', { ...second, temperature: 0.7 }],
  ])('does not go on after %s', (_, changed) => {
    expect(samplesOf(first, changed)).toHaveLength(2);
  });

  it('with a turn that was cut off does not train the end-of-turn token put after it', () => {
    const promptIds = renderer.open([{ role: 'user', content: 'a' }], []);
    const sampledIds = tokenizer.encodeText('It costs');
    const next = renderer.extend({ promptIds, sampledIds, stopReason: 'length' }, [{ role: 'user', content: 'Go on.' }])!;
    const turns = [
      turnOf({ index: 0, promptIds: [...promptIds], sampledIds: [...sampledIds] }),
      turnOf({ index: 1, promptIds: [...next], sampledIds: [9, 2] }),
    ];
    const [sample, ...more] = stitch(turns, options);
    expect(more).toEqual([]);
    const end = promptIds.length + sampledIds.length;
    expect(sample!.tokens[end]).toBe(endOfTurn);
    expect(sample!.mask[end]).toBe(0);
    expect(sum(sample!.mask)).toBe(sampledIds.length + 2);
  });
});

describe('what cannot be trained as it was sampled is refused', () => {
  const good = turnOf({ index: 3, promptIds: [1], sampledIds: [2, 3] });
  const sampledWith = (changed: Partial<Turn['sampling']['effective']>): Turn => ({
    ...good,
    sampling: { ...good.sampling, effective: { ...good.sampling.effective, ...changed } },
  });
  const refused: [string, Turn, Partial<StitchOptions>][] = [
    ['fewer log-probabilities than ids', { ...good, logprobs: Float32Array.of(-1) }, {}],
    ['a log-probability that is no number', { ...good, logprobs: Float32Array.of(-1, NaN) }, {}],
    ['an infinite log-probability', { ...good, logprobs: Float32Array.of(-Infinity, -1) }, {}],
    ['temperature 0', sampledWith({ temperature: 0 }), {}],
    ['top-p', sampledWith({ topP: 0.9 }), {}],
    ['top-k', sampledWith({ topK: 40 }), {}],
    ['an empty prompt', { ...good, promptIds: new Int32Array() }, {}],
    ['an advantage that is no number', good, { advantageOf: () => NaN }],
    ['an advantage too large to store', good, { advantageOf: () => 1e39 }],
    ['an infinite weight', good, { weight: Infinity }],
  ];

  it.each(refused)('%s', (_, turn, changed) => {
    expect(() => stitch([turn], { ...options, ...changed })).toThrow(expect.objectContaining({ code: 'SAMPLE_REFUSED' }));
  });

  it('but not where nothing of it is trained', () => {
    expect(stitch([{ ...sampledWith({ temperature: 0 }), trainable: false }], options)).toEqual([]);
    expect(
      stitch([{ ...sampledWith({ topK: 1 }), sampledIds: new Int32Array(), logprobs: new Float32Array() }], options),
    ).toEqual([]);
    expect(stitch([], options)).toEqual([]);
  });
});
