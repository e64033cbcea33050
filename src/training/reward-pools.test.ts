import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { gradedRollout as rollout, trainedTurn } from '../../test/fixtures/trained-rows.ts';
import type { Reward, Trajectory, Turn } from '../core/types.ts';
import { ALGORITHMS, type Algorithm } from '../settings/settings.ts';
import { hasSignal, turnAdvantagesOf } from './advantages.ts';
import { makeBatch } from './batch.ts';

/** Each turn is a conversation of its own, with two sampled tokens. */
const turn = (index: number, role: string, thread = role, trainable = true): Turn =>
  trainedTurn(index, {
    ...{ role, thread, trainable },
    ...{ promptIds: Int32Array.of(index, 1), sampledIds: Int32Array.of(5, 6) },
  });

const game = [turn(0, 'werewolf', 'w1'), turn(1, 'villager', 'v1'), turn(2, 'seer', 's1')];
const played = (id: string, reward: Omit<Reward, 'value'>, value = 0): Trajectory => rollout(id, { value, ...reward }, game);
const advantages = (rows: readonly Trajectory[], algorithm: Algorithm = 'dr-grpo') => {
  const of = turnAdvantagesOf(rows, algorithm);
  return Object.fromEntries(rows.map((row) => [row.rolloutId, row.turns.map((one) => of(row, one))]));
};

describe('the reward of a turn', () => {
  it('is the most particular one: by turn, by thread, by role, and only then the value', () => {
    const all = { byTurn: { 0: 8 }, byThread: { w1: 4, v1: 4 }, byRole: { werewolf: 2, villager: 2, seer: 2 } };
    const none = { byTurn: { 0: 0 }, byThread: { w1: 0, v1: 0 }, byRole: { werewolf: 0, villager: 0, seer: 0 } };
    expect(advantages([played('a', all, 1), played('b', none)])).toEqual({ a: [4, 2, 1], b: [-4, -2, -1] });
    const { seer: _, ...others } = all.byRole;
    const { seer: __, ...nobody } = none.byRole;
    expect(advantages([played('a', { ...all, byRole: others }, 1), played('b', { ...none, byRole: nobody })])).toEqual({
      a: [4, 2, 0.5],
      b: [-4, -2, -0.5],
    });
  });

  it('by role is compared with that role only', () => {
    const rows = [played('a', { byRole: { werewolf: 1, villager: 10 } }), played('b', { byRole: { werewolf: 0, villager: 30 } })];
    expect(advantages(rows)).toEqual({ a: [0.5, -10, undefined], b: [-0.5, 10, undefined] });
  });

  it('by thread is compared with the thread of that name in other rollouts, wherever it stands there', () => {
    const a = rollout('a', { value: 0, byThread: { x: 1, y: 5 } }, [turn(0, 'p', 'x'), turn(1, 'p', 'y')]);
    const b = rollout('b', { value: 0, byThread: { y: 9, x: 3 } }, [turn(0, 'p', 'y'), turn(1, 'p', 'x')]);
    expect(advantages([a, b])).toEqual({ a: [-1, -2], b: [2, 1] });
  });

  it('by turn is compared with all rewards by turn of the group, each trained turn counting once', () => {
    const two = [turn(0, 'p'), turn(1, 'p')];
    const a = rollout('a', { value: 0, byTurn: { 0: 1, 1: 2 } }, two);
    const b = rollout('b', { value: 0, byTurn: { 0: 6 } }, [turn(0, 'p'), turn(1, 'p')]);
    expect(advantages([a, b])).toEqual({ a: [-2, -1], b: [3, undefined] });
    const helper = rollout('b', { value: 0, byTurn: { 0: 6, 1: 100 } }, [turn(0, 'p'), turn(1, 'helper', 'h', false)]);
    expect(advantages([a, helper])).toEqual({ a: [-2, -1], b: [3, undefined] });
  });

  it('counts for nothing in a rollout that was not graded', () => {
    const rows = [played('a', { byRole: { werewolf: 1 } }), played('b', { byRole: { werewolf: 0 } })];
    const failed = { ...played('c', {}), grade: { kind: 'failed', code: 'GRADER_TIMEOUT', message: 'slow' } } as Trajectory;
    expect(advantages([...rows, failed])).toEqual({ ...advantages(rows), c: [undefined, undefined, undefined] });
  });
});

