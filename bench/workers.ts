/**
 * Rollouts a second of one to four worker processes on one database: `npm run bench -- workers [--json]`. Real coordinator (`trainyard eval`), real
 * workers (`trainyard worker`), real PostgreSQL; the engine is a server in its own process that takes 200 ms for each of a rollout's five calls. So
 * the ideal is known, and the processor is not what limits it.
 *
 * Counted is the middle of each run, by the times in its trajectories: processes that start, and the last rollouts, are left out. Processor time is
 * that of a rollout in its worker and in the coordinator's own process, without its graders and the database; from /proc, so on Linux only.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { meanOf } from '../src/core/statistics.ts';
import { postgresMissing, startPostgres } from '../test/postgres/server.ts';

const TURNS = 5;
const LATENCY_MS = 200;
const CONCURRENCY = 12;
/** Rollouts a second of one worker that never waits for anything but the engine. */
const IDEAL = (CONCURRENCY * 1_000) / (TURNS * LATENCY_MS);
const SECONDS = 20;
/** Of the time in which rollouts ended, at either end, not counted. */
const EDGE = 0.2;
const WORKERS = [1, 2, 3, 4];
const NODE = ['--conditions=trainyard-source'];
const ENGINE = join(import.meta.dirname, 'workers/engine.ts');
const ENTRY = join(import.meta.dirname, 'workers/agent.ts');
const MAIN = join(import.meta.dirname, '../src/cli/main.ts');

interface Scaled {
  readonly workers: number;
  readonly perSecond: number;
  /** Of as many times the rate of one worker. */
  readonly ofLinear: number;
  /** Of a worker whose places are never free. */
  readonly ofIdeal: number;
  /** Of the processor, for one rollout. */
  readonly workerMs: number;
  readonly coordinatorMs: number;
}

type Measured = Pick<Scaled, 'perSecond' | 'workerMs' | 'coordinatorMs'>;

interface Used {
  readonly at: number;
  readonly workers: number;
  readonly coordinator: number;
}

/** Ends its processes when it is disposed of. */
class Processes implements AsyncDisposable {
  readonly #children: ChildProcess[] = [];

  start(script: string, ...args: readonly string[]): ChildProcess {
    const env = { ...process.env, OPENAI_API_KEY: 'none', LATENCY_MS: String(LATENCY_MS) };
    const child = spawn(process.execPath, [...NODE, script, ...args], { env, stdio: ['ignore', 'pipe', 'inherit'] });
    this.#children.push(child);
    return child;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const running = this.#children.filter(({ exitCode, signalCode }) => exitCode === null && signalCode === null);
    await Promise.all(running.map((child) => [once(child, 'exit'), child.kill('SIGKILL')][0]));
  }
}

