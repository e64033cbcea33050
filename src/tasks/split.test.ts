import fc from 'fast-check';
import { expect, it } from 'vitest';
import { refusal } from '../../test/fixtures/refusal.ts';
import type { Task } from '../core/types.ts';
import { seenInTraining, splitTasks } from './tasks.ts';

const tasks = (count: number, from = 0): Task[] =>
  Array.from({ length: count }, (_, i) => ({ id: `t${from + i}`, prompt: [{ role: 'user', content: `question ${from + i}` }] }));
const ids = (some: readonly Task[]) => some.map(({ id }) => id);

it('holds out about the share, keeps every task once and the order of the file', () => {
  const all = tasks(2000);
  const split = splitTasks(all, { share: 0.1, seed: 1 });
  expect(split.heldOut.length).toBeGreaterThan(150);
  expect(split.heldOut.length).toBeLessThan(250);
  const heldOut = new Set(ids(split.heldOut));
  expect(ids(split.tasks)).toEqual(ids(all).filter((id) => !heldOut.has(id)));
  expect(split.tasks.length + split.heldOut.length).toBe(2000);
});

it('moves no task when others are added, and is another one with another seed', () => {
  fc.assert(
    fc.property(fc.integer({ min: 100, max: 200 }), fc.integer({ min: 1, max: 50 }), fc.nat(), (count, more, seed) => {
      const before = splitTasks(tasks(count), { share: 0.4, seed });
      const after = splitTasks([...tasks(more, 1000), ...tasks(count)], { share: 0.4, seed });
      expect(ids(after.heldOut)).toEqual(expect.arrayContaining(ids(before.heldOut)));
      expect(ids(after.tasks)).toEqual(expect.arrayContaining(ids(before.tasks)));
      expect(ids(splitTasks(tasks(count), { share: 0.4, seed: seed + 1 }).heldOut)).not.toEqual(ids(before.heldOut));
    }),
    { numRuns: 30 },
  );
});

it('has tasks that ask the same on the same side, whatever they are called', () => {
  const twice = [...tasks(200), ...tasks(200).map((task) => ({ ...task, id: `copy of ${task.id}` }))];
  const split = splitTasks(twice, { share: 0.5, seed: 3 });
  expect(seenInTraining(split)).toBe(0);
  expect(seenInTraining({ tasks: tasks(10), heldOut: tasks(10, 7) })).toBe(3);
});

it('refuses to leave fewer tasks to train on than there must be', () => {
  const split = (minTasks: number) => splitTasks(tasks(40), { share: 0.5, seed: 1, minTasks });
  const left = split(1).tasks.length;
  expect(split(left).tasks.length).toBe(left);
  expect(() => split(left + 1)).toThrow(`a split of 0.5 leaves ${left} of 40 tasks to train on, expected at least ${left + 1}`);
});

it('refuses to leave one side empty', () => {
  const refused = (words: string) => refusal('DATASET_INVALID', words);
  expect(() => splitTasks(tasks(5), { share: 1e-9, seed: 1 })).toThrow(refused('none of 5 tasks held out'));
  expect(() => splitTasks(tasks(5), { share: 1 - 1e-9, seed: 1 })).toThrow(refused('none of 5 tasks to train on'));
});
