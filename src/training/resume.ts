/**
 * Restores the policy to the last committed step: when a run is resumed, and when the policy's server has lost the weights in training. It
 * loads the newest readable checkpoint and recomputes later committed steps from the rollouts that their manifests name. Stored but
 * untrained rollouts do not run again (see Rollouts.run). So a deterministic run that was killed ends with the same weights as one that was
 * not.
 */
import type { Store } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { withoutExcluded } from '../core/turns.ts';
import type { BatchManifest } from '../core/types.ts';
import { discardUncommitted, loadCheckpoint, loadFirst, savedSteps, setAside } from '../engines/checkpoint.ts';
import { type Position, START } from '../rollout/scheduler.ts';
import type { TrainSettings } from '../settings/check-settings.ts';
import { batchOf } from './objective.ts';
import { type NextStep, type StepLog, update } from './step.ts';

export interface Resumption {
  readonly step: number;
  readonly groups: Position;
}

export async function restorePolicy(log: StepLog): Promise<Resumption> {
  const { trainer, directory, store, settings } = log;
  const manifests = await store.manifests();
  const last = manifests.at(-1);
  if (last !== undefined && last.step > settings.steps) {
    const message = `the run has taken ${last.step} steps, now it is to end after ${settings.steps}`;
    throw new TrainyardError('RESUME_IMPOSSIBLE', message);
  }
  await discardUncommitted(trainer, directory.checkpoints, last?.step ?? 0);
  const loaded = await loadNewest(log);
  for (const manifest of manifests) if (manifest.step > loaded) await computeAgain(log, manifest);
  await trainer.publish(last?.policyVersion ?? 0);
  return last === undefined ? { step: 0, groups: START } : { step: last.step, groups: last.groups };
}

/** Returns the loaded step; 0 if no checkpoint is readable and the first policy was loaded. */
async function loadNewest({ trainer, directory, identity, settings, warn }: StepLog): Promise<number> {
  for (const step of (await savedSteps(directory.checkpoints)).toReversed()) {
    try {
      await loadCheckpoint(trainer, { dir: directory.checkpoints, step, identity });
      return step;
    } catch (thrown) {
      // The server failed, not the checkpoint.
      if (thrown instanceof TrainyardError && thrown.code.startsWith('POLICY_')) throw thrown;
      const message = `the checkpoint of step ${step} is not used: ${messageOf(thrown)}; going back to an earlier one`;
      warn('CHECKPOINT_UNREADABLE', message);
      await setAside(directory.checkpoints, step);
    }
  }
  await loadFirst(trainer, settings.model);
  return 0;
}

async function computeAgain({ trainer, store, settings, warn }: StepLog, manifest: BatchManifest): Promise<void> {
  const { loss, gradNorm } = await update(trainer, await stepOf(store, manifest, settings), settings);
  const { loss: kept, gradNorm: keptNorm } = manifest.metrics;
  if (loss === kept && gradNorm === keptNorm) return;
  const message = `step ${manifest.step} computed again gave loss ${loss} instead of ${kept}: another kind of processor, or other settings`;
  warn('NOT_REPRODUCED', message);
}

/** Rebuilds a step from its manifest's rollouts. Throws STORE_FORMAT if they no longer match. */
export async function stepOf(
  store: Store,
  manifest: BatchManifest,
  settings: TrainSettings,
): Promise<Pick<NextStep, 'step' | 'batch' | 'learningRate' | 'isCompared'>> {
  const members = await Promise.all(manifest.rolloutIds.map((id) => store.read(id)));
  const groupIds = new Set(members.flatMap((trajectory) => trajectory?.groupId ?? []));
  // Whole groups: a rollout without samples still counts in its group's mean.
  const groups = await Promise.all([...groupIds].map((groupId) => store.query({ groupId })));
  // Uses the exclusions of that time; later marks only affect later steps.
  const batch = batchOf(withoutExcluded(groups.flat(), manifest.excluded ?? []), settings, manifest.stale);
  if (batch.rolloutIds.join() !== manifest.rolloutIds.join()) {
    throw new TrainyardError(
      'STORE_FORMAT',
      `the rollouts of step ${manifest.step} are no longer those of its manifest`,
      'the store was changed by something else; begin a new run',
    );
  }
  const { learningRate = settings.learningRate, comparedTokens } = manifest.metrics;
  return { step: manifest.step, batch, learningRate, isCompared: settings.from === undefined || comparedTokens !== undefined };
}