export async function run(): Promise<Readonly<Record<string, unknown>>> {
  if (postgresMissing !== undefined) return { missing: postgresMissing };
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-bench-workers-'));
  await using server = await startPostgres();
  await using processes = new Processes();
  try {
    const [port] = (await once(processes.start(ENGINE).stdout!, 'data')) as [Buffer];
    const scaled: Scaled[] = [];
    for (const workers of WORKERS) {
      const { perSecond, ...used } = await measured(server.url(), folder, `http://127.0.0.1:${Number(port)}/v1`, workers);
      const one = scaled[0]?.perSecond ?? perSecond;
      const [ofLinear, ofIdeal] = [one, IDEAL].map((each) => Number((perSecond / (workers * each)).toFixed(3))) as [
        number,
        number,
      ];
      const row = { workers, perSecond: Number(perSecond.toFixed(1)), ofLinear, ofIdeal, ...used };
      console.log(`${JSON.stringify(row)}, load ${loadavg()[0]!.toFixed(1)}`);
      scaled.push(row);
    }
    return { scaled, ofLinearAtFour: scaled.at(-1)!.ofLinear, load: Number(loadavg()[0]!.toFixed(1)) };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** In the middle of an evaluation. */
async function measured(url: string, folder: string, baseURL: string, workers: number): Promise<Measured> {
  await using processes = new Processes();
  const tasks = join(folder, `tasks-${workers}.jsonl`);
  const row = (n: number): string => JSON.stringify({ id: `task-${n}`, prompt: `What do ${n} items cost?`, answer: '81' });
  await writeFile(tasks, Array.from({ length: Math.round(SECONDS * IDEAL * workers) }, (_, n) => row(n)).join('\n'));
  const started = Array.from({ length: workers }, () =>
    processes.start(MAIN, 'worker', '--store', url, '--concurrency', String(CONCURRENCY), '--json'),
  );
  await Promise.all(started.map(async ({ stdout }) => [await once(stdout!, 'data'), stdout!.resume()]));
  const dir = join(folder, `run-${workers}`);
  const engine = ['--engine', 'openai', '--base-url', baseURL, '--model', 'slow'];
  const shared = ['--store', url, '--workers', 'external', '--concurrency', String(2 * CONCURRENCY * workers)];
  const coordinator = processes.start(MAIN, 'eval', ENTRY, '--held-out', tasks, '--run', dir, '--json', ...engine, ...shared);
  const output: string[] = [];
  coordinator.stdout!.setEncoding('utf8').on('data', (text: string) => output.push(text));
  const used: Used[] = [];
  const usedNow = (): Used => ({ at: Date.now(), workers: usedBy(started), coordinator: usedBy([coordinator]) });
  const watching = setInterval(() => used.push(usedNow()), 200);
  const [code] = await once(coordinator, 'close');
  clearInterval(watching);
  if (code !== 0) throw new Error(`the coordinator ended with ${code}:\n${output.join('').slice(-2_000)}`);
  const middle = middleOf(await endTimes(url));
  const inMiddle = used.filter(({ at }) => at >= middle[0]! && at <= middle.at(-1)!);
  const perRollout = (of: 'workers' | 'coordinator'): number =>
    Number(((inMiddle.at(-1)![of] - inMiddle[0]![of]) / middle.length).toFixed(2));
  return { perSecond: rateOf(middle), workerMs: perRollout('workers'), coordinatorMs: perRollout('coordinator') };
}

/** Milliseconds of the processor since they began. The kernel counts in hundredths of a second. */
function usedBy(children: readonly ChildProcess[]): number {
  const ticks = children.map(({ pid }) => {
    try {
      const [, rest = ''] = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ');
      return rest
        .split(' ')
        .slice(11, 13)
        .map(Number)
        .reduce((sum, each) => sum + each, 0);
    } catch {
      return 0;
    }
  });
  return 10 * ticks.reduce((sum, each) => sum + each, 0);
}

/** Of the newest run in the store. */
async function endTimes(url: string): Promise<readonly number[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  const sql = `SELECT (short::json->>'endedAt')::float8 AS at FROM trainyard.trajectories
    WHERE run = (SELECT max(id) FROM trainyard.runs) ORDER BY at`;
  const { rows } = await client.query<{ readonly at: number }>(sql);
  await client.end();
  return rows.map(({ at }) => at);
}

function middleOf(times: readonly number[]): readonly number[] {
  const first = times[0]!;
  const last = times.at(-1)!;
  const from = first + EDGE * (last - first);
  const to = last - EDGE * (last - first);
  return times.filter((at) => at >= from && at < to);
}

/** The slope of the line that fits best: places that a worker fills together end together, so a count would depend on where it begins. */
function rateOf(times: readonly number[]): number {
  const meanAt = meanOf(times);
  const meanN = (times.length - 1) / 2;
  const together = times.reduce((sum, at, n) => sum + (at - meanAt) * (n - meanN), 0);
  return (1_000 * together) / times.reduce((sum, at) => sum + (at - meanAt) ** 2, 0);
}
