/**
 * Seeded random numbers: sfc32, with a small state per stream, so that a stream's numbers depend only on its seed. Also random weights.
 */
import type { LoraLayout } from './lora.ts';
import type { Layout, LlamaConfig } from './model/config.ts';

export interface RandomStream {
  /** Uniform in [0, 1), with 24 bits: exact in float32. */
  uniform(): number;
}

/** `seed` is a safe integer; both its 32-bit halves count. */
export function randomStream(seed: number): RandomStream {
  let a = seed >>> 0;
  let b = Math.floor(seed / 2 ** 32) >>> 0;
  let c = 0x9e3779b9;
  let counter = 1;

  function next(): number {
    const sum = (a + b + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + sum) | 0;
    return sum >>> 0;
  }

  // Without warm-up, seeds that differ in one bit would give related streams.
  for (let i = 0; i < 15; i++) next();
  return { uniform: () => (next() >>> 8) / 2 ** 24 };
}

/** One normally distributed number (Box–Muller). */
export function gaussian(stream: RandomStream): number {
  const radius = Math.sqrt(-2 * Math.log(1 - stream.uniform()));
  return radius * Math.cos(2 * Math.PI * stream.uniform());
}

const DEVIATION = 0.02;

/**
 * For training from scratch: normal, with projections into the residual stream divided by √(2·layers) so that its variance does not grow
 * with depth; norms are 1.
 */
export function initialWeights(config: LlamaConfig, layout: Layout, seed: number): Float32Array {
  const weights = new Float32Array(layout.length);
  const random = randomStream(seed);
  for (const { name, offset, length } of layout.tensors) {
    const tensor = weights.subarray(offset, offset + length);
    if (name.endsWith('norm.weight')) tensor.fill(1);
    if (name.endsWith('norm.weight') || name.endsWith('.bias')) continue;
    const intoResidual = name.endsWith('o_proj.weight') || name.endsWith('down_proj.weight');
    const deviation = intoResidual ? DEVIATION / Math.sqrt(2 * config.layers) : DEVIATION;
    for (let i = 0; i < length; i++) tensor[i] = gaussian(random) * deviation;
  }
  return weights;
}

/** As PEFT begins: A uniform within ±1/√inputs, B zero, so that an adapter changes nothing at first. */
export function initialAdapters(layout: LoraLayout, seed: number): Float32Array {
  const weights = new Float32Array(layout.length);
  const random = randomStream(seed);
  for (const { name, shape, offset, length } of layout.tensors) {
    if (!name.endsWith('lora_A.weight')) continue;
    const bound = 1 / Math.sqrt(shape[1]!);
    for (let i = 0; i < length; i++) weights[offset + i] = (2 * random.uniform() - 1) * bound;
  }
  return weights;
}
