/**
 * Which of our losses a Tinker server can compute by name, and under which settings.
 *
 * A loss is known by its name and exactly its settings: a KL penalty on top keeps the name, so the settings decide. It must also be
 * linear in the advantages, or a sample's weight could not be folded into them; `dro` is not.
 */

import type { Loss } from '../core/policy.ts';
import { masked } from '../core/policy.ts';
import type { Sample } from '../core/types.ts';
import type { Datum } from '../tinker/wire/types.ts';
import { policyDatum, weightedDatum } from './datum.ts';

export interface NamedLoss {
  readonly name: string;
  readonly settings: Readonly<Record<string, number>>;
  readonly datum: (sample: Sample) => Datum;
}

/** Undefined where the loss has to be computed here. */
export function namedLoss({ name, settings }: Loss, samples: readonly Sample[]): NamedLoss | undefined {
  const given = Object.keys(settings).sort().join();
  if (name === 'cross_entropy' && given === '') return { name, settings: {}, datum: crossEntropyDatum };
  // Below 0, the smaller of two terms is the larger one of their weighted ones.
  if (samples.some(({ weight }) => weight < 0)) return undefined;
  if (name === 'importance_sampling' && given === '') return { name, settings: {}, datum: policyDatum };
  if ((name === 'ppo' || name === 'cispo') && given === 'clipHigh,clipLow') {
    const { clipLow, clipHigh } = settings as { readonly clipLow: number; readonly clipHigh: number };
    return { name, settings: { clip_low_threshold: 1 - clipLow, clip_high_threshold: 1 + clipHigh }, datum: policyDatum };
  }
  return undefined;
}

function crossEntropyDatum(sample: Sample): Datum {
  return weightedDatum(
    sample,
    masked(sample, sample.advantages).map((value) => value * sample.weight),
  );
}
