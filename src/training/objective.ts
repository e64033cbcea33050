/**
 * What a step minimises, by a run's settings: which rewards are compared, what they make of a batch, and the loss. Pure but for the forward
 * passes that a loss needs. docs/reference/training.md has the formulas; src/training/ computes them.
 */
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import type { Loss, Trainer } from '../core/policy.ts';
import { earnedBy } from '../core/reward.ts';
import type { Sample, StaleRule, Trajectory } from '../core/types.ts';
import type { TrainSettings } from '../settings/check-settings.ts';
import { DPO_BETA, DRO_BETA, LOSS_NAMES, type LossName, OVERLONG_FACTOR } from '../settings/settings.ts';
import { attachReference, type Batch, makeBatch, weighStale } from './batch.ts';
import { makePairs, preferencesOf } from './dpo.ts';
import { cispo, crossEntropy, decoupledPpo, dro, gspo, importanceSampling, ppo } from './losses.ts';
import { withOverlongPenalty } from './overlong.ts';
import { withEntropy, withKl } from './penalties.ts';

/** How each loss is computed. `dpo` is a weighted cross_entropy (training/dpo.ts). */
const LOSSES: Readonly<Record<LossName, (settings: TrainSettings) => Loss>> = {
  ppo,
  importance_sampling: importanceSampling,
  cispo,
  gspo,
  decoupled_ppo: decoupledPpo,
  dro: ({ droBeta: beta = DRO_BETA }) => dro({ beta }),
  dpo: crossEntropy,
};

/** With its penalties. */
function lossOf(settings: TrainSettings): Loss {
  const { kl, klEstimator, entropy } = settings;
  const loss = LOSSES[settings.loss](settings);
  const pulled = kl > 0 ? withKl(loss, kl, klEstimator) : loss;
  return entropy > 0 ? withEntropy(pulled, entropy) : pulled;
}

export function needsReference({ kl, loss }: Pick<TrainSettings, 'kl' | 'loss'>): boolean {
  return kl > 0 || loss === 'dpo';
}

/** Before anything is sampled. Throws USAGE, with the losses that can be trained beside these settings, if this one cannot. */
export async function checkLoss(trainer: Trainer, settings: TrainSettings): Promise<void> {
  const names = LOSS_NAMES.filter((name) => name !== settings.loss && name !== 'dpo');
  const others = names.map((loss) => lossOf({ ...settings, loss }));
  await trainer.checkLoss?.(lossOf(settings), others);
}

/** The loss that a run trains: its own, or, of a run that named none, the other one, if only that can be had. */
export async function trainableLoss(
  check: (settings: TrainSettings) => Promise<void>,
  { settings, otherLoss }: { readonly settings: TrainSettings; readonly otherLoss?: LossName | undefined },
  warn: Warn,
): Promise<LossName> {
  try {
    await check(settings);
    return settings.loss;
  } catch (thrown) {
    const isRefused = thrown instanceof TrainyardError && thrown.code === 'USAGE';
    if (!isRefused || otherLoss === undefined || otherLoss === settings.loss) throw thrown;
    await check({ ...settings, loss: otherLoss });
    warn('POLICY_SERVER', `${messageOf(thrown)}. No --loss was given, so this run trains ${otherLoss}`);
    return otherLoss;
  }
}

type ComparedBy = Pick<TrainSettings, 'loss' | 'limits' | 'overlongBuffer' | 'overlongFactor'>;

/**
 * The trajectories with the rewards that training compares, wherever it judges a group or makes a batch. What is stored and reported keeps
 * the grader's rewards.
 */
export function compared(trajectories: readonly Trajectory[], settings: ComparedBy): readonly Trajectory[] {
  const { overlongBuffer: buffer, overlongFactor: factor = OVERLONG_FACTOR, limits } = settings;
  const shaped =
    buffer === undefined ? trajectories : withOverlongPenalty(trajectories, { limit: limits.tokens, buffer, factor });
  return settings.loss === 'dpo' ? shaped.map(byValueAlone) : shaped;
}

/** Pairs are made by value, of rollouts with something to train, so only these give signal. */
function byValueAlone(trajectory: Trajectory): Trajectory {
  const { grade } = trajectory;
  if (grade.kind !== 'graded') return trajectory;
  if (!trajectory.turns.some((turn) => earnedBy(trajectory, turn) !== undefined)) {
    return { ...trajectory, grade: { kind: 'ungraded', why: 'no turn of it is trained' } };
  }
  const { byTurn: _turn, byThread: _thread, byRole: _role, ...reward } = grade.reward;
  return { ...trajectory, grade: { ...grade, reward } };
}

/** `stale`: what happens to turns that are too old. Undefined where nothing can be stale. */
export function batchOf(trajectories: readonly Trajectory[], settings: TrainSettings, stale?: StaleRule): Batch {
  const rows = compared(trajectories, settings);
  if (settings.loss === 'dpo') return makePairs(rows);
  const batch = makeBatch(rows, settings.algorithm, settings.limits.tokens, settings.weighting);
  return stale === undefined ? batch : weighStale(batch, stale);
}

interface Objective {
  readonly samples: readonly Sample[];
  readonly loss: Loss;
  /** Where the loss to report is another than what `loss` computes; with metrics of its own. */
  readonly reported?: { readonly loss: number; readonly metrics: Readonly<Record<string, number>> };
}

export async function objectiveOf(trainer: Trainer, batch: Batch, settings: TrainSettings): Promise<Objective> {
  const loss = lossOf(settings);
  if (!needsReference(settings)) return { samples: batch.samples, loss };
  const reference = trainer.forward(batch.samples, 'reference');
  if (settings.loss !== 'dpo') return { samples: attachReference(batch, await reference).samples, loss };
  const passes = await Promise.all([trainer.forward(batch.samples), reference]);
  const { samples, ...reported } = preferencesOf(batch, ...passes, settings.dpoBeta ?? DPO_BETA);
  return { samples, loss, reported };
}
