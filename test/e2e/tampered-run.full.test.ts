/** Lies of every kind in a run that ended: `verify` finds each, or docs/reference/store.md says that it does not look there, and why. */
import { cp } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Verification, verify } from '../../src/audit/verify.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { readText } from '../house/sources.ts';
import { tamperedHome } from './tampered-run.ts';
import { eventsOf, inStore, keepEvents, keepManifest, keepTrajectory, type Lie, liesIn, verdictOn } from './tampering.ts';

let home: Awaited<ReturnType<typeof tamperedHome>>;
let clean: Verification;
let lies: readonly Lie[];

beforeAll(async () => {
  home = await tamperedHome();
  clean = await verify({ run: home.run });
  lies = await liesIn(home.run);
});
afterAll(() => home.remove());

/** What the page says is not checked. */
function isListed(field: string): boolean {
  const [, table = ''] = readText('docs/reference/store.md').split('### What is not checked');
  const rows = table.split('\n').filter((line) => line.startsWith('| `'));
  const patterns = rows.flatMap((row) => [...row.split(' | ')[0]!.matchAll(/`([^`]+)`/g)].map(([, pattern]) => pattern!));
  const bare = field.replace(/^(?:trained|untrained|evaluated) /, '');
  return patterns.some((pattern) => {
    const form = new RegExp(`^${pattern.replaceAll('.', '[.]').replaceAll('*', '.*')}$`);
    return form.test(bare) || form.test(field);
  });
}

it('has every kind of record, and nobody lied in it', () => {
  expect(clean).toMatchObject({ steps: 2, different: 0, unchecked: ['rewards: those whose grading failed'] });
  expect(lies.length).toBeGreaterThan(200);
});

describe('a field that was changed, or a record that was deleted, is found, or listed as not checked:', () => {
  it.each(['event', 'manifest', 'mark', 'trained', 'untrained', 'evaluated', 'column', 'label', 'checkpoint'])(
    '%s',
    { timeout: 1_800_000 },
    async (kind) => {
      const missed: string[] = [];
      for (const lie of lies.filter(({ field }) => field.startsWith(kind) && !isListed(field))) {
        const verdict = await verdictOn(lie, home.run, clean.unchecked, (run) => verify({ run }));
        // A line that is missing, or is of no known type, may have been taken by a kill: that is said.
        const isSaid = verdict[0] === 'said' && (lie.deletes || lie.field.endsWith('.type'));
        if (verdict[0] !== 'found' && !isSaid) missed.push(lie.field);
      }
      expect(missed).toEqual([]);
    },
  );
});

describe('what was planted', () => {
  const storeOf = (run: string) => openSqliteStore(join(run, 'store.sqlite'));

  async function planted(name: string, tell: (run: string, rollouts: readonly Trajectory[]) => void | Promise<void>) {
    const run = join(home.dir, name);
    await cp(home.run, run, { recursive: true });
    const store = await storeOf(run);
    const rollouts = await store.query();
    await store[Symbol.asyncDispose]();
    await tell(run, rollouts);
    return await verify({ run });
  }
  it('a metric that nobody computed', async () => {
    const result = await planted('metric', async (run) =>
      keepManifest(run, 0, (manifest) => ({ ...manifest, metrics: { ...manifest.metrics, reward: 0.99 } })),
    );
    expect(result).toMatchObject({ first: { where: 'step 1', kept: 'reward 0.99' } });
  });

  it('rewards of rollouts that were not trained, which became failed gradings', async () => {
    const grade = { kind: 'failed', code: 'GRADER_FAILED', message: 'broke' } as const;
    const result = await planted('failed-grades', async (run, rollouts) => {
      const store = await storeOf(run);
      const trained = (await store.manifests()).flatMap(({ rolloutIds }) => rolloutIds);
      await store[Symbol.asyncDispose]();
      const others = rollouts.filter(({ purpose, rolloutId }) => purpose === 'train' && !trained.includes(rolloutId));
      const graded = others.filter((one) => one.grade.kind === 'graded');
      expect(graded.length).toBeGreaterThan(0);
      for (const one of graded) keepTrajectory(run, one.rolloutId, { ...one, grade });
    });
    expect(result.different).toBeGreaterThan(0);
  });

  it('a group that was not trained, which is gone', async () => {
    const result = await planted('gone', (run, rollouts) => {
      const failed = rollouts.filter(({ purpose, grade }) => purpose === 'train' && grade.kind !== 'graded');
      expect(failed.length).toBeGreaterThan(0);
      const ids = failed.map(({ rolloutId }) => `'${rolloutId}'`).join();
      const which = `(SELECT seq FROM trajectories WHERE rollout_id IN (${ids}))`;
      inStore(run, (database) =>
        database.exec(`DELETE FROM turns WHERE trajectory IN ${which}; DELETE FROM trajectories WHERE seq IN ${which}`),
      );
    });
    expect(result.different).toBeGreaterThan(0);
  });

  it('an evaluation that never was, with the words of another', async () => {
    const result = await planted('invented', async (run, rollouts) => {
      const one = rollouts.find(({ rolloutId }) => rolloutId === 'e000002-00001')!;
      await using store = await storeOf(run);
      await store.append({ ...one, rolloutId: 'e000001-00009', groupId: 'e000001-00009' });
    });
    expect(result.different).toBeGreaterThan(0);
  });

  it('every score, of which none was kept', async () => {
    const isScore = (event: unknown) => JSON.stringify(event).includes('"eval-end"');
    const result = await planted('no-scores', (run) =>
      keepEvents(
        run,
        eventsOf(run).filter((event) => !isScore(event)),
      ),
    );
    expect(result).toMatchObject({ scores: 0, first: { where: 'evaluation after step 0', kept: 'nothing told' } });
  });
});
