/** From rewards to what each token counts, by numbers worked out on paper; and the same on the embedded model, as a gradient. */
import { afterEach, describe, expect, it } from 'vitest';
import { REGULAR, strongWeights } from '../../test/fixtures/nn/models.ts';
import { gradedRollout as rollout, trainedTurn as turn } from '../../test/fixtures/trained-rows.ts';
import { credited, toReward } from '../core/reward.ts';
import { withoutExcluded } from '../core/turns.ts';
import type { Trajectory, Turn } from '../core/types.ts';
import { EmbeddedModel } from '../engines/embedded/embedded-model.ts';
import { ALGORITHMS, type Weighting } from '../settings/settings.ts';
import { hasSignal } from './advantages.ts';
import { makeBatch } from './batch.ts';
import { importanceSampling } from './losses.ts';

const inRows = (rows: readonly Trajectory[]) =>
  Object.fromEntries(makeBatch(rows, 'dr-grpo', 1).samples.map(({ rolloutId, advantages }) => [rolloutId, [...advantages]]));

/**
 * 0 ─ 1 ─ 2      a conversation of three turns,
 *      ╲ 3 ─ 4   another way on from its second one,
 *        ╲ 5     of which the history was compacted once,
 * 6              and a side call.
 */
const TREE = [
  turn(0),
  turn(1, { after: 0 }),
  turn(2, { after: 1 }),
  turn(3, { after: 1 }),
  turn(4, { after: 3 }),
  turn(5, { fork: { cause: 'compaction', from: 3 } } as Partial<Turn>),
  turn(6, { fork: { cause: 'side_call', from: 0 } } as Partial<Turn>),
];

describe('a discount of ½ on a tree', () => {
  it('of one value 8: each branch earns it at its end, and a turn with two ways on gets half of their mean', () => {
    // 2, 4, 5, 6: 8. 3: ½·(8 + 8)/2 = 4. 1: ½·(8 + 4)/2 = 3. 0: ½·3 = 1.5; the side call led nowhere.
    const { byTurn } = credited({ value: 8 }, TREE, { turnDiscount: 0.5, per: 'turn' });
    expect(byTurn).toEqual({ 0: 1.5, 1: 3, 2: 8, 3: 4, 4: 8, 5: 8, 6: 8 });
  });

  it('of steps that earned 1, 2 and −4: 3 earned nothing of its own', () => {
    // 4: −4. 5, 6: 0. 3: ½·(−4 + 0)/2 = −1. 2: 2. 1: ½·(2 − 1)/2 = 0.25. 0: 1 + ½·0.25 = 1.125.
    const { byTurn } = credited({ value: 0, byTurn: { 0: 1, 2: 2, 4: -4 } }, TREE, { turnDiscount: 0.5, per: 'turn' });
    expect(byTurn).toEqual({ 0: 1.125, 1: 0.25, 2: 2, 3: -1, 4: -4, 5: 0, 6: 0 });
  });

  it('does not pass through an answer that nobody got, nor through one of another model', () => {
    const line = [turn(0), turn(1, { after: 0, undelivered: true } as Partial<Turn>), turn(2, { after: 0 })];
    expect(credited({ value: 8 }, line, { turnDiscount: 0.5, per: 'turn' }).byTurn).toEqual({ 0: 4, 2: 8 });
  });
});

