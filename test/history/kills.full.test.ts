/** The history checker on runs whose processes die: what a kill leaves is no fault, and a fault is found among it all the same. */
import { appendFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it, onTestFinished } from 'vitest';
import { checkHistory, FAULTS, type Fault } from '../../packages/testing/src/check-history.ts';
import { historyFile, overlaid, recordHistory } from '../../packages/testing/src/record-history.ts';
import { manifestOf, randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import type { BatchManifest, Trajectory } from '../../src/core/types.ts';
import { playRun } from '../fixtures/history-run.ts';
import { memoryStore } from '../fixtures/store/memory-store.ts';

/** Where a process dies: at its n-th line of history, of which it still writes a share; a store write may be done before that. */
interface Kill {
  readonly line: number;
  readonly share: number;
}

interface Records {
  readonly history: string;
  readonly trajectories: readonly Trajectory[];
  readonly manifests: readonly BatchManifest[];
}

/** Plays the run to its end, killed and resumed each time. A killed process does nothing any more: its calls never return. */
async function runWithKills(kills: readonly Kill[], delays: () => number): Promise<Records> {
  const store = memoryStore();
  let history = '';
  for (const kill of [...kills, { line: Infinity, share: 1 }]) {
    const { promise: died, resolve: die } = Promise.withResolvers<void>();
    let dead = false;
    let line = 0;
    if (history !== '' && !history.endsWith('\n')) history += '\n';
    const sink = (text: string): void => {
      if (dead) throw new Error('written by a dead process');
      if (++line < kill.line) history += text;
      else {
        history += text.slice(0, Math.floor(text.length * kill.share));
        dead = true;
        die();
        throw new Error('killed');
      }
    };
    const mortal = overlaid(store, {
      append: async (trajectory) => (dead ? await new Promise<never>(() => {}) : await store.append(trajectory)),
      commit: async (manifest) => (dead ? await new Promise<never>(() => {}) : await store.commit(manifest)),
    });
    const played = playRun({ store: mortal, sink, delay: delays }).catch((thrown: unknown) => {
      if (!dead) throw thrown;
    });
    await Promise.race([died, played]);
  }
  return { history, trajectories: await store.query(), manifests: await store.manifests() };
}

/** One thing gone wrong at the `at`-th record, and the kind it must be reported as. */
const DAMAGES: readonly (readonly [Fault, (records: Records, at: number) => Partial<Records>])[] = [
  ['lost', ({ trajectories }, at) => ({ trajectories: trajectories.toSpliced(at % trajectories.length, 1) })],
  ['lost', ({ manifests }) => ({ manifests: manifests.slice(0, -1) })],
  ['altered', ({ trajectories }, at) => ({ trajectories: changed(trajectories, at, { endedAt: 77 }) })],
  ['altered', ({ manifests }, at) => ({ manifests: changed(manifests, at, { metrics: { loss: 1 } }) })],
  ['duplicated', ({ trajectories }, at) => ({ trajectories: [...trajectories, trajectories[at % trajectories.length]!] })],
  ['duplicated', ({ manifests }, at) => ({ manifests: [...manifests, { ...manifests[at % manifests.length]!, step: 9 }] })],
  ['unexpected', ({ trajectories }, at) => ({ trajectories: [...trajectories, randomTrajectory(at)] })],
  ['unexpected', ({ manifests }) => ({ manifests: [...manifests, manifestOf(4, [])] })],
  // The turns of the next rollout in place of its own.
  ['foreign', ({ trajectories: all }, at) => ({ trajectories: changed(all, at, { turns: all[(at + 1) % all.length]!.turns }) })],
  ['foreign', ({ manifests }, at) => ({ manifests: changed(manifests, at, { rolloutIds: ['eval1-0'] }) })],
  [
    'mixedVersion',
    ({ trajectories }, at) => ({ trajectories: changed(trajectories, at, { turns: otherVersions(trajectories, at) }) }),
  ],
  ['stale', ({ manifests }) => ({ manifests: changed(manifests, 2, { rolloutIds: ['g1-0'] }) })],
];

function changed<T extends object>(list: readonly T[], at: number, change: Partial<T>): readonly T[] {
  return list.with(at % list.length, { ...list[at % list.length]!, ...change });
}

function otherVersions(trajectories: readonly Trajectory[], at: number) {
  return trajectories[at % trajectories.length]!.turns.map((turn) => ({ ...turn, policyVersion: turn.policyVersion + 1 }));
}

const kills = fc.array(fc.record({ line: fc.integer({ min: 1, max: 40 }), share: fc.double({ min: 0, max: 1, noNaN: true }) }), {
  maxLength: 6,
});
const delays = fc.infiniteStream(fc.nat({ max: 8 }));
const next = (stream: Iterator<number>) => (): number => stream.next().value as number;

describe('a run that is killed again and again', () => {
  it('is clean, wherever the kills came and however its rollouts were interleaved', async () => {
    let recovered = 0;
    let unknown = 0;
    const property = fc.asyncProperty(kills, delays, async (killed, ticks) => {
      const report = checkHistory({ ...(await runWithKills(killed, next(ticks))), staleness: 0 });
      expect(FAULTS.flatMap((kind) => report[kind])).toEqual([]);
      expect(report).toMatchObject({ clean: true, counts: { steps: 3, trajectories: 9, turns: 18 } });
      recovered += report.recovered.length;
      unknown += report.counts.unknown;
    });
    await fc.assert(property, { numRuns: 100 });
    // Otherwise the kills would have missed what they are about.
    expect(recovered).toBeGreaterThan(0);
    expect(unknown).toBeGreaterThan(recovered);
  });

  it.each(DAMAGES.map(([kind, damage], i) => [kind, i, damage] as const))(
    'reports what is %s among it (%i)',
    async (kind, _, damage) => {
      await fc.assert(
        fc.asyncProperty(kills, delays, fc.nat({ max: 1000 }), async (killed, ticks, at) => {
          const records = await runWithKills(killed, next(ticks));
          const damaged = checkHistory({ ...records, ...damage(records, at), staleness: 0 });
          // What nobody saw end may be missing: nobody was promised it.
          const promised = damaged.recovered.length === checkHistory({ ...records, staleness: 0 }).recovered.length;
          if (kind !== 'lost' || promised) expect(damaged[kind].length).toBeGreaterThan(0);
        }),
        { numRuns: 25 },
      );
    },
  );
});

describe('a history file', () => {
  function scratchFile(): string {
    const dir = mkdtempSync(join(tmpdir(), 'history-'));
    onTestFinished(() => rmSync(dir, { recursive: true }));
    return join(dir, 'history.jsonl');
  }
  const trajectory = randomTrajectory(1, { turns: [] });

  it('is continued by the next process after a line that was never finished', async () => {
    const path = scratchFile();
    const store = memoryStore();
    await recordHistory(historyFile(path)).store(store).append(trajectory);
    appendFileSync(path, '{"kind":"invoked","op":"torn');
    const other = randomTrajectory(2, { turns: [] });
    await recordHistory(historyFile(path)).store(store).append(other);
    appendFileSync(path, '{"kind":"o');
    const history = readFileSync(path, 'utf8');
    const report = checkHistory({ history, trajectories: await store.query(), manifests: [], staleness: 0 });
    expect(report).toMatchObject({ clean: true, counts: { processes: 2, ok: 2, unknown: 0 } });
  });

  it('says before an operation that it begins, and before its caller hears of it that it ended', async () => {
    const path = scratchFile();
    const lines = () =>
      readFileSync(path, 'utf8')
        .trim()
        .split('\n')
        .map((line) => (JSON.parse(line) as { kind: string }).kind);
    const seen: string[][] = [];
    const store = overlaid(memoryStore(), { append: async () => void seen.push(lines()) });
    await recordHistory(historyFile(path)).store(store).append(trajectory);
    expect(seen).toEqual([['process', 'invoked']]);
    expect(lines()).toEqual(['process', 'invoked', 'ok']);
  });

  it.each([
    ['a line in the middle that is damaged', (text: string) => text.replace('invoked', 'in\nvoked')],
    ['an operation that ends twice', (text: string) => `${text}${text.trim().split('\n').at(-1)}\n`],
    ['an operation that ends without having begun', (text: string) => text.split('\n').toSpliced(1, 1).join('\n')],
  ])('is refused for %s', async (_, damage) => {
    const path = scratchFile();
    await recordHistory(historyFile(path)).store(memoryStore()).append(trajectory);
    const history = damage(readFileSync(path, 'utf8'));
    expect(() => checkHistory({ history, trajectories: [trajectory], manifests: [], staleness: 0 })).toThrowError(
      expect.objectContaining({ code: 'STORE_FORMAT' }),
    );
  });
});
