/** One training step: gradient, update, and how the result is made durable. */
import { dirname, join } from 'node:path';
import type { Store } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Phase, StepReport, Warn } from '../core/events.ts';
import { defined, digestOf } from '../core/json.ts';
import type { Trainer } from '../core/policy.ts';
import type { Exclusion, Sample, StaleRule } from '../core/types.ts';
import { checkpointName, filesDigest, labelIn, pruneCheckpoints, saveCheckpoint, savedSteps } from '../engines/checkpoint.ts';
import type { Means } from '../evaluation/results.ts';
import type { Position } from '../rollout/scheduler.ts';
import type { RunDirectory } from '../run/directory.ts';
import type { TrainerWork } from '../run/recovery.ts';
import type { TrainSettings } from '../settings/check-settings.ts';
import { type Agreement, type AgreementBound, agreementOf } from './agreement.ts';
import type { Batch } from './batch.ts';
import { objectiveOf } from './objective.ts';
import { keepTrainerLogprobs } from './trainer-logprobs.ts';

interface Update {
  readonly loss: number;
  /** Undefined if the trainer does not report it. */
  readonly gradNorm: number | undefined;
  readonly learningRate: number;
  /** Means over trained tokens; `meanDifference` and `largestDifference` over those sampled by the version in training. */
  readonly metrics: Readonly<Record<string, number>>;
  readonly agreement: Agreement | undefined;
  readonly logprobs: readonly Float32Array[];
}

/** Of a batch that this version is trained with. Undefined where nothing can be stale. */
export function staleRuleAt(policyVersion: number, { staleness, stale }: TrainSettings): StaleRule | undefined {
  return staleness === 0 ? undefined : { policyVersion, most: staleness, rule: stale };
}

/** Deterministic: the same batch, learning rate and settings on the same weights give the same weights. */
export async function update(
  trainer: Trainer,
  { step, batch, learningRate, isCompared = true }: Pick<NextStep, 'step' | 'batch' | 'learningRate' | 'isCompared'>,
  settings: TrainSettings,
): Promise<Update> {
  const { samples, loss: minimised, reported } = await objectiveOf(trainer, batch, settings);
  // Sends both before awaiting either, which saves a round trip to a remote policy.
  const [{ loss, metrics, logprobs }, { gradNorm }] = await Promise.all([
    trainer.forwardBackward(samples, minimised),
    trainer.optimStep({ ...settings.adam, learningRate }),
  ]);
  const means = Object.entries(metrics).map(([name, sum]) => [name, sum / batch.trainedTokens]);
  const agreement = isCompared ? agreementOf(samples, logprobs, step - 1) : undefined;
  const { tokens, meanDifference, largestDifference, meanSquare } = agreement ?? {};
  const compared = defined({ comparedTokens: tokens, meanDifference, largestDifference, meanSquareDifference: meanSquare });
  const told = { ...Object.fromEntries(means), ...reported?.metrics, ...compared };
  return { loss: reported?.loss ?? loss, gradNorm, learningRate, agreement, logprobs, metrics: told };
}

const AGREEMENT = ['ratio', 'offPolicyKl', 'clipped', 'meanDifference', 'largestDifference'] as const;

export function agreementIn(metrics: Update['metrics']): Pick<StepReport, (typeof AGREEMENT)[number]> {
  return Object.fromEntries(AGREEMENT.flatMap((name) => (metrics[name] === undefined ? [] : [[name, metrics[name]]])));
}

/** The embedded policy cannot be lost. */
export const ONCE: TrainerWork = { step: (work) => work(), exclusively: (work) => work((piece) => piece()) };

export interface StepLog {
  readonly trainer: Trainer;
  readonly work: TrainerWork;
  readonly directory: RunDirectory;
  readonly store: Store;
  readonly settings: TrainSettings;
  readonly identity: string;
  readonly bound: AgreementBound;
  readonly warn: Warn;
}

export interface NextStep {
  readonly step: number;
  readonly batch: Batch;
  /** Whether the version in training sampled the turns that carry its number. Rollouts of another run may be of other policies. Default true. */
  readonly isCompared?: boolean;
  readonly excluded?: readonly Exclusion[];
  readonly stale?: StaleRule | undefined;
  readonly learningRate: number;
  readonly groups: Position;
  readonly means: Means;
  /** The step whose checkpoint must be kept. */
  readonly best: number | undefined;
}

type TakenStep = Update & Readonly<Record<'trainSeconds' | 'saveSeconds', number>>;

/**
 * In this order: update, save the checkpoint, commit manifest and version, serve the version, remove old checkpoints. A policy lost before
 * the commit is restored and the step repeated; after the commit, recovery restores this step.
 */
