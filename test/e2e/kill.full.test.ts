/** A real run, killed for real; `node --conditions=trainyard-source test/chaos/kill.ts` is the long form. */
import { expect, it } from 'vitest';
import { FAULTS } from '../../packages/testing/src/check-history.ts';
import { killRun } from '../chaos/kill.ts';

it('a run that is killed three times ends with the weights of one that was not, and nothing is lost or done twice', async () => {
  const { kills, report, differences } = await killRun({ kills: 3, seed: 1, staleness: 0 });
  expect(differences).toEqual([]);
  expect(FAULTS.flatMap((kind) => report[kind])).toEqual([]);
  expect(report.counts.steps).toBe(6);
  expect(kills).toBe(3);
}, 180_000);
