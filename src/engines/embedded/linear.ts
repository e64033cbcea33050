/**
 * A linear layer in training: y (+)= x · Wᵀ, and its backward. `WholeLinear` trains W itself; `FrozenLinear` keeps W as it is served, packed
 * once for sampling and training both, and trains adapters beside it. Both compute a row as sampling does, to the same bits.
 */
import type { Adapters } from './lora.ts';
import type { Linear } from './model/config.ts';
import type { Kernels } from './wasm.ts';

export interface TrainedLinear {
  /** `weights`: address of what is trained. */
  forward(weights: number, rows: number, x: number, y: number, accumulate: 0 | 1): void;
  /** Overwrites dx; adds to the gradient of what is trained. */
  backward(weights: number, gradients: number, rows: number, x: number, dy: number, dx: number): void;
}

type Size = Pick<Linear, 'inputs' | 'outputs'>;

export class WholeLinear implements TrainedLinear {
  readonly #kernels: Kernels;
  readonly #size: Size;
  readonly #offset: number;

  /** `offset`, in floats, of W [outputs, inputs] among the trained parameters. */
  constructor(kernels: Kernels, size: Size, offset: number) {
    this.#kernels = kernels;
    this.#size = size;
    this.#offset = offset;
  }

  forward(weights: number, rows: number, x: number, y: number, accumulate: 0 | 1): void {
    const { inputs, outputs } = this.#size;
    this.#kernels.gemm(rows, outputs, inputs, x, inputs, 1, weights + this.#offset * 4, 1, inputs, y, outputs, accumulate);
  }

  backward(weights: number, gradients: number, rows: number, x: number, dy: number, dx: number): void {
    const { inputs, outputs } = this.#size;
    const weight = weights + this.#offset * 4;
    const slope = gradients + this.#offset * 4;
    this.#kernels.gemm(outputs, inputs, rows, dy, 1, outputs, x, inputs, 1, slope, inputs, 1);
    this.#kernels.gemm(rows, inputs, outputs, dy, outputs, 1, weight, inputs, 1, dx, inputs, 0);
  }
}

interface LinearAdapters {
  readonly parts: Adapters;
  readonly scale: number;
  readonly rank: number;
  /** Space for A x of all rows, and for its gradient. */
  readonly low: number;
  readonly dLow: number;
}

const NONE: LinearAdapters = { parts: [], scale: 1, rank: 0, low: 0, dLow: 0 };

export class FrozenLinear implements TrainedLinear {
  readonly #kernels: Kernels;
  readonly #size: Size;
  readonly #packed: number;
  readonly #adapters: LinearAdapters;
  /** Columns of A x: those of all parts. */
  readonly #width: number;

  constructor(kernels: Kernels, size: Size, packed: number, adapters = NONE) {
    this.#kernels = kernels;
    this.#size = size;
    this.#packed = packed;
    this.#adapters = adapters;
    this.#width = adapters.parts.length * adapters.rank;
  }

  forward(weights: number, rows: number, x: number, y: number, accumulate: 0 | 1): void {
    const { inputs, outputs } = this.#size;
    const { parts, rank, low } = this.#adapters;
    this.#kernels.gemmPacked(rows, outputs, inputs, x, inputs, this.#packed, y, outputs, accumulate);
    if (parts.length === 0) return;
    this.#down(weights, rows, x);
    parts.forEach(({ b, column, outputs: own }, i) => {
      const from = low + i * rank * 4;
      this.#kernels.gemm(rows, own, rank, from, this.#width, 1, weights + b * 4, 1, rank, y + column * 4, outputs, 1);
    });
  }

  backward(weights: number, gradients: number, rows: number, x: number, dy: number, dx: number): void {
    const { inputs, outputs } = this.#size;
    const { parts, scale, rank, low, dLow } = this.#adapters;
    const width = this.#width;
    const kernels = this.#kernels;
    kernels.gemmPackedTransposed(rows, outputs, inputs, dy, outputs, this.#packed, dx, inputs, 0);
    if (parts.length === 0) return;
    this.#down(weights, rows, x);
    parts.forEach(({ b, column, outputs: own }, i) => {
      const at = i * rank * 4;
      const d = dy + column * 4;
      kernels.gemm(own, rank, rows, d, 1, outputs, low + at, width, 1, gradients + b * 4, rank, 1);
      kernels.gemm(rows, rank, own, d, outputs, 1, weights + b * 4, rank, 1, dLow + at, width, 0);
    });
    kernels.scaleFloats(dLow, scale, rows * width);
    const a = parts[0]!.a * 4;
    kernels.gemm(width, inputs, rows, dLow, 1, width, x, inputs, 1, gradients + a, inputs, 1);
    kernels.gemm(rows, inputs, width, dLow, width, 1, weights + a, inputs, 1, dx, inputs, 1);
  }

  /** (alpha / rank) · A x of all parts at once. */
  #down(weights: number, rows: number, x: number): void {
    const { inputs } = this.#size;
    const { parts, scale, low } = this.#adapters;
    const a = weights + parts[0]!.a * 4;
    this.#kernels.gemm(rows, this.#width, inputs, x, inputs, 1, a, 1, inputs, low, this.#width, 0);
    this.#kernels.scaleFloats(low, scale, rows * this.#width);
  }
}
