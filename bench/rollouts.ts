/**
 * How many rollouts one process carries: `npm run bench -- rollouts`. A tool agent of five turns on a scripted engine, with the real runner,
 * gateway, tokenizer, grader and store, in process and over HTTP with the OpenAI client.
 *
 * Without latency: rollouts per second. With an engine that takes 200 ms per call, all rollouts begun at once: the ideal is five times
 * that, and the fraction is the ideal over what it took.
 */
import { loadavg } from 'node:os';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { openYard, TURNS, type Yard } from './rollouts/yard.ts';

const LATENCY_MS = 200;
const IDEAL_SECONDS = (TURNS * LATENCY_MS) / 1000;
const ROUNDS = 3;

interface Crowd {
  readonly fraction: number;
  readonly lagP99Ms: number;
}

/** The best round: what else the machine does can only make it worse. */
async function crowd(yard: Yard, count: number, door: 'in-process' | 'http', rounds = ROUNDS): Promise<Crowd> {
  const crowds: Crowd[] = [];
  for (let round = 0; round < rounds; round++) {
    globalThis.gc?.();
    const lag = monitorEventLoopDelay({ resolution: 5 });
    lag.enable();
    const seconds = await yard.run(count, { atOnce: count, latencyMs: LATENCY_MS, door });
    lag.disable();
    crowds.push({ fraction: IDEAL_SECONDS / seconds, lagP99Ms: lag.percentile(99) / 1e6 });
  }
  const best = crowds.toSorted((a, b) => b.fraction - a.fraction)[0]!;
  const all = crowds.map(({ fraction }) => fraction.toFixed(2)).join(' ');
  console.log(
    `${door.padEnd(10)} ${String(count).padStart(6)} in flight: ${all} of the ideal, lag p99 ${best.lagP99Ms.toFixed(0)} ms`,
  );
  return best;
}

/** Rollouts per second, the median of the rounds. */
async function rate(yard: Yard, count: number, door: 'in-process' | 'http'): Promise<number> {
  const rates: number[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    rates.push(count / (await yard.run(count, { atOnce: 64, latencyMs: 0, door })));
  }
  const [, median] = rates.toSorted((a, b) => a - b);
  console.log(`${door.padEnd(10)} without latency, 64 at once: ${rates.map((one) => one.toFixed(0)).join(' ')} rollouts/s`);
  return median!;
}

export async function run(): Promise<Readonly<Record<string, unknown>>> {
  console.log(`load ${loadavg()[0]!.toFixed(1)}; a rollout is ${TURNS} model calls`);
  await using yard = await openYard();
  // Compiled code is what a long run has.
  await yard.run(1000, { atOnce: 64, latencyMs: 0, door: 'in-process' });
  await yard.run(200, { atOnce: 64, latencyMs: 0, door: 'http' });
  const inProcessPerSecond = await rate(yard, 2000, 'in-process');
  const httpPerSecond = await rate(yard, 400, 'http');
  const at1k = await crowd(yard, 1000, 'in-process');
  const at5k = await crowd(yard, 5000, 'in-process');
  const at10k = await crowd(yard, 10_000, 'in-process', 2);
  const httpAt1k = await crowd(yard, 1000, 'http');
  return {
    inProcessPerSecond,
    httpPerSecond,
    fractionAt1k: at1k.fraction,
    fractionAt5k: at5k.fraction,
    fractionAt10k: at10k.fraction,
    httpFractionAt1k: httpAt1k.fraction,
    lagP99Ms: at1k.lagP99Ms,
  };
}
