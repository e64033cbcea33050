/**
 * Training, from tasks to a better policy: the page to read first.
 *
 * Each step: groups of rollouts are run until enough of them have signal; rewards become advantages by group; turns become
 * samples; one gradient, one optimizer update. The checkpoint is on disk before manifest and version are committed, and the
 * version is committed before it is served: whatever is killed when, a trajectory is trained at most once and no version is
 * ever served that could not be found again.
 */
import { join } from 'node:path';
import type { Store } from '../core/contracts.ts';
import { type Emit, errorEvent, type Score } from '../core/events.ts';
import type { Task } from '../core/types.ts';
import { collectGroups, type Group } from '../rollout/scheduler.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { hasSignal } from '../trainer/advantages.ts';
import { type Batch, makeBatch } from '../trainer/batch.ts';
import { ppo } from '../trainer/losses.ts';
import { pruneCheckpoints, saveCheckpoint } from './checkpoint.ts';
import { evaluate } from './evaluate.ts';
import { preflight } from './preflight.ts';
import { openRunDirectory, type RunDirectory } from './run-directory.ts';
import { learningRateAt, type TrainRequest, type TrainSettings, trainingSampling, trainSettings } from './settings.ts';
import { noSignal, nothingLeftToLearn, rolloutReport } from './signal.ts';
import { TaskOrder } from './task-order.ts';
import { transcriptOf } from './transcript.ts';
import { openWorkshop, type Rollouts, type Warn, type Workshop } from './workshop.ts';

/** This many steps in a row without a single group with signal end the training. */
const STALLED_STEPS = 3;

export interface TrainResult {
  readonly before: Score | null;
  readonly after: Score | null;
  readonly steps: number;
  /** Folder of the trained model. */
  readonly checkpoint: string | null;
}

export interface TrainOptions {
  /** Ends the run after the rollouts in hand. */
  readonly stop?: AbortSignal;
  /** When the command began, on `performance.now()`'s clock: what `seconds` counts from. */
  readonly since?: number;
}

/** Runs to the last step. Everything that can be wrong with the call is found before the run directory is made. */
export async function train(request: TrainRequest, emit: Emit = () => {}, options: TrainOptions = {}): Promise<TrainResult> {
  const settings = trainSettings(request);
  const since = options.since ?? performance.now();
  const { entry, tasks, heldOut } = await preflight(settings);
  const stop = options.stop ?? new AbortController().signal;
  const warn: Warn = (code, message) => tell({ type: 'warning', code, message });
  let tell = emit;
  await using workshop = await openWorkshop(settings, entry, { stop, warn });
  await using directory = await openRunDirectory(settings.run, settings);
  await using store = await openSqliteStore(directory.storePath);
  tell = (event) => {
    directory.log(event);
    emit(event);
  };
  const { seed, steps, model } = settings;
  const run = directory.path;
  tell({ type: 'run-start', run, entry: workshop.entryName, model, seed, steps, tasks: tasks.length, heldOut: heldOut.length });
  try {
    const result = await learn({ settings, tasks, heldOut, workshop, directory, store, tell });
    tell({ type: 'done', ...result, best: null, ending: 'steps', seconds: (performance.now() - since) / 1000, run });
    return result;
  } catch (thrown) {
    try {
      directory.log(errorEvent(thrown));
    } catch {
      // The disk may be what failed: the cause is what matters.
    }
    throw thrown;
  }
}

interface Parts {
  readonly settings: TrainSettings;
  readonly tasks: readonly Task[];
  readonly heldOut: readonly Task[];
  readonly workshop: Workshop;
  readonly directory: RunDirectory;
  readonly store: Store;
  readonly tell: Emit;
}

