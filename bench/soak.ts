/**
 * Fifty thousand rollouts, twice: `npm run bench -- soak [--json]`, minutes. First on the path that training and evaluations share, runner, gateway,
 * grader and store, one in twenty over HTTP: `heapGrowthMB` and `rssGrowthMB` are its. Then as one real evaluation in this process, with its grader
 * processes, directory and store; the model is a server in a process of its own that answers at once.
 *
 * Memory is read after a full collection of garbage, every 10,000 rollouts; growth is from the first to the last of those. At the end, sockets and child
 * processes that are still there are counted, when idle connections had time to close. What an evaluation reports of each rollout stays in memory
 * until its end, some 500 bytes each.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { evaluateOnly } from '../src/evaluation/evaluate.ts';
import { openYard } from './rollouts/yard.ts';

const ROLLOUTS = 50_000;
const PER_TASK = 10;
const CONCURRENCY = 32;
/** Progress is told a few times a second, not for every rollout: the last of them, never. */
const LOOKS = [10_000, 20_000, 30_000, 40_000, 49_500];
/** Clients keep idle connections for a few seconds. */
const IDLE_MS = 8_000;
const ENGINE = join(import.meta.dirname, 'workers/engine.ts');
const ENTRY = join(import.meta.dirname, 'soak/agent.ts');

interface Memory {
  readonly rollouts: number;
  readonly heapMB: number;
  /** What the heap has taken from the system, and keeps for later. */
  readonly heapTotalMB: number;
  readonly rssMB: number;
}

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;
const MB = (bytes: number): number => Number((bytes / 1e6).toFixed(1));

function memoryAt(rollouts: number): Memory {
  for (let i = 0; i < 3; i++) collect();
  const { heapUsed, heapTotal, rss, external } = process.memoryUsage();
  const memory = { rollouts, heapMB: MB(heapUsed), heapTotalMB: MB(heapTotal), rssMB: MB(rss), externalMB: MB(external) };
  console.log(`${JSON.stringify(memory)}, sockets ${sockets()}, load ${loadavg()[0]!.toFixed(1)}`);
  return memory;
}

function sockets(): number {
  return process.getActiveResourcesInfo().filter((name) => /TCP|Pipe/.test(name)).length;
}

/** Of this process, and those that they have started. */
async function childProcesses(): Promise<number> {
  const parents = await Promise.all(
    (await readdir('/proc')).filter((name) => /^\d+$/.test(name)).map(async (pid) => [pid, await parentOf(pid)] as const),
  );
  const below = (pid: string): number =>
    parents.filter(([, parent]) => parent === pid).reduce((sum, [child]) => sum + 1 + below(child), 0);
  return below(String(process.pid));
}

async function parentOf(pid: string): Promise<string | undefined> {
  const text = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  return /^PPid:\s+(\d+)/m.exec(text)?.[1];
}

interface Soaked {
  readonly perSecond: number;
  readonly heapGrowthMB: number;
  readonly rssGrowthMB: number;
  /** More than before. */
  readonly left: { readonly sockets: number; readonly processes: number };
  readonly memory: readonly Memory[];
}

/** `soak` calls its argument now and then with how many rollouts have ended. */
async function soaked(soak: (ended: (rollouts: number) => void) => Promise<void>): Promise<Soaked> {
  const before = { sockets: sockets(), processes: await childProcesses() };
  const memory: Memory[] = [];
  const started = performance.now();
  await soak((rollouts) => {
    if (rollouts >= (LOOKS[memory.length] ?? Number.POSITIVE_INFINITY)) memory.push(memoryAt(rollouts));
  });
  const perSecond = Math.round((1_000 * ROLLOUTS) / (performance.now() - started));
  await sleep(IDLE_MS);
  const left = { sockets: sockets() - before.sockets, processes: (await childProcesses()) - before.processes };
  const first = memory[0]!;
  const last = memory.at(-1)!;
  const growth = { heapGrowthMB: MB(1e6 * (last.heapMB - first.heapMB)), rssGrowthMB: MB(1e6 * (last.rssMB - first.rssMB)) };
  return { perSecond, ...growth, left, memory };
}

async function path(ended: (rollouts: number) => void): Promise<void> {
  await using yard = await openYard();
  for (let done = 0; done < ROLLOUTS; done += 2_500) {
    await yard.run(2_375, { atOnce: CONCURRENCY, latencyMs: 0, door: 'in-process' });
    await yard.run(125, { atOnce: CONCURRENCY, latencyMs: 0, door: 'http' });
    ended(done + 2_500);
  }
}

async function evaluation(folder: string, port: number, ended: (rollouts: number) => void): Promise<void> {
  const heldOut = join(folder, 'tasks.jsonl');
  const row = (n: number): string => JSON.stringify({ id: String(n), prompt: `What do ${n} items cost?`, answer: '81' });
  await writeFile(heldOut, Array.from({ length: ROLLOUTS / PER_TASK }, (_, n) => row(n)).join('\n'));
  process.env['OPENAI_API_KEY'] ??= 'none';
  const { success } = await evaluateOnly(
    {
      entry: ENTRY,
      heldOut,
      run: join(folder, 'run'),
      n: PER_TASK,
      concurrency: CONCURRENCY,
      engine: 'openai',
      baseURL: `http://127.0.0.1:${port}/v1`,
      model: 'quick',
    },
    (event) => event.type === 'progress' && ended(event.done),
  );
  if (success !== 1) throw new Error(`the share of rollouts that succeeded is ${success}`);
}

export async function run(): Promise<Readonly<Record<string, unknown>>> {
  const onPath = await soaked(path);
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-bench-soak-'));
  const env = { ...process.env, LATENCY_MS: '0' };
  const engine: ChildProcess = spawn(process.execPath, [ENGINE], { env, stdio: ['ignore', 'pipe', 'inherit'] });
  try {
    const [port] = (await once(engine.stdout!, 'data')) as [Buffer];
    await once(engine.stdout!.destroy(), 'close');
    return { rollouts: ROLLOUTS, ...onPath, evaluation: await soaked((ended) => evaluation(folder, Number(port), ended)) };
  } finally {
    engine.kill('SIGKILL');
    await rm(folder, { recursive: true, force: true });
  }
}