describe('rewards by turn', () => {
  const talk = [turn(0), turn(1, { promptIds: Int32Array.of(1, 2, 5, 6, 7, 9) })];
  const rows = [
    rollout('a', { value: 0, byTurn: { 0: 4, 1: 2 } }, talk),
    rollout('b', { value: 0, byTurn: { 0: 0, 1: 2 } }, talk),
  ];

  it('are each less the mean of all: (4 + 2 + 0 + 2)/4 = 2', () => {
    expect(inRows(rows)).toEqual({ a: [0, 0, 2, 2, 2, 0, 0, 0, 0], b: [0, 0, -2, -2, -2, 0, 0, 0, 0] });
  });

  it('without an excluded turn have another mean, and its tokens no weight: (4 + 2 + 2)/3 = 8/3', () => {
    const left = withoutExcluded(rows, [{ rolloutId: 'b', turn: 0 }]);
    const [a, b] = makeBatch(left, 'dr-grpo', 1).samples;
    const [up, down] = [Math.fround(4 / 3), Math.fround(-2 / 3)];
    expect([...a!.advantages]).toEqual([0, 0, up, up, up, 0, down, down, down]);
    expect([...b!.mask]).toEqual([0, 0, 0, 0, 0, 0, 1, 1, 1]);
    expect([...b!.advantages]).toEqual([0, 0, 0, 0, 0, 0, down, down, down]);
  });

  it('teach nothing in a group that is left with one rollout, however its turns differ', () => {
    const left = withoutExcluded(rows, [{ rolloutId: 'b' }]);
    expect(hasSignal(left)).toBe(false);
    for (const algorithm of ALGORITHMS) expect(makeBatch(left, algorithm, 1).samples).toEqual([]);
  });

  it('teach nothing where all rollouts earned the same: with a discount, early turns are no worse than late ones', () => {
    const won = credited({ value: 1 }, [turn(0), turn(1, { after: 0 })], { turnDiscount: 0.5, per: 'turn' });
    expect(won.byTurn).toEqual({ 0: 0.5, 1: 1 });
    const equal = ['a', 'b', 'c'].map((id) => rollout(id, won, talk));
    expect(hasSignal(equal)).toBe(false);
    expect(makeBatch(equal).samples).toEqual([]);
    const lost = credited({ value: 0 }, [turn(0), turn(1, { after: 0 })], { turnDiscount: 0.5, per: 'turn' });
    expect(hasSignal([...equal, rollout('d', lost, talk)])).toBe(true);
  });

  it('teach nothing where every turn earned the same, though one rollout had more of them', () => {
    const uneven = [
      rollout('a', { value: 1, byTurn: { 0: 1 } }, talk.slice(0, 1)),
      rollout('b', { value: 1, byTurn: { 0: 1, 1: 1 } }, talk),
    ];
    expect(hasSignal(uneven)).toBe(false);
    for (const algorithm of ALGORITHMS) expect(makeBatch(uneven, algorithm, 1).samples).toEqual([]);
  });
});

it.each(ALGORITHMS)('a reward of 1e30 is fine, also summed over turns, by %s', (algorithm) => {
  const turns = Array.from({ length: 50 }, (_, i) => turn(i, i === 0 ? {} : { after: i - 1 }));
  const byTurn = Object.fromEntries(turns.map(({ index }) => [index, 1e30]));
  const huge = credited(toReward({ value: 1e30, byTurn }), turns, { turnDiscount: 1, per: 'turn' });
  const { samples } = makeBatch([rollout('a', huge, turns), rollout('b', { value: -1e30 }, turns)], algorithm, 1);
  expect(samples.every(({ advantages }) => advantages.every(Number.isFinite))).toBe(true);
});

describe('on the embedded model', () => {
  let model: EmbeddedModel | undefined;
  afterEach(async () => await model?.close());

  /** Three samples of one rollout against the same tokens once: what the better one gains the worse one loses. */
  async function gradientNorm(weighting: Weighting): Promise<number> {
    model = await EmbeddedModel.create({ config: REGULAR, seed: 3, threads: 1 });
    model.weights().set(strongWeights(REGULAR, 3));
    const better = rollout('a', { value: 1 }, [turn(0), turn(1), turn(2)]);
    const worse = rollout('b', { value: 0 }, [turn(0)]);
    const { samples } = makeBatch([worse, better], 'rloo', undefined, weighting);
    expect(samples).toHaveLength(4);
    // As sampled by these very weights: every ratio is 1.
    const logprobs = await model.forward(samples);
    const onPolicy = samples.map((sample, i) => {
      const values = Float32Array.from(sample.logprobs);
      values.set(logprobs[i]!, values.length - logprobs[i]!.length);
      return { ...sample, logprobs: values };
    });
    await model.forwardBackward(onPolicy, importanceSampling());
    return Math.hypot(...model.gradient());
  }

  it('weighed by rollouts, three samples pull as hard as one: the two rollouts cancel out', async () => {
    const byTokens = await gradientNorm('tokens');
    await model?.close();
    expect(byTokens).toBeGreaterThan(1e-3);
    expect(await gradientNorm('rollouts')).toBeLessThan(1e-5 * byTokens);
  });
});
