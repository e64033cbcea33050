/**
 * A model's shared memory, and the WASM kernels over it with types for their exports. There are two builds of one source: `relaxed` uses
 * fused multiply-add and needs relaxed SIMD; `plain` needs only SIMD. All threads of a model must use the same one, or their results would
 * differ in the last bits. Addresses are in bytes; counts and strides are in floats.
 */
import { TrainyardError } from '../../core/errors.ts';
import {
  ARENA_START,
  type Arena,
  attendScratchFloats,
  attentionScratchFloats,
  GEMM_SCRATCH,
  keyFloats,
  valueFloats,
} from './arena.ts';
import type { LoraLayout } from './lora.ts';
import type { Layout, LlamaConfig } from './model/config.ts';

export const KERNEL_VARIANTS = ['relaxed', 'plain'] as const;
export type KernelVariant = (typeof KERNEL_VARIANTS)[number];

// Parameters shared by several kernels.
type Heads = [heads: number, kvHeads: number, headDim: number];
type HeadRows = [rows: number, heads: number, headDim: number];
type Tree = [segments: number, count: number, context: number, trunk: number, trunkLength: number];
type Predictions = [logits: number, rows: number, vocabulary: number, targets: number, inverseTemperatures: number];
type Cache = [tables: number, tableStride: number, layer: number, page: number];
type CacheRows = [width: number, rows: number, slots: number, positions: number, ...Cache];
type Packed = [a: number, aRow: number, packed: number, c: number, cStride: number, accumulate: 0 | 1];

/** The sources in `kernels/` document the arguments. `accumulate` is 0 or 1. */
export interface Kernels {
  staticEnd(): number;
  gemmScratchFloats(): number;
  attentionScratchFloats(context: number, headDim: number): number;
  attendScratchFloats(context: number, headDim: number): number;
  keyFloats(context: number, headDim: number): number;
  valueFloats(context: number, headDim: number): number;
  /** Selects between ways of computing the same bits: whether V8 merges neighbouring vector operations. */
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
  gemmPacked(...given: [M: number, N: number, K: number, ...Packed]): void;
  gemmPackedTransposed(...given: [M: number, N: number, K: number, ...Packed]): void;
  gatherPacked(packed: number, K: number, N: number, indices: number, count: number, out: number): void;
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
  headNorm(
    ...given: [
      x: number,
      xStride: number,
      gain: number,
      y: number,
      yStride: number,
      inverse: number,
      ...HeadRows,
      epsilon: number,
    ]
  ): void;
  headNormBackward(
    ...given: [
      x: number,
      xStride: number,
      gain: number,
      inverse: number,
      d: number,
      dStride: number,
      dGain: number,
      ...HeadRows,
      space: number,
    ]
  ): void;
  addToRows(rows: number, row: number, count: number, width: number): void;
  sumRows(rows: number, sum: number, count: number, width: number): void;
  scaleFloats(address: number, factor: number, count: number): void;
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
  attentionForward(...given: [qkv: number, width: number, ...Tree, ...Heads, out: number, lse: number, scratch: number]): void;
  attentionBackward(
    ...given: [
      qkv: number,
      width: number,
      ...Tree,
      ...Heads,
      lse: number,
      dOut: number,
      dQkv: number,
      dTrunk: number,
      scratch: number,
    ]
  ): void;
  logProbabilities(...given: [...Predictions, logprobs: number, sums: number]): void;
  logProbabilitiesBackward(...given: [...Predictions, slopes: number, sums: number]): void;
  storeCacheRows(...given: [source: number, ...CacheRows, kvHeads: number, headDim: number]): void;
  copyPage(
    ...given: [from: number, to: number, count: number, page: number, layers: number, kvHeads: number, headDim: number]
  ): void;
  cachedAttention(...given: [qkv: number, ...CacheRows, ...Heads, out: number, scores: number]): void;
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
  /** Whether to use the tile size that fills the registers once vector operations are merged. */
  readonly wide: boolean;
}

