/**
 * Restores the policy to the last committed step: when a run is resumed, and when the policy's server has lost the weights in training. It
 * loads the newest readable checkpoint and recomputes later committed steps from the rollouts that their manifests name. Stored but
 * untrained rollouts do not run again (see Rollouts.run). So a deterministic run that was killed ends with the same weights as one that was
 * not.
 */
import { type Downtime, Mutex } from '../core/async.ts';
import type { Store } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import { type Engine, engineWith } from '../core/policy.ts';
import { exclusionsOf, withoutExcluded } from '../core/turns.ts';
import type { BatchManifest, RolloutIdentity, Trajectory } from '../core/types.ts';
import { type Position, START } from '../rollout/scheduler.ts';
import type { TrainSettings } from './check-settings.ts';
import { discardUncommitted, loadCheckpoint, loadFirst, savedSteps, setAside } from './checkpoint.ts';
import { batchOf } from './objective.ts';
import { type NextStep, type Repeat, type StepLog, type TrainerWork, update } from './step.ts';

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
    throw new TrainyardError('STORE_FORMAT', `the rollouts of step ${manifest.step} are no longer those of its manifest`, {
      hint: 'the store was changed by something else; begin a new run',
    });
  }
  const { learningRate = settings.learningRate, comparedTokens } = manifest.metrics;
  return { step: manifest.step, batch, learningRate, isCompared: settings.from === undefined || comparedTokens !== undefined };
}

/** A stored rollout, for a run that may be resumed. One that is damaged, and left out of training, counts as failed. */
export async function keptRollout(store: Store, identity: RolloutIdentity): Promise<Trajectory | undefined> {
  const { rolloutId } = identity;
  try {
    return await store.read(rolloutId);
  } catch (cause) {
    if (!(cause instanceof TrainyardError) || cause.code !== 'STORE_FORMAT') throw cause;
    const { code, message, hint = '' } = cause;
    const excluded = exclusionsOf(new Set([rolloutId]), await store.marks());
    if (!excluded.some(({ turn }) => turn === undefined)) {
      throw new TrainyardError(code, message, { hint, cause, details: { rollouts: [rolloutId] } });
    }
    const times = { startedAt: Date.now(), endedAt: Date.now() };
    return {
      ...identity,
      outcome: { kind: 'failed', code, message },
      grade: { kind: 'ungraded', why: 'failed' },
      turns: [],
      ...times,
    };
  }
}

/** Consecutive losses without a completed step, after which the server is not trusted any more. */
const MOST_LOSSES = 3;
/** Errors that affect every rollout, so they end the run. */
const ENDS_THE_RUN: ReadonlySet<string> = new Set(['POLICY_UNREACHABLE', 'POLICY_REFUSED', 'POLICY_LOST']);

/**
 * Recovery for a policy at a server that restarted or dropped the weights. Whichever notices the loss first, a sample or a step, restores
 * the last committed step; then both retry. Steps and recoveries never overlap: otherwise a gradient from before the loss could be missing
 * from the update after it. A repeated sample keeps its seed and version, so its turn is recorded once and correctly.
 */
export class Recovery implements TrainerWork {
  readonly #warn: Warn;
  readonly #downtime: Downtime | undefined;
  /** Restores the last committed step and serves it. May itself throw POLICY_LOST. */
  restore: () => Promise<unknown>;
  readonly #fatal = new AbortController();
  #restored = 0;
  #inARow = 0;
  readonly #mutex = new Mutex();

  constructor(warn: Warn, restore: () => Promise<unknown>, downtime?: Downtime) {
    this.#warn = warn;
    this.restore = restore;
    this.#downtime = downtime;
  }

  /** Aborts, with the error as reason, when sampling has become impossible. */
  get fatal(): AbortSignal {
    return this.#fatal.signal;
  }

  /** Wraps an engine so that it samples again after a loss. */
  around(engine: Engine): Engine {
    const sample: Engine['sample'] = async (request, signal, onTokens) => {
      while (true) {
        const restored = this.#restored;
        try {
          return await engine.sample(request, signal, onTokens);
        } catch (thrown) {
          if (!isLoss(thrown)) throw this.#ending(thrown);
          await this.exclusively(() => this.#recover(thrown, restored)).catch((failed: unknown) => {
            throw this.#ending(failed);
          });
        }
      }
    };
    return engineWith(engine, sample);
  }

  step<T>(work: () => Promise<T>): Promise<T> {
    return this.exclusively((again) => again(work));
  }

  exclusively<T>(work: (again: Repeat) => Promise<T>): Promise<T> {
    return this.#mutex.run(() => work((piece) => this.#untilDone(piece)));
  }

  async #untilDone<T>(work: () => Promise<T>): Promise<T> {
    while (true) {
      const restored = this.#restored;
      try {
        const result = await work();
        this.#inARow = 0;
        return result;
      } catch (thrown) {
        if (!isLoss(thrown)) throw thrown;
        await this.#recover(thrown, restored);
      }
    }
  }

  /** Does nothing if another caller has recovered since. */
  async #recover(loss: TrainyardError, restored: number): Promise<void> {
    if (this.#restored > restored) return;
    // Another caller's recovery failed for good.
    if (this.fatal.aborted) throw this.fatal.reason;
    if (++this.#inARow > MOST_LOSSES) throw loss;
    this.#warn('POLICY_LOST', `${loss.message}; going back to the last saved state`);
    this.#downtime?.begin();
    try {
      await this.restore();
    } catch (thrown) {
      if (!isLoss(thrown)) throw this.#ending(thrown);
      return await this.#recover(thrown, restored);
    } finally {
      this.#downtime?.end();
    }
    this.#restored++;
    this.#warn('POLICY_RESTORED', 'the policy is back at the last committed step; nothing was trained twice');
  }

  #ending(thrown: unknown): unknown {
    if (thrown instanceof TrainyardError && ENDS_THE_RUN.has(thrown.code)) this.#fatal.abort(thrown);
    return thrown;
  }
}

function isLoss(thrown: unknown): thrown is TrainyardError {
  return thrown instanceof TrainyardError && thrown.code === 'POLICY_LOST';
}
