import { describe, expect, it } from 'vitest';
import { exclusionsIn, withoutExcluded } from './turns.ts';
import type { Mark, Trajectory, Turn } from './types.ts';

const mark = (rolloutId: string, more: Partial<Mark> = {}): Mark => ({ rolloutId, excluded: true, reason: 'x', at: 0, ...more });
const trajectory = (rolloutId: string, ...turns: readonly number[]): Trajectory =>
  ({ rolloutId, turns: turns.map((index) => ({ index, trainable: true }) as Turn) }) as unknown as Trajectory;

describe('exclusions', () => {
  it('are the latest word on each rollout and each turn, whatever was said of the others', () => {
    const log = [
      mark('b', { turn: 1 }),
      mark('b'),
      mark('a'),
      mark('b', { excluded: false }),
      mark('a', { reason: 'y' }),
      mark('c', { turn: 0 }),
      mark('c', { turn: 0, excluded: false }),
    ];
    expect(exclusionsIn(log)).toEqual([mark('a', { reason: 'y' }), mark('b', { turn: 1 })]);
  });

  it('take rollouts out whole, and turns out of training but not out of their conversation', () => {
    const [first, second, third] = [trajectory('a', 0), trajectory('b', 0, 1), trajectory('c', 0)];
    const left = withoutExcluded([first, second, third], [{ rolloutId: 'a' }, { rolloutId: 'b', turn: 1 }]);
    expect(left.map(({ rolloutId, turns }) => [rolloutId, turns.map(({ trainable }) => trainable)])).toEqual([
      ['b', [true, false]],
      ['c', [true]],
    ]);
    expect(left[1]).toBe(third);
    expect(second.turns[1]).toMatchObject({ trainable: true });
  });

  it('name turns by their index, not by their place', () => {
    const [one] = withoutExcluded([trajectory('a', 3, 5)], [{ rolloutId: 'a', turn: 5 }]);
    expect(one?.turns.map(({ trainable }) => trainable)).toEqual([true, false]);
  });
});