/** What a pass over the model needs in its worker. */
export interface PassOptions<Regions> {
  readonly kernels: Kernels;
  readonly buffer: ArrayBufferLike;
  readonly config: LlamaConfig;
  readonly layout: Layout;
  readonly lora: LoraLayout | undefined;
  readonly arena: Arena;
  readonly regions: Regions;
}

export function loadKernels({ module, wide }: Pick<CompiledKernels, 'module' | 'wide'>, memory: WebAssembly.Memory): Kernels {
  const { exports } = new WebAssembly.Instance(module, { env: { memory } });
  const kernels = exports as unknown as Kernels;
  checkPlan(kernels);
  kernels.setWide(wide ? 1 : 0);
  return kernels;
}

/** The arena is laid out before any kernel is loaded, so its assumptions about them are checked here. */
function checkPlan(kernels: Kernels): void {
  const fits =
    kernels.staticEnd() <= ARENA_START &&
    kernels.gemmScratchFloats() === GEMM_SCRATCH &&
    kernels.keyFloats(100, 9) === keyFloats(100, 9) &&
    kernels.valueFloats(100, 9) === valueFloats(100, 9) &&
    kernels.attendScratchFloats(100, 9) === attendScratchFloats(100, 9) &&
    kernels.attentionScratchFloats(100, 9) === attentionScratchFloats(100, 9);
  if (!fits) {
    throw new TrainyardError(
      'ENGINE_FAILED',
      'the WASM kernels and the plan of their memory do not belong together',
      'rebuild the kernels: node scripts/build-kernels.ts',
    );
  }
}

/**
 * Creates the memory and fills the constant tables: cosines and sines of the rotary positions. The system allocates pages on first write,
 * so unused regions cost nothing. Throws MODEL_INVALID if the machine refuses.
 */
export function reserveMemory(arena: Arena, config: LlamaConfig): WebAssembly.Memory {
  const memory = reserve(arena.pages);
  fillRotaryTables(memory, arena, config);
  return memory;
}

function reserve(pages: number): WebAssembly.Memory {
  try {
    return new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
  } catch (cause) {
    const gib = (pages / 16_384).toFixed(1);
    throw new TrainyardError('MODEL_INVALID', `the machine gives no ${gib} GiB of memory for this model`, {
      cause,
      hint: 'use fewer threads, a smaller model or a machine with more memory',
    });
  }
}

function fillRotaryTables(memory: WebAssembly.Memory, arena: Arena, config: LlamaConfig): void {
  const { contextLength, headDim } = config;
  const half = headDim / 2;
  const cosines = new Float32Array(memory.buffer, arena.cosines, contextLength * half);
  const sines = new Float32Array(memory.buffer, arena.sines, contextLength * half);
  const frequencies = rotaryFrequencies(config);
  for (let position = 0; position < contextLength; position++) {
    for (let j = 0; j < half; j++) {
      const angle = position * frequencies[j]!;
      cosines[position * half + j] = Math.cos(angle);
      sines[position * half + j] = Math.sin(angle);
    }
  }
}

function rotaryFrequencies({ headDim, ropeTheta, ropeScaling }: LlamaConfig): readonly number[] {
  const plain = Array.from({ length: headDim / 2 }, (_, j) => ropeTheta ** ((-2 * j) / headDim));
  if (ropeScaling === undefined) return plain;
  const { factor, lowFrequencyFactor, highFrequencyFactor, originalContext } = ropeScaling;
  return plain.map((frequency) => {
    const turns = (originalContext * frequency) / (2 * Math.PI);
    const kept = (turns - lowFrequencyFactor) / (highFrequencyFactor - lowFrequencyFactor);
    const share = Math.max(0, Math.min(1, kept));
    return frequency * (share + (1 - share) / factor);
  });
}
