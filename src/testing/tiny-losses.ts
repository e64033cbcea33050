/**
 * The losses that the trainer suite trains with: as small as they can be said, by the names and settings that servers know them under.
 *
 * Not for training: reports, KL for every loss and the rest of the family are in the trainer's own.
 */
import type { Loss, LossInput } from '../core/policy.ts';

/** The loss of one token and its derivative by lp; s: as sampled, A: advantage, ref: of the reference. */
type Token = (lp: number, s: number, A: number, ref: number) => readonly [loss: number, slope: number];

/** −Σ A·lp */
export function crossEntropy(): Loss {
  return tokenwise('cross_entropy', {}, (lp, _s, A) => [-A * lp, -A]);
}

/** −Σ e^(lp − s)·A */
export function importanceSampling(): Loss {
  return tokenwise('importance_sampling', {}, (lp, s, A) => [-Math.exp(lp - s) * A, -Math.exp(lp - s) * A]);
}

export const CLIP = { clipLow: 0.2, clipHigh: 0.28 };

/** −Σ min(r·A, clip(r)·A) */
export function ppo(): Loss {
  return tokenwise('ppo', CLIP, clipped);
}

/** `ppo` with k3 to the reference on top: another loss, though its name is the same. */
export function ppoWithKl(coefficient: number): Loss {
  const withPenalty: Token = (lp, s, A, ref) => {
    const [loss, slope] = clipped(lp, s, A, ref);
    const penalty = Math.expm1(ref - lp) - (ref - lp);
    return [loss + coefficient * penalty, slope - coefficient * Math.expm1(ref - lp)];
  };
  const loss = tokenwise('ppo', { ...CLIP, kl: coefficient }, withPenalty);
  return {
    ...loss,
    evaluate(input) {
      if (input.reference === undefined) throw new TypeError('the sample has no reference log-probabilities');
      return loss.evaluate(input);
    },
  };
}

/** The same function under a name that nobody knows; `seen` gets what it is called with. */
export function anonymous(loss: Loss, seen?: (input: LossInput) => void): Loss {
  return {
    name: 'a_loss_of_my_own',
    settings: {},
    evaluate(input) {
      seen?.(input);
      return { ...loss.evaluate(input), metrics: { tokens: input.logprobs.length } };
    },
  };
}

function clipped(lp: number, s: number, A: number, _ref: number): readonly [number, number] {
  const ratio = Math.exp(lp - s);
  const limited = Math.min(Math.max(ratio, 1 - CLIP.clipLow), 1 + CLIP.clipHigh);
  return limited * A < ratio * A ? [-limited * A, 0] : [-ratio * A, -ratio * A];
}

function tokenwise(name: string, settings: Readonly<Record<string, number>>, token: Token): Loss {
  return {
    name,
    settings,
    evaluate({ logprobs, sampled, advantages, reference }) {
      const parts = Array.from(logprobs, (lp, i) => token(lp, sampled[i]!, advantages[i]!, reference?.[i] ?? 0));
      return { loss: parts.reduce((sum, [loss]) => sum + loss, 0), gradient: Float32Array.from(parts, ([, slope]) => slope) };
    },
  };
}
