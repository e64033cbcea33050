/**
 * What it costs to grade in another process: a trivial grader, called one after the other and 256 at once on 2 processes, beside the same
 * grader called in this process and beside two processes that send every message back. All in turn within one run, medians of the rounds.
 *
 * Also how long a process takes to be there, with its memory limit and without.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { loadavg } from 'node:os';
import type { GraderInput } from '../src/core/contracts.ts';
import { inlineGrader } from '../src/grading/inline.ts';
import { graderProgram, openGraderPool } from '../src/grading/pool.ts';
import { PooledProcess } from '../src/processes/process-pool.ts';
import { trivial } from './grader/trivial.ts';

const WORKERS = 2;
const IN_FLIGHT = 256;
const ROUNDS = 5;
const SEQUENTIAL = 2_000;
const AT_ONCE = 20_000;
const STARTS = 8;

type Call = () => Promise<unknown>;

const input: GraderInput = {
  task: { id: 'task', prompt: [{ role: 'user', content: 'What is 2 + 2?' }], answer: 4 },
  messages: [
    { role: 'user', content: 'What is 2 + 2?' },
    { role: 'assistant', content: 'It is 4.' },
  ],
  threads: {},
  turns: [{ role: 'default', thread: 'main', response: { role: 'assistant', content: 'It is 4.' }, stopReason: 'stop' }],
  output: '4',
  result: {},
  truncated: undefined,
  artifactsDir: null,
};

export async function run(): Promise<Readonly<Record<string, unknown>>> {
  const load = loadavg()[0];
  const module = new URL('./grader/trivial.ts', import.meta.url).href;
  await using pool = await openGraderPool({ module, exportName: 'trivial', workers: WORKERS });
  await using inline = inlineGrader(trivial);
  const echo = echoes();
  const calls: Readonly<Record<string, Call>> = {
    inline: () => inline.grade(input),
    echo: () => echo.call(),
    pool: () => pool.grade(input),
  };
  const measured = new Map(Object.keys(calls).map((name) => [name, { p50: [] as number[], perSecond: [] as number[] }]));
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const [name, call] of Object.entries(calls)) {
      const { p50, perSecond } = measured.get(name)!;
      p50.push(await sequentialP50(call));
      perSecond.push(await throughput(call));
      console.log(`round ${round + 1}, ${name}: ${p50.at(-1)!.toFixed(1)} µs, ${Math.round(perSecond.at(-1)!)} per second`);
    }
  }
  echo.end();
  const of = (name: string) => {
    const { p50, perSecond } = measured.get(name)!;
    return { p50Us: rounded(median(p50)), perSecond: Math.round(median(perSecond)) };
  };
  const ours = of('pool');
  const bare = of('echo');
  const here = of('inline');
  const starts = await startTimes(module);
  return {
    ...ours,
    echo: bare,
    inline: here,
    p50AgainstEcho: rounded(ours.p50Us / bare.p50Us),
    perSecondAgainstEcho: rounded(ours.perSecond / bare.perSecond),
    p50AgainstInline: rounded(ours.p50Us / here.p50Us),
    perSecondAgainstInline: rounded(ours.perSecond / here.perSecond),
    ...starts,
    load,
  };
}

async function sequentialP50(call: Call): Promise<number> {
  const times: number[] = [];
  for (let done = 0; done < SEQUENTIAL; done += 1) {
    const start = performance.now();
    await call();
    times.push((performance.now() - start) * 1000);
  }
  return median(times);
}

async function throughput(call: Call): Promise<number> {
  let begun = 0;
  const start = performance.now();
  const line = async (): Promise<void> => {
    while (begun++ < AT_ONCE) await call();
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, line));
  return AT_ONCE / ((performance.now() - start) / 1000);
}

/** Two processes, taken in turn; each answers in the order it was asked. */
function echoes(): { call(): Promise<void>; end(): void } {
  const waiting: (() => void)[][] = [];
  const children: ChildProcess[] = Array.from({ length: WORKERS }, (_, index) => {
    const child = fork(new URL('./grader/echo.ts', import.meta.url), { serialization: 'advanced' });
    waiting.push([]);
    child.on('message', () => waiting[index]!.shift()?.());
    return child;
  });
  let next = 0;
  return {
    call: () =>
      new Promise((resolve) => {
        const index = next++ % WORKERS;
        waiting[index]!.push(resolve);
        children[index]!.send({ input, model: undefined });
      }),
    end: () => {
      for (const child of children) child.kill();
    },
  };
}

async function startTimes(module: string): Promise<Readonly<Record<string, number>>> {
  const contained = graderProgram(module, 'trivial');
  const { memoryMb: _memoryMb, ...bare } = contained;
  const times = { startMs: [] as number[], bareStartMs: [] as number[] };
  for (let round = 0; round < STARTS; round += 1) {
    for (const [name, program] of [['startMs', contained] as const, ['bareStartMs', bare] as const]) {
      const start = performance.now();
      const child = new PooledProcess(program);
      await child.ready(60_000);
      times[name].push(performance.now() - start);
      await child.kill();
    }
  }
  return { startMs: rounded(median(times.startMs)), bareStartMs: rounded(median(times.bareStartMs)) };
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1]!;
}

function rounded(value: number): number {
  return Math.round(value * 100) / 100;
}
