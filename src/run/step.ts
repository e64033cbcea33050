/** One step: gradient and update, and how it is made to last. */
import { join } from 'node:path';
import type { Store } from '../core/contracts.ts';
import type { Phase } from '../core/events.ts';
import type { Trainer } from '../core/policy.ts';
import type { Exclusion, Trajectory } from '../core/types.ts';
import type { Position } from '../rollout/scheduler.ts';
import { attachReference, type Batch, makeBatch } from '../trainer/batch.ts';
import { ppo, withKl } from '../trainer/losses.ts';
import { checkpointName, pruneCheckpoints, saveCheckpoint, savedSteps } from './checkpoint.ts';
import type { Recovery } from './recovery.ts';
import type { RunDirectory } from './run-directory.ts';
import type { TrainSettings } from './settings.ts';
import type { Means } from './signal.ts';

export interface Update {
  readonly loss: number;
  /** Undefined where the trainer does not tell. */
  readonly gradNorm: number | undefined;
  readonly learningRate: number;
  /** Means over the trained tokens. */
  readonly metrics: Readonly<Record<string, number>>;
}

export function batchOf(trajectories: readonly Trajectory[], settings: TrainSettings): Batch {
  return makeBatch(trajectories, settings.algorithm, settings.limits.tokens, settings.weighting);
}

/** Gradient and optimizer update. The same batch, rate and settings on the same weights give the same weights. */
export async function update(trainer: Trainer, batch: Batch, learningRate: number, settings: TrainSettings): Promise<Update> {
  const { kl } = settings;
  const { samples } = kl > 0 ? attachReference(batch, await trainer.forward(batch.samples, 'reference')) : batch;
  // Both are sent before either is waited for: where the policy is far away, that is one journey instead of two.
  const [{ loss, metrics }, { gradNorm }] = await Promise.all([
    trainer.forwardBackward(samples, kl > 0 ? withKl(ppo(settings), kl) : ppo(settings)),
    trainer.optimStep({ ...settings.adam, learningRate }),
  ]);
  const means = Object.entries(metrics).map(([name, sum]) => [name, sum / batch.trainedTokens]);
  return { loss, gradNorm, learningRate, metrics: Object.fromEntries(means) };
}

/** What the steps of a run are written to. */
export interface Ledger {
  readonly trainer: Trainer;
  readonly recovery: Recovery;
  readonly directory: RunDirectory;
  readonly store: Store;
  readonly settings: TrainSettings;
  /** What tells this run from another. */
  readonly identity: string;
}

export interface StepInHand {
  readonly step: number;
  readonly batch: Batch;
  /** What marks took out of its groups. */
  readonly excluded?: readonly Exclusion[];
  readonly learningRate: number;
  readonly groups: Position;
  /** What the rewards of the batch were made of. */
  readonly means: Means;
  /** A step whose checkpoint is not to be removed. */
  readonly best: number | undefined;
}

export interface TakenStep extends Update {
  readonly trainSeconds: number;
  readonly saveSeconds: number;
}

/**
 * In this order: gradient and update, checkpoint on disk, manifest and version committed, version served, older checkpoints removed.
 * A policy that is lost before the commit is put back and the step begun again; after it, the step is what it is put back to.
 */
export async function takeStep(ledger: Ledger, inHand: StepInHand, onPhase: (phase: Phase) => void): Promise<TakenStep> {
  const { trainer, recovery, directory, settings } = ledger;
  const { step, batch, best } = inHand;
  const start = performance.now();
  const { updated, trainedAt } = await recovery.exclusively(async (again) => {
    const { updated, trainedAt, checkpoint } = await again(async () => {
      onPhase('training');
      const updated = await update(trainer, batch, inHand.learningRate, settings);
      const trainedAt = performance.now();
      onPhase('saving');
      const checkpoint = step % settings.checkpointEvery === 0 ? await saveAt(ledger, step) : null;
      return { updated, trainedAt, checkpoint };
    });
    await commit(ledger, inHand, updated, checkpoint !== null);
    await again(() => trainer.publish(step));
    return { updated, trainedAt };
  });
  await pruneCheckpoints(trainer, directory.checkpoints, best);
  return { ...updated, trainSeconds: (trainedAt - start) / 1000, saveSeconds: (performance.now() - trainedAt) / 1000 };
}

async function commit(
  { store }: Ledger,
  { step, batch, excluded = [], groups, means }: StepInHand,
  update: Update,
  isSaved: boolean,
): Promise<void> {
  const { loss, gradNorm, learningRate, metrics } = update;
  await store.commit({
    step,
    policyVersion: step,
    rolloutIds: batch.rolloutIds,
    ...(excluded.length === 0 ? {} : { excluded }),
    checkpoint: isSaved ? join('checkpoints', checkpointName(step)) : null,
    groups,
    metrics: { loss, ...(gradNorm === undefined ? {} : { gradNorm }), learningRate, ...metrics, ...named(means) },
    createdAt: Date.now(),
  });
}

/** `parts.format`, `metrics.tries`: a grader's names are never taken for the trainer's. */
function named(means: Means): Record<string, number> {
  const entries = (['parts', 'metrics'] as const).flatMap((kind) =>
    Object.entries(means[kind] ?? {}).map(([name, mean]) => [`${kind}.${name}`, mean] as const),
  );
  return Object.fromEntries(entries);
}

/** The checkpoint of the step just taken, written if there is none yet; null before the first step. */
export function checkpointAt(ledger: Ledger, step: number): Promise<string | null> {
  return ledger.recovery.step(() => saveAt(ledger, step));
}

async function saveAt({ trainer, directory, settings, identity }: Ledger, step: number): Promise<string | null> {
  if (step === 0) return null;
  if (!(await savedSteps(directory.checkpoints)).includes(step)) {
    await saveCheckpoint(trainer, { dir: directory.checkpoints, step, identity, model: settings.model });
  }
  return directory.checkpointPath(step);
}
