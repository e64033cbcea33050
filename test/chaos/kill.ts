/**
 * Trains a small agent in a process that is killed with SIGKILL again and again and taken up again each time, then compares: the
 * last checkpoint must be, byte for byte, that of a run that nobody disturbed, and the history must be clean.
 *
 *     node --conditions=trainyard-source test/chaos/kill.ts --kills 20 --seed 1 [--staleness 2]
 *
 * Kills come by number of lines of history (the same point every time for a seed) and by the clock, in turns. Exits 1 if anything
 * differs.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { checkHistory, FAULTS, type HistoryReport } from '../../packages/testing/src/check-history.ts';
import { randomStream } from '../../src/engines/embedded/random.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { ROOT } from '../cli/command.ts';
import { smallHome } from '../e2e/small-run.ts';
import type { KillRun } from '../fixtures/kill-run.ts';

export interface KillOutcome {
  /** Kills that struck; one by the clock may come after the end. */
  readonly kills: number;
  readonly report: HistoryReport;
  /** What differs from the undisturbed run; empty when all is well. */
  readonly differences: readonly string[];
}

export interface KillSettings {
  readonly kills: number;
  readonly seed: number;
  /** With 0 the run is deterministic, and is compared with one that nobody disturbed. */
  readonly staleness: number;
}

export async function killRun({ kills, seed, staleness }: KillSettings): Promise<KillOutcome> {
  const home = await smallHome();
  try {
    const sizes = { steps: 5 + Math.ceil(kills / 3), group: 4, groupsPerStep: 2, evalEvery: 3, checkpointEvery: 2, staleness };
    const play = (name: string): KillRun => ({
      request: { entry: home.entry, run: join(home.dir, name), ...sizes },
      history: join(home.dir, `${name}.jsonl`),
    });
    const [undisturbed, disturbed] = [play('undisturbed'), play('disturbed')];
    const startedAt = performance.now();
    await runToTheEnd(undisturbed);
    const milliseconds = performance.now() - startedAt;
    const struck = await disturb(disturbed, { kills, seed, milliseconds, lines: linesIn(undisturbed) });
    await runToTheEnd(disturbed);
    const differences = staleness === 0 ? await compare(undisturbed, disturbed) : [];
    return { kills: struck, report: await judge(disturbed, staleness), differences };
  } finally {
    await home.remove();
  }
}

export interface Plan {
  readonly kills: number;
  readonly seed: number;
  /** What the undisturbed run took. */
  readonly milliseconds: number;
  readonly lines: number;
}

/**
 * The run is cut into as many stretches as there are kills, and one more to end in; each kill strikes somewhere in its own. One in
 * four of those by the clock strikes while the process is still starting.
 */
async function disturb(run: KillRun, { kills, seed, milliseconds, lines }: Plan): Promise<number> {
  const random = randomStream(seed);
  const stretch = lines / (kills + 1);
  let struck = 0;
  for (let kill = 0; kill < kills; kill++) {
    const byClock = kill % 2 === 1;
    const written = linesIn(run);
    const target = Math.ceil((kill + random.uniform()) * stretch);
    const last = byClock ? Math.ceil((kill + 1) * stretch) : target;
    const { ended, child } = start({ ...run, killAtLine: Math.max(1, last - written), share: random.uniform() });
    if (byClock) {
      const isStarting = random.uniform() < 0.25;
      while (!isStarting && isAlive(child) && linesIn(run) < target) await sleep(5);
      await Promise.race([ended, sleep(random.uniform() * (isStarting ? 500 : (milliseconds / lines) * stretch))]);
      child.kill('SIGKILL');
    }
    const { signal, code, stderr } = await ended;
    // Killed before it was a run: nothing was begun, and the command asks for the directory to be removed.
    if (!existsSync(join(run.request.run, 'run.json'))) await rm(run.request.run, { recursive: true, force: true });
    if (signal === 'SIGKILL') struck++;
    else if (code !== 0) throw new Error(`after ${struck} kills the run ended with ${code}: ${stderr}`);
  }
  return struck;
}

export const isAlive = (child: ChildProcess): boolean => child.exitCode === null && child.signalCode === null;

export function linesIn({ history }: KillRun): number {
  return existsSync(history) ? readFileSync(history, 'utf8').split('\n').length : 0;
}

