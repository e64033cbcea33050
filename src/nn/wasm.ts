/**
 * Instantiates the WASM kernels over a shared memory and gives their exports types.
 *
 * Two builds of one source: `relaxed` uses fused multiply-add and needs relaxed SIMD, `plain` runs wherever SIMD does. All threads of
 * a model use the same one, or their results would differ in the last bits. Addresses are bytes, counts and strides are floats.
 */
import { TrainyardError } from '../core/errors.ts';
import { ARENA_START } from './arena.ts';
import { attendScratchFloats, attentionScratchFloats, GEMM_SCRATCH, keyFloats, valueFloats } from './kernel-sizes.ts';

export const KERNEL_VARIANTS = ['relaxed', 'plain'] as const;
export type KernelVariant = (typeof KERNEL_VARIANTS)[number];

/** Argument meanings are documented at the sources in `kernels/`. `accumulate` is 0 or 1. */
export interface Kernels {
  staticEnd(): number;
  gemmScratchFloats(): number;
  attentionScratchFloats(context: number, headDim: number): number;
  attendScratchFloats(context: number): number;
  keyFloats(context: number, headDim: number): number;
  valueFloats(context: number, headDim: number): number;
  /** Between ways of computing the same bits: whether the engine merges neighbouring vector operations. */
  setWide(on: 0 | 1): void;
  setGemmScratch(scratch: number): void;
  gemm(
    M: number,
    N: number,
    K: number,
    a: number,
    aRow: number,
    aColumn: number,
    b: number,
    bRow: number,
    bColumn: number,
    c: number,
    cStride: number,
    accumulate: 0 | 1,
  ): void;
  packMatrix(b: number, bRow: number, bColumn: number, K: number, N: number, out: number): void;
  gemmPacked(M: number, N: number, K: number, a: number, packed: number, c: number, accumulate: 0 | 1): void;
  rmsNorm(x: number, gain: number, y: number, inverse: number, rows: number, width: number, epsilon: number): void;
  rmsNormBackward(
    x: number,
    gain: number,
    inverse: number,
    dy: number,
    dx: number,
    dGain: number,
    rows: number,
    width: number,
  ): void;
  rope(
    rows: number,
    count: number,
    width: number,
    heads: number,
    headDim: number,
    positions: number,
    cosines: number,
    sines: number,
    direction: 1 | -1,
  ): void;
  swiglu(gateUp: number, y: number, rows: number, width: number): void;
  swigluBackward(gateUp: number, dy: number, dGateUp: number, rows: number, width: number): void;
  gatherRows(table: number, indices: number, count: number, width: number, out: number): void;
  scatterAddRows(table: number, indices: number, count: number, width: number, rows: number): void;
  fillZero(address: number, count: number): void;
  copyFloats(to: number, from: number, count: number): void;
  attentionForward(
    qkv: number,
    width: number,
    segments: number,
    count: number,
    context: number,
    heads: number,
    kvHeads: number,
    headDim: number,
    out: number,
    lse: number,
    scratch: number,
  ): void;
  attentionBackward(
    qkv: number,
    width: number,
    segments: number,
    count: number,
    context: number,
    heads: number,
    kvHeads: number,
    headDim: number,
    lse: number,
    dOut: number,
    dQkv: number,
    scratch: number,
  ): void;
  logProbabilities(
    logits: number,
    rows: number,
    vocabulary: number,
    targets: number,
    inverseTemperatures: number,
    logprobs: number,
    sums: number,
  ): void;
  logProbabilitiesBackward(
    logits: number,
    rows: number,
    vocabulary: number,
    targets: number,
    inverseTemperatures: number,
    slopes: number,
    sums: number,
  ): void;
  storeCacheRows(
    source: number,
    width: number,
    rows: number,
    slots: number,
    positions: number,
    keys: number,
    values: number,
    context: number,
    kvHeads: number,
    headDim: number,
  ): void;
  copyCacheSlot(
    from: number,
    to: number,
    count: number,
    keys: number,
    values: number,
    context: number,
    kvHeads: number,
    headDim: number,
  ): void;
  cachedAttention(
    qkv: number,
    width: number,
    rows: number,
    slots: number,
    positions: number,
    keys: number,
    values: number,
    context: number,
    heads: number,
    kvHeads: number,
    headDim: number,
    out: number,
    scores: number,
  ): void;
  drawTokens(
    logits: number,
    rows: number,
    vocabulary: number,
    inverseTemperatures: number,
    uniforms: number,
    weights: number,
    tokens: number,
    logprobs: number,
  ): void;
  sumLanes(gradients: number, stride: number, lanes: number, first: number, end: number): number;
  adamW(
    parameters: number,
    gradients: number,
    firstMoments: number,
    secondMoments: number,
    first: number,
    end: number,
    rate: number,
    beta1: number,
    beta2: number,
    epsilon: number,
    decay: number,
    correction1: number,
    correction2: number,
    gradientScale: number,
  ): number;
}

/** Compiled once, by the thread that opens the model; its workers instantiate the same code. */
export interface CompiledKernels {
  readonly variant: KernelVariant;
  readonly module: WebAssembly.Module;
  /** Whether to use the tile that fills the registers when vector operations were merged. */
  readonly wide: boolean;
}

export function loadKernels({ module, wide }: Pick<CompiledKernels, 'module' | 'wide'>, memory: WebAssembly.Memory): Kernels {
  const { exports } = new WebAssembly.Instance(module, { env: { memory } });
  const kernels = exports as unknown as Kernels;
  checkPlan(kernels);
  kernels.setWide(wide ? 1 : 0);
  return kernels;
}

/** The arena is planned before any kernel is loaded; what it assumes of them is checked here. */
function checkPlan(kernels: Kernels): void {
  const fits =
    kernels.staticEnd() <= ARENA_START &&
    kernels.gemmScratchFloats() === GEMM_SCRATCH &&
    kernels.keyFloats(100, 9) === keyFloats(100, 9) &&
    kernels.valueFloats(100, 9) === valueFloats(100, 9) &&
    kernels.attendScratchFloats(100) === attendScratchFloats(100) &&
    kernels.attentionScratchFloats(100, 9) === attentionScratchFloats(100, 9);
  if (!fits) {
    throw new TrainyardError('ENGINE_FAILED', 'the WASM kernels and the plan of their memory do not belong together', {
      hint: 'rebuild the kernels: node scripts/build-kernels.ts',
    });
  }
}
