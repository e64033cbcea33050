/**
 * Sizes that the plan of the memory takes for granted of the kernels, in floats. The memory is planned before any kernel is loaded; `wasm.ts`
 * compares these with what the kernels themselves say.
 */

/** Columns of a tile: matrices that the kernels multiply by are padded to it. */
const PANEL = 16;

export const GEMM_SCRATCH = 192 * 384 + 384 * 2048 + 6 * PANEL;

/** `count` rounded up to whole panels. */
function padded(count: number): number {
  return Math.ceil(count / PANEL) * PANEL;
}

/** A K×N matrix in the packed form. */
export function packedFloats(K: number, N: number): number {
  return K * padded(N);
}

/** One head's keys for `context` positions. */
export function keyFloats(context: number, headDim: number): number {
  return padded(context) * headDim;
}

/** One head's values for `context` positions. */
export function valueFloats(context: number, headDim: number): number {
  return context * padded(headDim);
}

/** Scores of the queries that attend at once. */
export function attendScratchFloats(context: number): number {
  return 6 * (padded(context) + PANEL);
}

/** One path of the tree, forward or backward. */
export function attentionScratchFloats(context: number, headDim: number): number {
  const [keys, values] = [keyFloats(context, headDim), valueFloats(context, headDim)];
  const backward = context + 2 * keys + 3 * values + 2 * 48 * padded(context);
  return Math.max(keys + values + attendScratchFloats(context), backward);
}
