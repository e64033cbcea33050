/**
 * Trajectories → one training batch: advantages by group, turns stitched into samples, a weight for each sample. Losses are sums over
 * tokens, as in the Tinker API; the weights make them means. `grpo` and `rloo` divide by the batch's trained tokens, so every token counts
 * equally; or, weighted by rollouts, every rollout does, each of its k samples 1/k. `dr-grpo` divides by rollouts × a constant, so a
 * token's weight does not depend on the lengths of rollouts (https://arxiv.org/abs/2503.20783). Turns without signal are in no sample and
 * no divisor. `reinforce++` divides as `grpo` does, after whitening the advantages.
 */
import { TrainyardError } from '../core/errors.ts';
import { masked } from '../core/policy.ts';
import { staleWeight } from '../core/turns.ts';
import type { Sample, StaleRule, Trajectory } from '../core/types.ts';
import type { Algorithm, Weighting } from '../settings/settings.ts';
import { stitch } from '../tokens/stitch.ts';
import { turnAdvantagesOf } from './advantages.ts';

export interface Batch {
  readonly samples: readonly Sample[];
  readonly rolloutIds: readonly string[];
  readonly trainedTokens: number;
}

/**
 * Deterministic: sorts by group and rollout, whatever the order of the trajectories. `tokensPerRollout` is `dr-grpo`'s constant: the most
 * tokens a rollout may sample under the run's limits, the same for every batch of a run.
 */
export function makeBatch(
  trajectories: readonly Trajectory[],
  algorithm: Algorithm = 'grpo',
  tokensPerRollout?: number,
  weighting: Weighting = 'tokens',
): Batch {
  const advantageOf = turnAdvantagesOf(trajectories, algorithm, weighting);
  const stitched = trajectories.toSorted(byIdentity).flatMap((trajectory) => {
    const { rolloutId, groupId } = trajectory;
    const advantages = new Map(trajectory.turns.map((turn) => [turn, advantageOf(trajectory, turn)]));
    // Without an advantage a turn is context: in a sample it would add to the divisor and pull the mean towards 0.
    const turns = trajectory.turns.filter((turn) => advantages.get(turn) !== undefined);
    return stitch(turns, { advantageOf: (turn) => advantages.get(turn) ?? 0, weight: 1, rolloutId, groupId });
  });
  const unweighted = algorithm === 'reinforce++' ? whitened(stitched) : stitched;
  const trainedTokens = unweighted.reduce((sum, sample) => sum + tokensIn(sample), 0);
  const rolloutIds = [...new Set(unweighted.map(({ rolloutId }) => rolloutId))];
  if (weighting === 'rollouts') {
    const hint = 'choose grpo, rloo or reinforce++ to let every rollout count alike';
    const found = 'found weighting rollouts with dr-grpo, expected tokens: it divides by a constant of its own';
    if (algorithm === 'dr-grpo') throw new TrainyardError('USAGE', found, hint);
    return { samples: rolloutsAlike(unweighted, rolloutIds.length), rolloutIds, trainedTokens };
  }
  const divisor = algorithm === 'dr-grpo' ? rolloutIds.length * constantLength(tokensPerRollout) : trainedTokens;
  const samples = unweighted.map((sample) => ({ ...sample, weight: 1 / divisor }));
  return { samples, rolloutIds, trainedTokens };
}

/** As in other implementations. */
const LEAST_VARIANCE = 1e-8;

/**
 * (A − mean) / √(variance + 1e-8) over all trained tokens of the batch, with n − 1 in the variance: REINFORCE++ with a group's mean as its
 * baseline (https://arxiv.org/abs/2501.03262). Advantages that are all equal stay as they are: whitened, they would be no gradient at all.
 */
function whitened(samples: readonly Sample[]): readonly Sample[] {
  const values = samples.flatMap((sample) => Array.from(masked(sample, sample.advantages)));
  if (values.every((value) => value === values[0])) return samples;
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1);
  const scale = 1 / Math.sqrt(variance + LEAST_VARIANCE);
  return samples.map((sample) => {
    const advantages = sample.advantages.map((value, i) => (sample.mask[i] === 1 ? (value - mean) * scale : value));
    return { ...sample, advantages };
  });
}

/** Token weights add up to 1/k of the rollout's share per sample, and to 1 over all rollouts. */
function rolloutsAlike(samples: readonly Sample[], rollouts: number): readonly Sample[] {
  const siblings = Map.groupBy(samples, ({ rolloutId }) => rolloutId);
  const divisor = (sample: Sample): number => rollouts * siblings.get(sample.rolloutId)!.length * tokensIn(sample);
  return samples.map((sample) => ({ ...sample, weight: 1 / divisor(sample) }));
}

/**
 * Gives each sample the weight of its oldest turn by the rule. The divisor stays: what is weighed down pulls less, and does not make the rest
 * of the batch pull more.
 */
export function weighStale(batch: Batch, rule: StaleRule): Batch {
  const samples = batch.samples.map((sample) => {
    const oldest = sample.versions.reduce((least, one, i) => (sample.mask[i] === 1 ? Math.min(least, one) : least), Infinity);
    return { ...sample, weight: sample.weight * staleWeight(oldest, rule) };
  });
  return { ...batch, samples };
}

/**
 * Adds the reference policy's log-probabilities, as `withKl` needs them. `logprobs` is the result of `trainer.forward(batch.samples,
 * 'reference')`: one array per sample, one entry per trained token, in order.
 */
export function attachReference(batch: Batch, logprobs: readonly Float32Array[]): Batch {
  requireEqual(logprobs.length, batch.samples.length, 'arrays of reference log-probabilities', 'samples');
  const samples = batch.samples.map((sample, place) => {
    const trained = logprobs[place]!;
    requireEqual(trained.length, tokensIn(sample), `reference log-probabilities of sample ${place}`, 'trained tokens');
    const reference = new Float32Array(sample.tokens.length);
    let next = 0;
    sample.mask.forEach((masked, i) => {
      if (masked === 1) reference[i] = trained[next++]!;
    });
    return { ...sample, reference };
  });
  return { ...batch, samples };
}

/** Trained ones. */
export function tokensIn({ mask }: Sample): number {
  return mask.reduce((tokens, one) => tokens + one, 0);
}

function constantLength(tokensPerRollout: number | undefined): number {
  if (tokensPerRollout !== undefined && tokensPerRollout > 0 && tokensPerRollout < Infinity) return tokensPerRollout;
  const hint = 'pass the most tokens a rollout may sample; it must not change during a run';
  throw new TrainyardError('USAGE', `dr-grpo was given ${tokensPerRollout} tokens per rollout, expected a number above 0`, hint);
}

function requireEqual(found: number, expected: number, what: string, than: string): void {
  if (found === expected) return;
  const hint = 'pass what forward(batch.samples, "reference") returned for this very batch';
  throw new TrainyardError('TRAINER_FAILED', `found ${found} ${what}, expected ${expected}: one for each of the ${than}`, hint);
}

export function byIdentity(a: Trajectory, b: Trajectory): number {
  const compare = (one: string, other: string): number => (one < other ? -1 : one > other ? 1 : 0);
  return compare(a.groupId, b.groupId) || compare(a.rolloutId, b.rolloutId);
}
