/** Trainings under faults, in short; `npm run test:chaos` is the long form. */
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { manifestOf } from '../../src/testing/trajectories.ts';
import { chaos, compare } from './chaos.ts';

it('a run under kills, stops, clock jumps and a full disk ends with everything once and the same weights', async () => {
  const options = { seed: 1, faults: 12, minutes: 2, workers: 0, say: () => {} };
  const open = (run: string) => openSqliteStore(join(run, 'store.sqlite'));
  const { faults, kinds, skipped: _, runs, ...outcome } = await chaos(options, { storeFlags: [], faults: [], open });
  expect(outcome).toEqual({ lost: 0, duplicated: 0, torn: 0, weightsEqual: true, problems: [], seed: 1 });
  expect(faults).toBe(12);
  expect(runs).toBeGreaterThan(0);
  expect(Object.keys(kinds)).toEqual(expect.arrayContaining(['kill the coordinator', 'stop the coordinator', 'clock jump']));
}, 180_000);

it('the comparison finds what is missing, altered, trained twice or too many', () => {
  const result = (ids: readonly string[], ...steps: readonly (readonly string[])[]) => ({
    rollouts: ids.map((id) => [id.slice(0, 1), id] as const),
    manifests: steps.map((step, i) => manifestOf(i + 1, step)),
    weights: '',
  });
  const reference = result(['a', 'b'], ['a'], ['b']);
  const none = new Set<string>();
  expect(compare(reference, reference, none)).toEqual({ lost: [], duplicated: [] });
  expect(compare(reference, result(['a', 'b'], ['a'], ['b']), new Set('c')).lost).toEqual(['c']);
  expect(compare(reference, result(['a', 'b!'], ['a'], ['b']), none).lost).toEqual(['b']);
  expect(compare(reference, result(['a'], ['a'], ['b']), none).lost).toEqual(['b', 'b']);
  expect(compare(reference, result(['a', 'b'], ['a']), none).lost).toEqual(['step 2: b']);
  expect(compare(reference, result(['a', 'b'], ['a'], ['a', 'b']), none).duplicated).toEqual(['a']);
  expect(compare(reference, result(['a', 'b', 'a'], ['a'], ['b']), none).duplicated).toEqual(['a']);
  expect(compare(reference, result(['a', 'b', 'c'], ['a'], ['b']), none).duplicated).toEqual(['c']);
});
