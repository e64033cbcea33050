/**
 * Taking up a run: the policy is put back to where the last committed step left it.
 *
 * The newest checkpoint that can be read is loaded; the steps committed after it are computed again from the rollouts that their
 * manifests name. Rollouts that were stored but not trained are not run again (see Rollouts.run). So a deterministic run
 * that was killed ends with the weights of one that was not.
 */
import type { Store } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { withoutExcluded } from '../core/turns.ts';
import type { BatchManifest } from '../core/types.ts';
import { type Position, START } from '../rollout/scheduler.ts';
import { discardUncommitted, loadCheckpoint, loadFirst, savedSteps, setAside } from './checkpoint.ts';
import type { TrainSettings } from './settings.ts';
import { batchOf, type Ledger, type StepInHand, update } from './step.ts';

const SERVER_TROUBLE: ReadonlySet<string> = new Set(['POLICY_UNREACHABLE', 'POLICY_REFUSED', 'POLICY_GARBLED', 'POLICY_LOST']);

/** Where a run goes on: the last committed step, and the groups after it. */
export interface Resumption {
  readonly step: number;
  readonly groups: Position;
}

export async function takeUp(ledger: Ledger): Promise<Resumption> {
  const { trainer, directory, store, settings } = ledger;
  const manifests = await store.manifests();
  const last = manifests.at(-1);
  if (last !== undefined && last.step > settings.steps) {
    throw new TrainyardError(
      'RESUME_IMPOSSIBLE',
      `the run has taken ${last.step} steps, now it is to end after ${settings.steps}`,
    );
  }
  await discardUncommitted(trainer, directory.checkpoints, last?.step ?? 0);
  if (last === undefined) {
    await loadFirst(trainer, settings.model);
    await trainer.publish(0);
    return { step: 0, groups: START };
  }
  const loaded = await loadNewest(ledger);
  for (const manifest of manifests) if (manifest.step > loaded) await computeAgain(ledger, manifest);
  await trainer.publish(last.policyVersion);
  return { step: last.step, groups: last.groups };
}

/** The step whose weights were loaded; 0 where no checkpoint can be read and the run's first policy is. */
async function loadNewest({ trainer, directory, identity, settings, warn }: Ledger): Promise<number> {
  for (const step of (await savedSteps(directory.checkpoints)).toReversed()) {
    try {
      await loadCheckpoint(trainer, { dir: directory.checkpoints, step, identity });
      return step;
    } catch (thrown) {
      // It is the server that could not be asked, not the checkpoint that is bad.
      if (thrown instanceof TrainyardError && SERVER_TROUBLE.has(thrown.code)) throw thrown;
      warn(
        'CHECKPOINT_UNREADABLE',
        `the checkpoint of step ${step} is not used: ${messageOf(thrown)}; going back to an earlier one`,
      );
      await setAside(directory.checkpoints, step);
    }
  }
  await loadFirst(trainer, settings.model);
  return 0;
}

async function computeAgain({ trainer, store, settings, warn }: Ledger, manifest: BatchManifest): Promise<void> {
  const { loss, gradNorm } = await update(trainer, await stepOf(store, manifest, settings), settings);
  if (loss !== manifest.metrics['loss'] || gradNorm !== manifest.metrics['gradNorm']) {
    warn(
      'NOT_REPRODUCED',
      `step ${manifest.step} computed again gave loss ${loss} instead of ${manifest.metrics['loss']}: another kind of processor, or other settings`,
    );
  }
}

/** The step of a manifest as it was taken, from the rollouts that it names. Throws STORE_FORMAT where they are no longer what they were. */
export async function stepOf(
  store: Store,
  manifest: BatchManifest,
  settings: TrainSettings,
): Promise<Pick<StepInHand, 'step' | 'batch' | 'learningRate'>> {
  const members = await Promise.all(manifest.rolloutIds.map((id) => store.read(id)));
  const groupIds = new Set(members.flatMap((trajectory) => trajectory?.groupId ?? []));
  // Whole groups: a rollout that gave no sample still took part in its group's mean.
  const groups = await Promise.all([...groupIds].map((groupId) => store.query({ groupId })));
  // As it was then: marks that were made or taken back since count for later steps.
  const batch = batchOf(withoutExcluded(groups.flat(), manifest.excluded ?? []), settings);
  if (batch.rolloutIds.join() !== manifest.rolloutIds.join()) {
    throw new TrainyardError('STORE_FORMAT', `the rollouts of step ${manifest.step} are no longer those of its manifest`, {
      hint: 'the store was changed by something else; begin a new run',
    });
  }
  return { step: manifest.step, batch, learningRate: manifest.metrics['learningRate'] ?? settings.learningRate };
}
