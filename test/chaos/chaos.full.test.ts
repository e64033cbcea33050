/** Trainings under faults, in short; `npm run test:chaos` is the long form. */
import { expect, it } from 'vitest';
import { manifestOf } from '../../packages/testing/src/trajectories.ts';
import { needsPostgres } from '../postgres/server.ts';
import { chaos, FILES } from './chaos.ts';
import { compare } from './outcome.ts';
import { postgresSite } from './postgres-site.ts';

const short = { minutes: 2, say: () => {} };
const CLEAN = { lost: 0, duplicated: 0, torn: 0, weightsEqual: true, problems: [] };

it('a run under kills, stops, clock jumps and a full disk ends with everything once and the same weights', async () => {
  const outcome = await chaos({ ...short, seed: 1, faults: 12 }, [FILES]);
  expect(outcome).toMatchObject({ ...CLEAN, faults: 12 });
  expect(outcome.runs).toBeGreaterThan(0);
  expect(outcome.whileStarting).toBeLessThan(12);
}, 180_000);

it('so does a run in PostgreSQL on workers that are killed, leave and are cut off, as is the server', needsPostgres, async () => {
  await using site = await postgresSite(2);
  expect(await chaos({ ...short, seed: 3, faults: 10 }, [site])).toMatchObject({ ...CLEAN, faults: 10 });
});

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
  expect(compare(reference, result(['a', 'b!'], ['a'], ['b']), none).lost).toEqual(['b: b!']);
  expect(compare(reference, result(['a'], ['a'], ['b']), none).lost).toEqual(['b: missing', 'b']);
  expect(compare(reference, result(['a', 'b'], ['a']), none).lost).toEqual(['step 2: b']);
  expect(compare(reference, result(['a', 'b'], ['a'], ['a', 'b']), none).duplicated).toEqual(['a']);
  expect(compare(reference, result(['a', 'b', 'a'], ['a'], ['b']), none).duplicated).toEqual(['a']);
  expect(compare(reference, result(['a', 'b', 'c'], ['a'], ['b']), none).duplicated).toEqual(['c']);
});
