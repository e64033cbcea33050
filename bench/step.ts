/**
 * Where the time of one demo step goes: `npm run bench -- step [--json]`.
 *
 * Trains the shop agent for some steps and asks V8's profiler what the main thread did from the first to the last of them. Samples
 * are sorted by the file that was running or, for built-in functions, the nearest caller that has one. The policy's own threads
 * are not in the profile; of them only the CPU time is known, in rollouts (sampling) and outside (training).
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { type Profiler, Session } from 'node:inspector';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { StepReport } from '../src/core/events.ts';
import { train } from '../src/training/train.ts';

/** The first pattern that fits a file says what it is for. */
const PARTS: readonly (readonly [part: string, file: RegExp])[] = [
  ['agent and its client', /examples\/|node_modules\/openai/],
  ['tokens', /src\/tokens|node_modules\/@huggingface/],
  ['grading', /src\/grader|child_process/],
  ['store', /src\/store|node:sqlite/],
  ['gateway', /src\/gateway|node_modules\/zod/],
  ['sampling and training, main side', /src\/nn|src\/trainer|worker/],
  ['scheduling and the run', /src\//],
  ['HTTP', /^node:/],
];

interface Measured {
  readonly reports: readonly StepReport[];
  readonly profile: Profiler.Profile;
  /** Seconds of CPU of all threads but the main one. */
  readonly otherThreads: { readonly rollouts: number; readonly training: number };
}

/** Seconds of CPU of all threads but this one. */
function otherThreads(): number {
  const all = process.cpuUsage();
  const own = process.threadCpuUsage();
  return (all.user + all.system - own.user - own.system) / 1e6;
}

async function measure(steps: number): Promise<Measured> {
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-bench-'));
  const reports: StepReport[] = [];
  let profile: Profiler.Profile | undefined;
  const spent = { rollouts: 0, training: 0 };
  let since = 0;
  const upToHere = (phase: keyof typeof spent): void => {
    const now = otherThreads();
    spent[phase] += now - since;
    since = now;
  };
  const session = new Session();
  session.connect();
  session.post('Profiler.enable');
  session.post('Profiler.setSamplingInterval', { interval: 200 });
  const entry = fileURLToPath(new URL('../examples/shop/agent.ts', import.meta.url));
  await train({ entry, steps, evalEvery: 0, run: join(folder, 'run') }, (event) => {
    if (event.type === 'eval-end' && event.when === 'before') {
      session.post('Profiler.start');
      since = otherThreads();
    }
    if (event.type === 'progress' && event.phase === 'training') upToHere('rollouts');
    if (event.type === 'step-end') {
      upToHere('training');
      reports.push(event);
    }
    if (reports.length === steps && profile === undefined) {
      session.post('Profiler.stop', (_, stopped) => {
        profile = stopped.profile;
      });
    }
  });
  session.disconnect();
  await rm(folder, { recursive: true });
  if (profile === undefined) throw new Error(`only ${reports.length} of ${steps} steps were taken`);
  return { reports, profile, otherThreads: spent };
}

/** Seconds of the main thread by part. */
function secondsByPart({ nodes, samples = [], timeDeltas = [] }: Profiler.Profile): Map<string, number> {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const parentOf = new Map(nodes.flatMap((node) => (node.children ?? []).map((child) => [child, node.id] as const)));
  const partOf = (id: number | undefined): string => {
    const frame = id === undefined ? undefined : byId.get(id)?.callFrame;
    if (frame === undefined) return 'other';
    if (frame.functionName === '(idle)') return 'waiting';
    if (frame.functionName === '(garbage collector)') return 'garbage collection';
    const part = PARTS.find(([, file]) => file.test(frame.url))?.[0];
    return part ?? partOf(parentOf.get(id as number));
  };
  const seconds = new Map<string, number>();
  samples.forEach((id, i) => {
    const part = partOf(id);
    seconds.set(part, (seconds.get(part) ?? 0) + (timeDeltas[i] ?? 0) / 1e6);
  });
  return seconds;
}

const STEPS = 20;

/** Seconds per step: by phase, and of the main thread by part. */
export async function run(): Promise<Readonly<Record<string, unknown>>> {
  const { reports, profile, otherThreads } = await measure(STEPS);
  const mean = (pick: (report: StepReport) => number): number => reports.reduce((sum, report) => sum + pick(report), 0) / STEPS;
  const phases = {
    rollouts: mean(({ rolloutSeconds }) => rolloutSeconds),
    training: mean(({ trainSeconds }) => trainSeconds),
    saving: mean(({ saveSeconds }) => saveSeconds),
  };
  const whole = phases.rollouts + phases.training + phases.saving;
  const parts = [...secondsByPart(profile)].map(([part, seconds]) => [part, seconds / STEPS] as const);
  const counts = {
    rollouts: mean(({ rollouts }) => rollouts),
    sampledTokens: mean(({ sampledTokens }) => sampledTokens),
    trainedTokens: mean(({ trainedTokens }) => trainedTokens),
  };
  const row = (name: string, seconds: number): string =>
    `  ${name.padEnd(34)} ${(seconds * 1000).toFixed(0).padStart(6)} ms  ${((100 * seconds) / whole).toFixed(1).padStart(5)} %`;
  console.log(`One step of the demo, mean of ${STEPS}: ${(whole * 1000).toFixed(0)} ms, ${counts.rollouts.toFixed(0)} rollouts,`);
  console.log(`${counts.sampledTokens.toFixed(0)} sampled and ${counts.trainedTokens.toFixed(0)} trained tokens`);
  console.log('phases');
  for (const [name, seconds] of Object.entries(phases)) console.log(row(name, seconds));
  console.log('main thread');
  for (const [name, seconds] of parts.toSorted((a, b) => b[1] - a[1])) console.log(row(name, seconds));
  console.log('other threads, CPU (the policy’s, most of it)');
  console.log(row('in rollouts: sampling', otherThreads.rollouts / STEPS));
  console.log(row('after them: training, checkpoint', otherThreads.training / STEPS));
  return { steps: STEPS, otherThreads, secondsPerStep: whole, ...counts, phases, mainThread: Object.fromEntries(parts) };
}
