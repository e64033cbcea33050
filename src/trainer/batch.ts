/**
 * Trajectories → one training batch: advantages by group, turns stitched into samples, a weight on every sampled token.
 *
 * Losses are sums over tokens, as in the Tinker API; the weight makes them a mean. `grpo` and `rloo` divide by the trained tokens of the batch,
 * so every token counts alike; or, weighed by rollouts, every rollout counts alike, its k samples 1/k each. `dr-grpo` divides by rollouts × a
 * constant, so that how much a token counts does not depend on how long the rollouts happened to be (https://arxiv.org/abs/2503.20783). Turns
 * that teach nothing are in no sample and count in no divisor.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Sample, Trajectory } from '../core/types.ts';
import { stitch } from '../tokens/stitch.ts';
import { type Algorithm, turnAdvantagesOf, type Weighting } from './advantages.ts';

export interface Batch {
  readonly samples: readonly Sample[];
  /** Rollouts that are in it, each once, sorted. */
  readonly rolloutIds: readonly string[];
  readonly trainedTokens: number;
}

/**
 * Deterministic: sorted by group and rollout, whatever order the trajectories come in. `tokensPerRollout` is `dr-grpo`'s constant:
 * the most tokens a rollout may sample, from the run's limits, the same for every batch of a run.
 */
export function makeBatch(
  trajectories: readonly Trajectory[],
  algorithm: Algorithm = 'grpo',
  tokensPerRollout?: number,
  weighting: Weighting = 'tokens',
): Batch {
  const advantageOf = turnAdvantagesOf(trajectories, algorithm, weighting);
  const unweighted = trajectories.toSorted(byIdentity).flatMap((trajectory) => {
    const { rolloutId, groupId } = trajectory;
    const advantages = new Map(trajectory.turns.map((turn) => [turn, advantageOf(trajectory, turn)]));
    // A turn without an advantage is context: in a sample it would add to the divisor and pull the mean towards 0.
    const turns = trajectory.turns.filter((turn) => advantages.get(turn) !== undefined);
    return stitch(turns, { advantageOf: (turn) => advantages.get(turn) ?? 0, weight: 1, rolloutId, groupId });
  });
  const trainedTokens = unweighted.reduce((sum, sample) => sum + tokensIn(sample), 0);
  const rolloutIds = [...new Set(unweighted.map(({ rolloutId }) => rolloutId))];
  if (weighting === 'rollouts') {
    const hint = 'choose grpo or rloo to let every rollout count alike';
    const found = 'found weighting rollouts with dr-grpo, expected tokens: it divides by a constant of its own';
    if (algorithm === 'dr-grpo') throw new TrainyardError('USAGE', found, { hint });
    return { samples: rolloutsAlike(unweighted, rolloutIds.length), rolloutIds, trainedTokens };
  }
  const divisor = algorithm === 'dr-grpo' ? rolloutIds.length * constantLength(tokensPerRollout) : trainedTokens;
  const samples = unweighted.map((sample) => ({ ...sample, weight: 1 / divisor }));
  return { samples, rolloutIds, trainedTokens };
}

/** The weights of a sample's tokens come to 1/k of its rollout's, those of all rollouts to 1. */
function rolloutsAlike(samples: readonly Sample[], rollouts: number): readonly Sample[] {
  const siblings = Map.groupBy(samples, ({ rolloutId }) => rolloutId);
  const divisor = (sample: Sample): number => rollouts * siblings.get(sample.rolloutId)!.length * tokensIn(sample);
  return samples.map((sample) => ({ ...sample, weight: 1 / divisor(sample) }));
}

/**
 * The batch with the reference policy's log-probabilities in place, as `withKl` needs them. `logprobs` is what
 * `trainer.forward(batch.samples, 'reference')` gives: one array per sample, one entry per trained token, in order.
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

function tokensIn({ mask }: Sample): number {
  return mask.reduce((tokens, one) => tokens + one, 0);
}

function constantLength(tokensPerRollout: number | undefined): number {
  if (tokensPerRollout !== undefined && tokensPerRollout > 0 && tokensPerRollout < Infinity) return tokensPerRollout;
  const hint = 'pass the most tokens a rollout may sample; it must not change during a run';
  throw new TrainyardError('USAGE', `dr-grpo was given ${tokensPerRollout} tokens per rollout, expected a number above 0`, {
    hint,
  });
}

function requireEqual(found: number, expected: number, what: string, than: string): void {
  if (found === expected) return;
  const hint = 'pass what forward(batch.samples, "reference") returned for this very batch';
  throw new TrainyardError('TRAINER_FAILED', `found ${found} ${what}, expected ${expected}: one for each of the ${than}`, {
    hint,
  });
}

function byIdentity(a: Trajectory, b: Trajectory): number {
  const compare = (one: string, other: string): number => (one < other ? -1 : one > other ? 1 : 0);
  return compare(a.groupId, b.groupId) || compare(a.rolloutId, b.rolloutId);
}
