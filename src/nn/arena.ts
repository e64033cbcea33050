/**
 * The layout of the one shared memory: every region's address, computed once from the model's shape and the number of threads. The kernels
 * check nothing: only this file and the checks on sequence lengths keep them inside their regions. Addresses are in bytes; sizes in the
 * code are in floats (or 32-bit integers). Pages that are never touched cost no real memory.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Layout } from './config.ts';
import { type LlamaConfig, widthsOf } from './config.ts';

/** Addresses below this hold the kernels' own constant tables. */
export const ARENA_START = 65_536;
/**
 * The number of gradient buffers. Fixed, whatever the number of threads, so that sums have one order. Also the most threads that can train
 * at once. Lanes without a microbatch are never touched and cost nothing.
 */
export const LANES = 16;
/** Approximate rows per microbatch; one may be half a sequence longer, because it ends at the nearest sequence end. */
export const MICROBATCH_ROWS = 512;
/** Rows per decode pass: prefill chunks and single steps together. */
export const DECODE_ROWS = 512;

const MAX_SLOTS = 128;
/** Limits for all workers together and for one: many threads share what fits, rather than asking for more than WASM can address. */
const CACHE_BYTES = 2 ** 30;
const MAX_CACHE_BYTES_PER_WORKER = 2 ** 28;
const MAX_BYTES = 65_536 * 65_536;

export type Arena = Readonly<ReturnType<typeof planArena>>;
/** The served weights: matrices packed for the decode kernels, the rest unchanged. */
export type ServedRegions = Arena['served'];
export type TrainRegions = Readonly<Arena['workers'][number]['train']>;
export type LayerActivations = Readonly<TrainRegions['layers'][number]>;
export type DecodeRegions = Readonly<Arena['workers'][number]['decode']>;

type Allocate = (floats: number) => number;

/** Throws MODEL_INVALID if the model does not fit into WASM's address space. */
export function planArena(config: LlamaConfig, layout: Layout, threads: number) {
  let end = ARENA_START;
  function allocate(floats: number): number {
    const address = end;
    // Whole cache lines, so that threads never share one.
    end += Math.ceil((floats * 4) / 64) * 64;
    return address;
  }

  // Parameters rounded up to whole vectors: the length of each flat buffer; the tail is always zero.
  const flatLength = Math.ceil(layout.length / 4) * 4;
  // The most rows, and targets, in one microbatch.
  const trainRows = Math.max(config.contextLength, MICROBATCH_ROWS + Math.ceil(config.contextLength / 2));
  const slotFloats = config.layers * (slotKeyFloats(config) + slotValueFloats(config));
  const cacheBytes = Math.min(MAX_CACHE_BYTES_PER_WORKER, CACHE_BYTES / threads);
  // Sequences a worker can hold at once.
  const slotCount = Math.max(2, Math.min(MAX_SLOTS, Math.floor(cacheBytes / (slotFloats * 4))));
  const arena = {
    flatLength,
    parameters: allocate(flatLength),
    firstMoments: allocate(flatLength),
    secondMoments: allocate(flatLength),
    /** LANES buffers, flatLength floats apart. */
    gradients: allocate(flatLength * LANES),
    cosines: allocate((config.contextLength * config.headDim) / 2),
    sines: allocate((config.contextLength * config.headDim) / 2),
    served: planServed(config, allocate),
    workers: Array.from({ length: threads }, () => ({
      gemmScratch: allocate(GEMM_SCRATCH),
      train: planTrain(config, trainRows, allocate),
      decode: planDecode(config, slotCount, allocate),
    })),
    reference: allocate(flatLength),
    slotCount,
    trainRows,
  };
  if (end > MAX_BYTES) {
    const gib = (end / 2 ** 30).toFixed(1);
    throw new TrainyardError(
      'MODEL_INVALID',
      `a model of ${layout.length} parameters on ${threads} ${threads === 1 ? 'thread' : 'threads'} needs ${gib} GiB, expected at most 4`,
      {
        hint: 'use fewer --threads, a smaller model, or a smaller max_position_embeddings in its config.json (the context); large models belong on a Tinker server',
      },
    );
  }
  /** In pages of 64 KiB. */
  const pages = Math.ceil(end / 65_536);
  return { ...arena, pages };
}

/** One layer's keys of one sequence. */
function slotKeyFloats({ kvHeads, contextLength, headDim }: LlamaConfig): number {
  return kvHeads * keyFloats(contextLength, headDim);
}

function slotValueFloats({ kvHeads, contextLength, headDim }: LlamaConfig): number {
  return kvHeads * valueFloats(contextLength, headDim);
}