export async function runToTheEnd(run: KillRun): Promise<void> {
  const { code, stderr } = await start(run).ended;
  if (code !== 0) throw new Error(`the run ended with ${code}: ${stderr}`);
}

export function start(run: KillRun) {
  const fixture = join(ROOT, 'test/fixtures/kill-run.ts');
  const child = spawn(process.execPath, ['--conditions=trainyard-source', fixture, JSON.stringify(run)], {
    cwd: ROOT,
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let stderr = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  type Ended = { readonly code: number | null; readonly signal: NodeJS.Signals | null; readonly stderr: string };
  const ended = new Promise<Ended>((resolve) => child.on('exit', (code, signal) => resolve({ code, signal, stderr })));
  return { child, ended };
}

export async function judge(run: KillRun, staleness: number): Promise<HistoryReport> {
  await using store = await openSqliteStore(join(run.request.run, 'store.sqlite'));
  const [trajectories, manifests] = [await store.query(), await store.manifests()];
  return checkHistory({ history: readFileSync(run.history, 'utf8'), trajectories, manifests, staleness });
}

/**
 * The last checkpoint byte by byte, which others there are, manifests but for their times, and what each rollout was given.
 * `weightsOf` says in which folder a checkpoint's bytes are.
 */
export async function compare(
  a: KillRun,
  b: KillRun,
  weightsOf = async (checkpoint: string): Promise<string> => checkpoint,
): Promise<readonly string[]> {
  const [left, right] = [await outcomeOf(a, weightsOf), await outcomeOf(b, weightsOf)];
  const names = new Set([...left.keys(), ...right.keys()]);
  return [...names].filter((name) => left.get(name) !== right.get(name)).toSorted();
}

async function outcomeOf(
  { request: { run } }: KillRun,
  weightsOf: (checkpoint: string) => Promise<string>,
): Promise<ReadonlyMap<string, string>> {
  const outcome = new Map<string, string>();
  const checkpoints = (await readdir(join(run, 'checkpoints'))).toSorted();
  const last = checkpoints.at(-1) ?? 'none';
  const folder = await weightsOf(join(run, 'checkpoints', last));
  // The server's note of when it was saved, and as what.
  const names = (await readdir(folder)).filter((name) => name !== 'saved.json');
  for (const name of names) outcome.set(join(last, name), await readFile(join(folder, name), 'base64'));
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  outcome.set('checkpoints', checkpoints.join());
  for (const { createdAt: _, digests, ...manifest } of await store.manifests()) {
    // Of a run at a Tinker server, `digests.weights` is of a path that names the model; its bytes were compared above.
    outcome.set(`step ${manifest.step}`, JSON.stringify([manifest, folder.startsWith(run) ? digests : digests?.samples]));
  }
  for (const { rolloutId, grade } of await store.query()) outcome.set(rolloutId, JSON.stringify(grade));
  return outcome;
}

/** Says it on stdout; what is not clean makes the process end with 1. */
export function tellOutcome(
  { report, differences }: Pick<KillOutcome, 'report' | 'differences'>,
  disturbances: string,
  settings: string,
): void {
  const { processes, ok, unknown, steps, trajectories } = report.counts;
  const problems = [
    ...differences.map((name) => `differs from the undisturbed run: ${name}`),
    ...FAULTS.flatMap((kind) => report[kind].map(({ id, why }) => `${kind} ${id}: ${why}`)),
  ];
  const summary =
    `${problems.length === 0 ? 'clean' : 'NOT CLEAN'}: ${disturbances}, ${processes} processes, ${steps} steps, ` +
    `${trajectories} trajectories, ${ok} operations acknowledged, ${unknown} unknown, ${report.recovered.length} recovered ` +
    `(${settings})`;
  process.stdout.write(`${[...problems, summary].join('\n')}\n`);
  if (problems.length > 0) process.exitCode = 1;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const number = (standard: string) => ({ type: 'string', default: standard }) as const;
  const { values } = parseArgs({ options: { kills: number('20'), seed: number('1'), staleness: number('0') } });
  const [wanted, seed, staleness] = [Number(values.kills), Number(values.seed), Number(values.staleness)];
  const { kills, report, differences } = await killRun({ kills: wanted, seed, staleness });
  tellOutcome({ report, differences }, `${kills} kills`, `seed ${seed}, staleness ${staleness}`);
}
