/**
 * Turns → samples by exact token prefix. The only place where a mask is built.
 *
 * A turn whose prompt begins with everything an earlier turn saw and said continues that turn's sample; any other turn starts a
 * sample of its own, in which what earlier turns said is context. So every sampled token is trained exactly once, in a row where
 * it follows the very tokens it was sampled after, with its own log-probability and policy version.
 *
 * Refuses what cannot be trained as it was sampled (SAMPLE_REFUSED) instead of leaving it out. Knows nothing about text.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Sample, Turn } from '../core/types.ts';

export interface StitchOptions {
  /** Advantage of each token that this turn sampled. */
  advantageOf(turn: Turn): number;
  /** Factor on each row's loss. */
  readonly weight: number;
  readonly rolloutId: string;
  readonly groupId: string;
  /** Also takes turns sampled greedily or from a truncated distribution, for losses that use no log-probabilities. */
  readonly anySampling?: boolean;
}

/** The turns of one sample, in order. The last one's prompt and sampled ids are the sample's tokens. */
export type Chain = [Turn, ...Turn[]];

/** Samples in the order of their first turns. Turns that are not trainable or sampled nothing give none. */
export function stitch(turns: readonly Turn[], options: StitchOptions): Sample[] {
  if (!Number.isFinite(options.weight)) throw refusal(options, `weight ${options.weight}, expected a finite number`);
  const chains = chainsOf(turns);
  for (const turn of chains.flat().toSorted(byIndex)) requireTrainable(turn, options);
  return chains.map((chain) => sampleOf(chain, options));
}

/** Which turns make which sample. Stitching one of these chains gives its sample alone. */
export function chainsOf(turns: readonly Turn[]): readonly Chain[] {
  const chains: Chain[] = [];
  const trained = turns.filter((turn) => turn.trainable && turn.sampledIds.length > 0);
  for (const turn of trained.toSorted(byIndex)) {
    const chain = longestContinuedBy(turn, chains);
    if (chain) chain.push(turn);
    else chains.push([turn]);
  }
  return chains;
}

function byIndex(a: Turn, b: Turn): number {
  return a.index - b.index;
}

function requireTrainable(turn: Turn, options: StitchOptions): void {
  const { temperature, topP, topK } = turn.sampling.effective;
  const refuse = (found: string, hint?: string) => {
    throw refusal(options, `turn ${turn.index}: ${found}`, hint);
  };
  if (turn.logprobs.length !== turn.sampledIds.length) {
    refuse(`${turn.logprobs.length} log-probabilities for ${turn.sampledIds.length} sampled ids`);
  }
  const bad = turn.logprobs.findIndex((value) => !Number.isFinite(value));
  if (bad !== -1) refuse(`log-probability ${turn.logprobs[bad]} at sampled token ${bad}, expected a finite number`);
  if (turn.promptIds.length === 0) refuse('the prompt is empty, so the first sampled token follows nothing');
  if (options.anySampling) return;
  if (!(temperature > 0 && temperature < Infinity)) {
    refuse(`sampled at temperature ${temperature}, expected above 0`, 'sample trainable roles at a temperature above 0');
  }
  if (topP < 1 || topK > 0) {
    refuse(
      `sampled with top-p ${topP} and top-k ${topK}, expected 1 and 0: the trained distribution would not be the sampled one`,
      'sample trainable roles without truncation',
    );
  }
}

function refusal({ rolloutId }: StitchOptions, found: string, hint?: string): TrainyardError {
  return new TrainyardError('SAMPLE_REFUSED', `rollout ${rolloutId}: ${found}`, {
    hint: hint ?? 'the engine or the grader that gave these numbers is at fault',
    details: { rollouts: [rolloutId] },
  });
}

/** The longest chain that this turn continues; the first of several. */
function longestContinuedBy(turn: Turn, chains: readonly Chain[]): Chain | undefined {
  let best: Chain | undefined;
  let bestLength = -1;
  for (const chain of chains) {
    const last = chain.at(-1)!;
    const length = last.promptIds.length + last.sampledIds.length;
    if (length > bestLength && continues(last, turn)) {
      best = chain;
      bestLength = length;
    }
  }
  return best;
}

function continues(last: Turn, turn: Turn): boolean {
  return (
    last.role === turn.role &&
    last.thread === turn.thread &&
    last.sampling.effective.temperature === turn.sampling.effective.temperature &&
    standsAt(0, last.promptIds, turn.promptIds) &&
    standsAt(last.promptIds.length, last.sampledIds, turn.promptIds)
  );
}

function standsAt(offset: number, part: Int32Array, whole: Int32Array): boolean {
  return offset + part.length <= whole.length && part.every((id, i) => id === whole[offset + i]);
}

function sampleOf(chain: Chain, options: StitchOptions): Sample {
  const last = chain.at(-1)!;
  const length = last.promptIds.length + last.sampledIds.length;
  const tokens = new Int32Array(length);
  tokens.set(last.promptIds);
  tokens.set(last.sampledIds, last.promptIds.length);
  const mask = new Uint8Array(length);
  const logprobs = new Float32Array(length);
  const advantages = new Float32Array(length);
  const versions = new Int32Array(length);
  for (const turn of chain) {
    const from = turn.promptIds.length;
    const to = from + turn.sampledIds.length;
    mask.fill(1, from, to);
    logprobs.set(turn.logprobs, from);
    advantages.fill(advantageOf(turn, options), from, to);
    versions.fill(turn.policyVersion, from, to);
  }
  const { weight, rolloutId, groupId } = options;
  return {
    tokens,
    mask,
    logprobs,
    advantages,
    versions,
    temperature: last.sampling.effective.temperature,
    weight,
    rolloutId,
    groupId,
  };
}

function advantageOf(turn: Turn, options: StitchOptions): number {
  const advantage = options.advantageOf(turn);
  // Checked as it will be stored: a number can be finite in double precision and infinite in single.
  if (!Number.isFinite(Math.fround(advantage)))
    throw refusal(options, `turn ${turn.index}: advantage ${advantage}, expected a finite number`);
  return advantage;
}
