/** One step: gradient and update, and how it is made to last. */
import { join } from 'node:path';
import type { Store, Trainer } from '../core/contracts.ts';
import type { Trajectory } from '../core/types.ts';
import type { Position } from '../rollout/scheduler.ts';
import { attachReference, type Batch, makeBatch } from '../trainer/batch.ts';
import { ppo, withKl } from '../trainer/losses.ts';
import { checkpointName, pruneCheckpoints, saveCheckpoint, savedSteps } from './checkpoint.ts';
import type { RunDirectory } from './run-directory.ts';
import type { TrainSettings } from './settings.ts';

export interface Update {
  readonly loss: number;
  /** Undefined where the trainer does not tell. */
  readonly gradNorm: number | undefined;
  readonly learningRate: number;
  /** Means over the trained tokens. */
  readonly metrics: Readonly<Record<string, number>>;
}

export function batchOf(trajectories: readonly Trajectory[], settings: TrainSettings): Batch {
  return makeBatch(trajectories, settings.algorithm, settings.limits.tokens);
}

/** Gradient and optimizer update. The same batch, rate and settings on the same weights give the same weights. */
export async function update(trainer: Trainer, batch: Batch, learningRate: number, settings: TrainSettings): Promise<Update> {
  const { kl } = settings;
  const { samples } = kl > 0 ? attachReference(batch, await trainer.forward(batch.samples, 'reference')) : batch;
  const { loss, metrics } = await trainer.forwardBackward(samples, kl > 0 ? withKl(ppo(settings), kl) : ppo(settings));
  const { gradNorm } = await trainer.optimStep({ ...settings.adam, learningRate });
  const means = Object.entries(metrics).map(([name, sum]) => [name, sum / batch.trainedTokens]);
  return { loss, gradNorm, learningRate, metrics: Object.fromEntries(means) };
}

/** What the steps of a run are written to. */
export interface Ledger {
  readonly trainer: Trainer;
  readonly directory: RunDirectory;
  readonly store: Store;
  readonly settings: TrainSettings;
  /** What tells this run from another. */
  readonly identity: string;
}

export interface TakenStep {
  readonly step: number;
  readonly batch: Batch;
  readonly update: Update;
  readonly groups: Position;
  /** A step whose checkpoint is not to be removed. */
  readonly best: number | undefined;
}

/** In this order: checkpoint on disk, manifest and version committed, version served, older checkpoints removed. */
export async function commitStep(ledger: Ledger, { step, batch, update, groups, best }: TakenStep): Promise<void> {
  const { trainer, directory, store, settings } = ledger;
  const { loss, gradNorm, learningRate, metrics } = update;
  const checkpoint = step % settings.checkpointEvery === 0 ? await checkpointAt(ledger, step) : null;
  await store.commit({
    step,
    policyVersion: step,
    rolloutIds: batch.rolloutIds,
    checkpoint: checkpoint === null ? null : join('checkpoints', checkpointName(step)),
    groups,
    metrics: { loss, ...(gradNorm === undefined ? {} : { gradNorm }), learningRate, ...metrics },
    createdAt: Date.now(),
  });
  await trainer.publish(step);
  await pruneCheckpoints(directory.checkpoints, best);
}

/** The checkpoint of the step just taken, written if there is none yet; null before the first step. */
export async function checkpointAt({ trainer, directory, settings, identity }: Ledger, step: number): Promise<string | null> {
  if (step === 0) return null;
  if (!(await savedSteps(directory.checkpoints)).includes(step)) {
    await saveCheckpoint(trainer, { dir: directory.checkpoints, step, identity, model: settings.model });
  }
  return directory.checkpointPath(step);
}