async function learn(parts: Parts): Promise<TrainResult> {
  const { settings, tell } = parts;
  const rollouts = parts.workshop.rolloutsInto(parts.store);
  const before = await assess(parts, rollouts, 'before', 0);
  const order = new TaskOrder(parts.tasks, settings.seed);
  const counter = { groups: 0 };
  let checkpoint: string | null = null;
  let step = 0;
  let stalled = 0;
  while (step < settings.steps) {
    const rolloutStart = performance.now();
    const groups = await collect(rollouts, order, counter, settings);
    const trajectories = groups.flatMap((group) => group.trajectories);
    const batch = makeBatch(trajectories);
    if (batch.trainedTokens === 0) {
      if (++stalled < STALLED_STEPS) continue;
      if (nothingLeftToLearn(trajectories)) break;
      throw noSignal(trajectories);
    }
    stalled = 0;
    step++;
    const trainStart = performance.now();
    const { checkpoint: saved, saveSeconds, ...taken } = await takeStep(parts, batch, step);
    checkpoint = saved;
    tell({
      type: 'step-end',
      step,
      ...taken,
      ...rolloutReport(groups, trajectories),
      trainedTokens: batch.trainedTokens,
      staleGroups: 0,
      sampledTokens: trajectories.flatMap(({ turns }) => turns).reduce((sum, { sampledIds }) => sum + sampledIds.length, 0),
      rolloutSeconds: (trainStart - rolloutStart) / 1000,
      trainSeconds: (performance.now() - trainStart) / 1000 - saveSeconds,
      saveSeconds,
    });
  }
  const after = await assess(parts, rollouts, 'after', step);
  return { before, after, steps: step, checkpoint };
}

/** Gradient and update, then in this order: checkpoint on disk, manifest and version committed, version served. */
async function takeStep({ settings, workshop, directory, store }: Parts, batch: Batch, step: number) {
  const { model } = workshop;
  const { loss, metrics } = await model.forwardBackward(batch.samples, ppo(settings));
  const { gradNorm } = await model.optimStep({ ...settings.adam, learningRate: learningRateAt(step, settings) });
  const policyVersion = model.policyVersion + 1;
  const saveStart = performance.now();
  const folder = await saveCheckpoint(model, directory.checkpoints, step, settings.model);
  await store.commit({
    step,
    policyVersion,
    rolloutIds: batch.rolloutIds,
    checkpoint: join('checkpoints', folder),
    metrics: { loss, gradNorm, ...perToken(metrics, batch.trainedTokens) },
    createdAt: Date.now(),
  });
  await model.publish(policyVersion);
  await pruneCheckpoints(directory.checkpoints);
  const saveSeconds = (performance.now() - saveStart) / 1000;
  return { policyVersion, loss, gradNorm, saveSeconds, checkpoint: join(directory.path, 'checkpoints', folder) };
}

function perToken(sums: Readonly<Record<string, number>>, tokens: number): Record<string, number> {
  return Object.fromEntries(Object.entries(sums).map(([name, sum]) => [name, sum / tokens]));
}

async function assess(
  { settings, heldOut, tell }: Parts,
  rollouts: Rollouts,
  when: 'before' | 'after',
  step: number,
): Promise<Score | null> {
  if (heldOut.length === 0) return null;
  const { score, seconds, trajectories } = await evaluate(rollouts, heldOut, when, settings);
  tell({ type: 'eval-end', when, step, score, seconds });
  for (const trajectory of trajectories.slice(0, settings.transcripts)) {
    tell({ type: 'transcript', when, ...transcriptOf(trajectory) });
  }
  return score;
}

/** Runs groups until enough of them have signal, refilling for those that have none. */
async function collect(
  rollouts: Rollouts,
  order: TaskOrder,
  counter: { groups: number },
  settings: TrainSettings,
): Promise<readonly Group[]> {
  const sampling = trainingSampling(settings);
  return await collectGroups({
    wanted: settings.groupsPerStep,
    atMost: settings.groupsPerStep * settings.refill,
    concurrency: settings.concurrency,
    next: () => ({ groupId: `g${String(++counter.groups).padStart(6, '0')}`, task: order.next(), size: settings.group }),
    runOne: ({ groupId, task }, place) =>
      rollouts.run({ rolloutId: `${groupId}-${place}`, groupId, purpose: 'train' }, task, sampling),
    worthKeeping: (group) => hasSignal(group.trajectories),
  });
}