describe('a pool without signal', () => {
  const rows = [
    played('a', { byRole: { werewolf: 1, villager: 7, seer: 3 } }),
    played('b', { byRole: { werewolf: 0, villager: 7 } }),
  ];

  it('gives its turns no advantage, whether its rewards are equal or there is only one', () => {
    expect(advantages(rows)).toEqual({ a: [0.5, undefined, undefined], b: [-0.5, undefined, undefined] });
  });

  it.each(ALGORITHMS)('leaves its turns out of samples and divisors: %s counts as if they were not there', (algorithm) => {
    const [wolf] = game;
    const only = rows.map(({ rolloutId, grade }) => {
      if (grade.kind !== 'graded') throw new Error('graded');
      return rollout(rolloutId, { value: 0, byRole: { werewolf: grade.reward.byRole!.werewolf! } }, [wolf!]);
    });
    expect(makeBatch(rows, algorithm, 10)).toEqual(makeBatch(only, algorithm, 10));
    expect(makeBatch(rows, algorithm, 10).trainedTokens).toBe(4);
  });

  it('leaves a turn in the conversation of those after it, where its tokens are not trained', () => {
    const first = { ...turn(0, 'p'), promptIds: Int32Array.of(1) };
    const second = { ...turn(1, 'p'), promptIds: Int32Array.of(1, 5, 6, 2) };
    const third = { ...turn(2, 'p'), promptIds: Int32Array.of(1, 5, 6, 2, 5, 6, 3) };
    const talk = (id: string, ends: number) => rollout(id, { value: 0, byTurn: { 0: ends, 2: ends } }, [first, second, third]);
    const { samples } = makeBatch([talk('a', 1), talk('b', 0)], 'dr-grpo', 10);
    expect(samples.map(({ mask }) => [...mask])).toEqual([
      [0, 1, 1, 0, 0, 0, 0, 1, 1],
      [0, 1, 1, 0, 0, 0, 0, 1, 1],
    ]);
  });

  it('is no signal for the group, unless another pool that a trained turn asks has one', () => {
    expect(hasSignal(rows)).toBe(true);
    expect(hasSignal([played('a', { byRole: { werewolf: 1 } }), played('b', { byRole: { werewolf: 1 } })])).toBe(false);
    expect(hasSignal([played('a', { byRole: { seer: 1 } }), played('b', { byRole: { seer: 0 } })])).toBe(true);
    // Every turn takes its reward from an equal pool: that the values differ teaches nobody anything.
    const equal = { byRole: { werewolf: 1, villager: 1, seer: 1 } };
    const rewarded = [played('a', equal, 1), played('b', equal, 0)];
    expect(hasSignal(rewarded)).toBe(false);
    expect(makeBatch(rewarded).trainedTokens).toBe(0);
    expect(hasSignal([played('a', {}, 1), played('b', {}, 0)])).toBe(true);
  });

  it('is asked by nobody where the only role it rewards is not trained', () => {
    const untrained = [turn(0, 'werewolf', 'w1', false), turn(1, 'villager', 'v1')];
    const row = (id: string, won: number) => rollout(id, { value: 0, byRole: { werewolf: won } }, untrained);
    expect(hasSignal([row('a', 1), row('b', 0)])).toBe(false);
  });
});

it('a thread that a reward leaves out is not trained and moves nobody', () => {
  const row = (id: string, value: number, untrained?: readonly string[]) =>
    rollout(id, { value, ...(untrained && { untrained }) }, game);
  expect(advantages([row('a', 1, ['v1']), row('b', 0)])).toEqual({ a: [0.5, undefined, 0.5], b: [-0.5, -0.5, -0.5] });
  const byThread = { w1: 5 };
  const left = rollout('c', { value: 0, byThread: { w1: 9 }, untrained: ['w1'] }, game);
  const [a, b] = [played('a', { byThread }), played('b', { byThread: { w1: 1 } })];
  expect(advantages([a, b, left])).toMatchObject(advantages([a, b]));
  const all = ['w1', 'v1', 's1'];
  expect(hasSignal([row('a', 1, all), row('b', 0, all)])).toBe(false);
});

describe.each(ALGORITHMS)('rewards of parts, by %s', (algorithm) => {
  const earned = fc.constantFrom(0, 0.1, 0.2, 0.7, 1, 1e6);
  const byName = (...names: readonly string[]) =>
    fc.record(Object.fromEntries(names.map((name) => [name, earned])), { requiredKeys: [] }) as fc.Arbitrary<
      Record<string, number>
    >;
  const reward = fc.record({
    value: earned,
    byRole: byName('werewolf', 'villager'),
    byThread: byName('s1'),
    byTurn: byName('2'),
  });
  const group = fc.array(reward, { minLength: 1, maxLength: 8 });
  const rowsOf = (rewards: readonly Reward[]) => rewards.map((one, i) => rollout(`r${i}`, one, game));

  it('give the same batch, to the bit, in any order', () => {
    fc.assert(
      fc.property(group, fc.infiniteStream(fc.nat()), (rewards, keys) => {
        const rows = rowsOf(rewards);
        const shuffled = rows.map((row) => ({ row, key: keys.next().value as number })).toSorted((a, b) => a.key - b.key);
        const batch = makeBatch(
          shuffled.map(({ row }) => row),
          algorithm,
          10,
        );
        expect(batch).toEqual(makeBatch(rows, algorithm, 10));
      }),
    );
  });

  it('never let what a werewolf earned move a villager, nor anybody who is in no pool with werewolves', () => {
    fc.assert(
      fc.property(group, fc.array(earned, { minLength: 8, maxLength: 8 }), (rewards, other) => {
        const changed = rewards.map((one, i) =>
          one.byRole.werewolf === undefined ? one : { ...one, byRole: { ...one.byRole, werewolf: other[i]! } },
        );
        const withoutWerewolf = (rows: readonly Trajectory[]) =>
          Object.entries(advantages(rows, algorithm)).map(([id, [, ...rest]]) => [id, rest]);
        expect(withoutWerewolf(rowsOf(changed))).toEqual(withoutWerewolf(rowsOf(rewards)));
      }),
    );
  });

  it('train exactly the turns whose pool has two different rewards', () => {
    fc.assert(
      fc.property(group, (rewards) => {
        const rows = rowsOf(rewards);
        const values = Object.values(advantages(rows, algorithm)).flat();
        const trained = values.filter((one) => one !== undefined).length;
        expect(makeBatch(rows, algorithm, 10).trainedTokens).toBe(trained * 2);
        expect(hasSignal(rows)).toBe(trained > 0);
      }),
    );
  });
});