export async function takeStep(
  log: StepLog,
  next: NextStep,
  onPhase: (phase: Phase) => void,
  onPublished: () => void = () => {},
): Promise<TakenStep> {
  const { trainer, work, directory, settings } = log;
  const { step, best } = next;
  const start = performance.now();
  const { updated, trainedAt } = await work.exclusively(async (again) => {
    const { updated, trainedAt, checkpoint } = await again(async () => {
      onPhase('training');
      const updated = await update(trainer, next, settings);
      requireAgreement(log, next, updated);
      await keepTrainerLogprobs(dirname(directory.storePath), step, next.batch.samples, updated.logprobs);
      const trainedAt = performance.now();
      onPhase('saving');
      const checkpoint = step % settings.checkpointEvery === 0 ? await saveAt(log, step) : null;
      return { updated, trainedAt, checkpoint };
    });
    await commit(log, next, updated, checkpoint !== null);
    await again(() => trainer.publish(step));
    onPublished();
    return { updated, trainedAt };
  });
  await pruneCheckpoints(trainer, directory.checkpoints, best);
  return { ...updated, trainSeconds: (trainedAt - start) / 1000, saveSeconds: (performance.now() - trainedAt) / 1000 };
}

/** Throws POLICY_DISAGREES if engine and trainer differ beyond the bound; with staleness it only warns. */
function requireAgreement({ bound, settings, warn }: StepLog, { step, batch }: NextStep, update: Update): void {
  const { agreement, metrics, logprobs } = update;
  const expected = agreement && bound.exceededBy(agreement);
  if (agreement === undefined || expected === undefined) return;
  const { tokens, meanDifference, largestDifference } = agreement;
  const { ratio = Number.NaN, clipped = Number.NaN } = metrics;
  const seen = `largest ${largestDifference.toPrecision(3)}, mean ratio ${ratio.toPrecision(3)}, ${(100 * clipped).toFixed(0)} % clipped`;
  const message = `step ${step}: the log-probabilities of the engine and of the trainer, of the same ${tokens} tokens under the same weights, differ by ${meanDifference.toPrecision(3)} on average (${seen}), expected ${expected}`;
  if (settings.staleness === 0) {
    const why =
      settings.from === undefined
        ? 'the engine samples from other weights than those in training, or reports other log-probabilities than it sampled with; check the server, then go on with --resume'
        : `the rollouts were sampled by other weights than ${settings.from} began with, or their log-probabilities were changed; check it with trainyard verify`;
    throw new TrainyardError('POLICY_DISAGREES', message, {
      hint: `nothing of this step was kept: ${why}`,
      details: { rollouts: farthest(batch.samples, logprobs, step - 1) },
    });
  }
  warn('POLICY_DISAGREES', message);
}

/** The rollouts that differ most: a few that a worker made may be at fault. */
function farthest(samples: readonly Sample[], logprobs: readonly Float32Array[], version: number): string[] {
  const own = samples.map((sample, place) => agreementOf([sample], [logprobs[place]!], version)?.meanDifference ?? 0);
  const most = Math.max(...own);
  return [...new Set(samples.flatMap(({ rolloutId }, place) => (own[place]! > most / 2 ? [rolloutId] : [])))];
}

async function commit(
  { store, directory }: StepLog,
  { step, batch, excluded = [], stale, groups, means }: NextStep,
  update: Update,
  isSaved: boolean,
): Promise<void> {
  const { loss, gradNorm, learningRate, metrics } = update;
  const folder = join(directory.checkpoints, checkpointName(step));
  const weights = isSaved ? { weights: filesDigest((await labelIn(folder)).files) } : {};
  await store.commit({
    step,
    policyVersion: step,
    rolloutIds: batch.rolloutIds,
    ...(excluded.length === 0 ? {} : { excluded }),
    ...defined({ stale }),
    checkpoint: isSaved ? join('checkpoints', checkpointName(step)) : null,
    digests: { samples: samplesDigest(batch.samples), ...weights },
    groups,
    metrics: { loss, ...defined({ gradNorm }), learningRate, ...metrics, ...named(means) },
    createdAt: Date.now(),
  });
}

/** Prefixes names (`parts.format`, `metrics.tries`), so that a grader's names cannot clash with the trainer's. */
export function named(means: Means): Record<string, number> {
  const kinds = Object.entries({ parts: means.parts, metrics: means.metrics });
  return Object.fromEntries(
    kinds.flatMap(([kind, all = {}]) => Object.entries(all).map(([name, mean]) => [`${kind}.${name}`, mean])),
  );
}

/** Path of the current step's checkpoint, which is written if missing. Null before the first step. */
export function checkpointAt(log: StepLog, step: number): Promise<string | null> {
  return log.work.step(() => saveAt(log, step));
}

async function saveAt({ trainer, directory, settings, identity }: StepLog, step: number): Promise<string | null> {
  if (step === 0) return null;
  if (!(await savedSteps(directory.checkpoints)).includes(step)) {
    await saveCheckpoint(trainer, { dir: directory.checkpoints, step, identity, model: settings.model });
  }
  return directory.checkpointPath(step);
}

/** Digest of everything a step is computed from: tokens, masks, log-probabilities, advantages, versions, temperatures and weights. */
export function samplesDigest(samples: readonly Sample[]): string {
  const bytes = (array: Int32Array | Float32Array | Uint8Array): Uint8Array =>
    new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  const pieces = samples.flatMap(({ tokens, mask, logprobs, advantages, versions, rolloutId, temperature, weight }) => [
    JSON.stringify([rolloutId, temperature, weight]),
    ...[tokens, mask, logprobs, advantages, versions].map(bytes),
  ]);
  return digestOf(pieces);
}
