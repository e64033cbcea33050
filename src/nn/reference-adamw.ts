/**
 * AdamW in float64, slow and obvious: what the optimizer kernels are tested against. Not used outside tests.
 */
import type { AdamSettings } from '../core/policy.ts';

/** AdamW with decoupled decay on every parameter and clipping by global norm; one object per run of steps. */
export class ReferenceAdamW {
  readonly #first: Float64Array;
  readonly #second: Float64Array;
  #steps = 0;

  constructor(length: number) {
    this.#first = new Float64Array(length);
    this.#second = new Float64Array(length);
  }

  /** Updates `weights` in place; returns the norm before clipping. */
  step(weights: Float64Array, gradient: ArrayLike<number>, adam: AdamSettings): number {
    const { learningRate, beta1, beta2, epsilon, weightDecay, maxGradNorm } = adam;
    const norm = Math.sqrt(Array.from(gradient).reduce((sum, g) => sum + g * g, 0));
    const scale = maxGradNorm > 0 && norm > maxGradNorm ? maxGradNorm / norm : 1;
    this.#steps++;
    weights.forEach((weight, i) => {
      const g = gradient[i]! * scale;
      this.#first[i] = beta1 * this.#first[i]! + (1 - beta1) * g;
      this.#second[i] = beta2 * this.#second[i]! + (1 - beta2) * g * g;
      const m = this.#first[i]! / (1 - beta1 ** this.#steps);
      const v = this.#second[i]! / (1 - beta2 ** this.#steps);
      weights[i] = weight * (1 - learningRate * weightDecay) - (learningRate * m) / (Math.sqrt(v) + epsilon);
    });
    return norm;
  }
}