function planServed(config: LlamaConfig, allocate: Allocate) {
  const { hiddenSize, intermediateSize, vocabSize } = config;
  const { query, qkv } = widthsOf(config);
  return {
    embedding: allocate(vocabSize * hiddenSize),
    layers: Array.from({ length: config.layers }, () => ({
      inputNorm: allocate(hiddenSize),
      qkv: allocate(packedFloats(hiddenSize, qkv)),
      attentionOut: allocate(packedFloats(query, hiddenSize)),
      postNorm: allocate(hiddenSize),
      gateUp: allocate(packedFloats(hiddenSize, 2 * intermediateSize)),
      down: allocate(packedFloats(intermediateSize, hiddenSize)),
    })),
    finalNorm: allocate(hiddenSize),
    head: allocate(packedFloats(hiddenSize, vocabSize)),
  };
}

function planTrain(config: LlamaConfig, rows: number, allocate: Allocate) {
  const { hiddenSize, intermediateSize, vocabSize, heads } = config;
  const { query, qkv } = widthsOf(config);
  const perRow = (floats: number) => allocate(rows * floats);
  // Logits are computed for some rows at a time: 16 MiB of them, but never fewer than 16 rows.
  const headRows = Math.max(16, Math.min(rows, Math.floor(2 ** 22 / vocabSize)));
  return {
    tokens: perRow(1),
    positions: perRow(1),
    /** First row, depth and length of each segment. */
    segments: perRow(3),
    rows: perRow(1),
    targets: perRow(1),
    inverseTemperatures: perRow(1),
    logprobs: perRow(1),
    slopes: perRow(1),
    sums: perRow(1),
    layers: Array.from({ length: config.layers }, () => ({
      input: perRow(hiddenSize),
      inputNorm: perRow(hiddenSize),
      inputScale: perRow(1),
      qkv: perRow(qkv),
      lse: perRow(heads),
      attention: perRow(query),
      middle: perRow(hiddenSize),
      postNorm: perRow(hiddenSize),
      postScale: perRow(1),
      gateUp: perRow(2 * intermediateSize),
      activated: perRow(intermediateSize),
    })),
    output: perRow(hiddenSize),
    headInput: perRow(hiddenSize),
    headNorm: perRow(hiddenSize),
    headScale: perRow(1),
    headRows,
    logits: allocate(headRows * vocabSize),
    dHeadNorm: perRow(hiddenSize),
    dHeadInput: perRow(hiddenSize),
    dx: perRow(hiddenSize),
    dNorm: perRow(hiddenSize),
    dAttention: perRow(query),
    dQkv: perRow(qkv),
    dActivated: perRow(intermediateSize),
    dGateUp: perRow(2 * intermediateSize),
    attentionScratch: allocate(attentionScratchFloats(config.contextLength, config.headDim)),
  };
}

function planDecode(config: LlamaConfig, slotCount: number, allocate: Allocate) {
  const { hiddenSize, intermediateSize, vocabSize } = config;
  const { query, qkv } = widthsOf(config);
  const perRow = (floats: number) => allocate(DECODE_ROWS * floats);
  const perSlot = (floats: number) => allocate(slotCount * floats);
  return {
    tokens: perRow(1),
    positions: perRow(1),
    slots: perRow(1),
    headRows: perSlot(1),
    inverseTemperatures: perSlot(1),
    uniforms: perSlot(1),
    /** One row of the vocabulary. */
    weights: allocate(config.vocabSize),
    drawn: perSlot(1),
    logprobs: perSlot(1),
    x: perRow(hiddenSize),
    norm: perRow(hiddenSize),
    scale: perRow(1),
    qkv: perRow(qkv),
    attention: perRow(Math.max(query, hiddenSize)),
    gateUp: perRow(2 * intermediateSize),
    activated: perRow(intermediateSize),
    scores: allocate(attendScratchFloats(config.contextLength)),
    logits: perSlot(vocabSize),
    /** Per layer, [slot][kvHead] each. */
    keys: Array.from({ length: config.layers }, () => perSlot(slotKeyFloats(config))),
    values: Array.from({ length: config.layers }, () => perSlot(slotValueFloats(config))),
  };
}

// Sizes in floats that this layout assumes of the kernels. It is computed before any kernel is loaded; `wasm.ts` compares these with what
// the kernels report.

/** Columns of a tile; matrices that the kernels multiply by are padded to a multiple. */
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

/** For one path of the tree, forward or backward. */
export function attentionScratchFloats(context: number, headDim: number): number {
  const [keys, values] = [keyFloats(context, headDim), valueFloats(context, headDim)];
  const backward = context + 2 * keys + 3 * values + 2 * 48 * padded(context);
  return Math.max(keys + values + attendScratchFloats(context), backward);
}
