/**
 * How fast `trainyard view` answers about a large run: a store of 100,000 rollouts, one of them with 20,000 tokens, behind the real server on
 * loopback. Prints the 95th percentile of each kind of request, how long the list takes to be read at first, and the longest time for which
 * the event loop was blocked meanwhile. The page must have been built (`npm run build:page`).
 */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { manifestOf } from '../packages/testing/src/trajectories.ts';
import type { Trajectory, Turn } from '../src/core/types.ts';
import { BASE_MODEL } from '../src/settings/settings.ts';
import { openSqliteStore } from '../src/store/sqlite.ts';
import type { RolloutPage } from '../src/view/api.ts';
import { ShownRun } from '../src/view/shown-run.ts';
import { serveView } from '../src/view/view-server.ts';
import { viewKeyOf } from '../test/fixtures/view-key.ts';

const ROLLOUTS = 100_000;
const LONG_TOKENS = 20_000;
const BATCH = 1000;
const TIMES = 40;

export async function run(): Promise<Readonly<Record<string, number>>> {
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-bench-view-'));
  try {
    await writeFile(join(folder, 'run.json'), JSON.stringify({ settings: { model: BASE_MODEL } }));
    await fill(join(folder, 'store.sqlite'));
    return await measured(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function fill(path: string): Promise<void> {
  console.log(`writing ${ROLLOUTS} rollouts`);
  await using store = await openSqliteStore(path);
  await store.append(rolloutOf(0, [turnOf(0, LONG_TOKENS)]));
  for (let first = 1; first < ROLLOUTS; first += BATCH) {
    const numbers = Array.from({ length: Math.min(BATCH, ROLLOUTS - first) }, (_, i) => first + i);
    await Promise.all(
      numbers.map((n) =>
        store.append(
          rolloutOf(
            n,
            [0, 1, 2].map((index) => turnOf(index, 40 + (n % 60))),
          ),
        ),
      ),
    );
    // Most of what a training run samples is trained.
    const step = Math.ceil(first / BATCH);
    await store.commit(manifestOf(step, numbers.filter((n) => n % 10 > 0).map(idOf)));
  }
}

const idOf = (n: number): string => `g${Math.floor(n / 8)}-${n % 8}`;

function rolloutOf(n: number, turns: readonly Turn[]): Trajectory {
  const value = (n * 7919) % 11 === 0 ? 1 : ((n * 31) % 100) / 100;
  return {
    rolloutId: idOf(n),
    groupId: `g${Math.floor(n / 8)}`,
    taskId: `task-${Math.floor(n / 8) % 997}`,
    purpose: 'train',
    outcome: { kind: 'completed' },
    startedAt: 1_700_000_000_000 + n,
    endedAt: 1_700_000_000_000 + n + (n % 5000),
    turns,
    grade: { kind: 'graded', reward: { value, parts: { answer: value, format: 1 } } },
  };
}

function turnOf(index: number, tokens: number): Turn {
  const call = {
    id: 'call',
    type: 'function',
    function: { name: index % 2 ? 'search' : 'lookup', arguments: '{"q":"brush"}' },
  } as const;
  const said = { role: 'assistant', content: 'I shall look it up. '.repeat(10), tool_calls: [call] } as const;
  const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: tokens };
  return {
    index,
    thread: 'default',
    role: 'default',
    trainable: true,
    policyVersion: index,
    stopReason: 'stop',
    promptIds: Int32Array.from({ length: 60 * (index + 1) }, (_, i) => 1000 * index + i),
    sampledIds: Int32Array.from({ length: tokens }, (_, i) => i % 900),
    logprobs: new Float32Array(tokens).fill(-0.5),
    sampling: { requested: {}, effective: sampling, seed: index },
    request: {
      messages: Array.from({ length: 2 * index + 2 }, () => ({ role: 'user', content: 'Words of a task. '.repeat(20) })),
      tools: [],
    },
    response: said,
    startedAt: 1_700_000_000_000,
    endedAt: 1_700_000_000_500,
  };
}

async function measured(folder: string): Promise<Readonly<Record<string, number>>> {
  await using shown = new ShownRun('0', folder);
  let link = '';
  await using listener = await serveView({ runs: [shown], onLink: (fresh) => (link ||= fresh) });
  const headers = await viewKeyOf(link);
  const get = async <T>(path: string): Promise<T> => {
    const response = await fetch(`${listener.origin}/api/runs/0${path}`, { headers });
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
    return (await response.json()) as T;
  };
  using delay = monitored();
  const began = performance.now();
  let page = await get<RolloutPage>('/rollouts');
  const firstAnswerMs = performance.now() - began;
  while (page.read < ROLLOUTS) page = await get<RolloutPage>('/rollouts?count=1');
  const readAllMs = performance.now() - began;
  const longestBlockMs = delay.longest();
  const results = {
    rollouts: ROLLOUTS,
    firstAnswerMs,
    readAllMs,
    longestBlockMs,
    scrollP95Ms: await p95((i) => get(`/rollouts?from=${i * 2000}&count=100`)),
    filterP95Ms: await p95((i) => get(`/rollouts?filter=${encodeURIComponent(`reward<${i / 100} && tool~"sea" && turns>1`)}`)),
    sortP95Ms: await p95((i) => get(`/rollouts?sort=${i % 2 ? '-reward' : 'task'}&filter=${encodeURIComponent(`tokens>${i}`)}`)),
    rolloutP95Ms: await p95((i) => get(`/rollouts/${idOf(i * 1234 + 1)}`)),
    groupP95Ms: await p95((i) => get(`/groups/g${i * 150 + 1}`)),
    longRolloutP95Ms: await p95(() => get(`/rollouts/${idOf(0)}`)),
    longTokensP95Ms: await p95(() => get(`/rollouts/${idOf(0)}/tokens`)),
    heapMb: process.memoryUsage().heapUsed / 1e6,
  };
  for (const [name, value] of Object.entries(results)) console.log(`${name.padEnd(18)} ${value.toFixed(1)}`);
  return results;
}

function monitored(): Disposable & { longest(): number } {
  const delay = monitorEventLoopDelay({ resolution: 5 });
  delay.enable();
  return { longest: () => delay.max / 1e6, [Symbol.dispose]: () => void delay.disable() };
}

async function p95(work: (i: number) => Promise<unknown>): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < TIMES; i++) {
    const began = performance.now();
    await work(i);
    times.push(performance.now() - began);
  }
  return times.toSorted((a, b) => a - b)[Math.ceil(0.95 * TIMES) - 1]!;
}
