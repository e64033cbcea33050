/**
 * Drawing a token under top-k and top-p: the slow, exact path. Plain temperature sampling is done by the kernels.
 *
 * Top-k first, then top-p over what remains, renormalised; among equals the lower id ranks first. The log-probability is that of
 * the distribution actually drawn from.
 */
import type { SamplingSettings } from '../core/types.ts';

/** A temperature greater than 0. */
type Truncation = Pick<SamplingSettings, 'temperature' | 'topK' | 'topP'>;

interface DrawnToken {
  readonly token: number;
  readonly logprob: number;
}

/** `uniform` is in [0, 1). */
export function drawTruncated(logits: Float32Array, { temperature, topK, topP }: Truncation, uniform: number): DrawnToken {
  const top = logits.reduce((best, z) => Math.max(best, z), Number.NEGATIVE_INFINITY);
  const weights = Float64Array.from(logits, (z) => Math.exp((z - top) / temperature));
  const ranked = Array.from(weights.keys()).sort((a, b) => logits[b]! - logits[a]! || a - b);
  const byCount = topK > 0 ? ranked.slice(0, topK) : ranked;
  const kept = nucleus(byCount, weights, topP);
  const total = sumOf(kept, weights);

  let left = uniform * total;
  // Rounding may leave something over; a token without weight cannot be drawn even then.
  let token = kept.findLast((id) => weights[id]! > 0) ?? kept.at(-1)!;
  for (const id of kept) {
    left -= weights[id]!;
    if (left < 0) {
      token = id;
      break;
    }
  }
  return { token, logprob: Math.log(weights[token]! / total) };
}

/** The shortest run of the likeliest ids whose share reaches `topP`; at least one. */
function nucleus(ranked: readonly number[], weights: Float64Array, topP: number): readonly number[] {
  if (topP >= 1) return ranked;
  const wanted = topP * sumOf(ranked, weights);
  let reached = 0;
  let count = 0;
  while (count < ranked.length && (count === 0 || reached < wanted)) {
    reached += weights[ranked[count]!]!;
    count++;
  }
  return ranked.slice(0, count);
}

function sumOf(ids: readonly number[], weights: Float64Array): number {
  return ids.reduce((sum, id) => sum + weights[id]!, 0);
}
