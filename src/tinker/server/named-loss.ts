/**
 * The losses of the Tinker API by name and settings, over ours. Its bounds of a ratio are absolute (0.8 and 1.2), ours are distances
 * from 1. Context is kept from the loss: a quadratic pull, or a count of ratios, must not see tokens that nobody sampled.
 */
import type { Loss, LossInput } from '../../core/policy.ts';
import { cispo, crossEntropy, dro, importanceSampling, ppo } from '../../trainer/losses.ts';
import { ApiError } from './api-error.ts';

type Settings = Readonly<Record<string, number>>;

const DEFAULT_BOUNDS = { clip_low_threshold: 0.8, clip_high_threshold: 1.2 };

const LOSSES: Readonly<Record<string, { readonly defaults: Settings; make(settings: Settings): Loss }>> = {
  cross_entropy: { defaults: {}, make: crossEntropy },
  importance_sampling: { defaults: {}, make: importanceSampling },
  ppo: { defaults: DEFAULT_BOUNDS, make: (settings) => ppo(clipOf(settings)) },
  cispo: { defaults: DEFAULT_BOUNDS, make: (settings) => cispo(clipOf(settings)) },
  dro: { defaults: { beta: 0.05 }, make: ({ beta }) => dro({ beta: beta! }) },
};

export const LOSS_NAMES: readonly string[] = Object.keys(LOSSES);

/** Throws where the name or a setting is not known, or a setting makes no sense. */
export function lossNamed(name: string, given: Settings): Loss {
  const entry = Object.hasOwn(LOSSES, name) ? LOSSES[name] : undefined;
  if (entry === undefined) {
    throw new ApiError('not_offered', `loss_fn is ${JSON.stringify(name)}, expected one of ${LOSS_NAMES.join(', ')}`, {
      param: 'loss_fn',
    });
  }
  for (const [setting, value] of Object.entries(given)) {
    const where = `loss_fn_config.${setting}`;
    if (!Object.hasOwn(entry.defaults, setting)) {
      const known = Object.keys(entry.defaults);
      const expected = known.length === 0 ? 'none' : known.join(', ');
      throw new ApiError('not_offered', `${where} is not a setting of ${name}, which has: ${expected}`, { param: where });
    }
    if (!Number.isFinite(value) || value < 0) {
      throw new ApiError('invalid_request', `${where} is ${value}, expected a number of at least 0`, { param: where });
    }
  }
  return withoutContext(entry.make({ ...entry.defaults, ...given }));
}

function clipOf({ clip_low_threshold: low, clip_high_threshold: high }: Settings): { clipLow: number; clipHigh: number } {
  if (low! > 1 || high! < 1) {
    throw new ApiError(
      'invalid_request',
      `clip_low_threshold is ${low} and clip_high_threshold ${high}, expected bounds around 1`,
      {
        hint: 'they are bounds of the ratio, such as 0.8 and 1.2',
        param: 'loss_fn_config',
      },
    );
  }
  return { clipLow: 1 - low!, clipHigh: high! - 1 };
}

/** The same loss of the tokens that carry weight, or that were sampled with some probability; the others have no part in it. */
function withoutContext(loss: Loss): Loss {
  return {
    ...loss,
    evaluate(input: LossInput) {
      const { logprobs, sampled, advantages } = input;
      const trained: number[] = [];
      for (let i = 0; i < logprobs.length; i++) if (advantages[i] !== 0 || sampled[i] !== 0) trained.push(i);
      const at = (values: Float32Array) => new Float32Array(trained.map((i) => values[i]!));
      const output = loss.evaluate({
        logprobs: at(logprobs),
        sampled: at(sampled),
        advantages: at(advantages),
        reference: undefined,
      });
      const gradient = new Float32Array(logprobs.length);
      trained.forEach((place, i) => {
        gradient[place] = output.gradient[i]!;
      });
      return { ...output, gradient, metrics: { ...output.metrics, trained: trained.length } };
    },
  };
}
