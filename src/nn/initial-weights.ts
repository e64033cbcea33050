/**
 * Random weights for a model that is trained from nothing: normal with deviation 0.02, projections into the residual stream
 * divided by √(2·layers) so that its variance does not grow with depth, norms 1.
 */
import type { LlamaConfig } from './config.ts';
import type { Layout } from './layout.ts';
import { gaussian, randomStream } from './random.ts';

const DEVIATION = 0.02;

export function initialWeights(config: LlamaConfig, layout: Layout, seed: number): Float32Array {
  const weights = new Float32Array(layout.length);
  const random = randomStream(seed);
  for (const { name, offset, length } of layout.tensors) {
    const tensor = weights.subarray(offset, offset + length);
    if (name.endsWith('norm.weight')) {
      tensor.fill(1);
      continue;
    }
    const intoResidual = name.endsWith('o_proj.weight') || name.endsWith('down_proj.weight');
    const deviation = intoResidual ? DEVIATION / Math.sqrt(2 * config.layers) : DEVIATION;
    for (let i = 0; i < length; i++) tensor[i] = gaussian(random) * deviation;
  }
  return weights;
}
