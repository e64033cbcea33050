/**
 * The layout of the one shared memory: every region's address, computed once from the model's shape, what it is used for and the number of
 * threads. The kernels check nothing: only this file and the checks on sequence lengths keep them inside their regions. Addresses are in
 * bytes; sizes in the code are in floats (or 32-bit integers). Pages that are never touched cost no real memory.
 */
import { TrainyardError } from '../../core/errors.ts';
import type { Adapters, LoraLayout } from './lora.ts';
import { type Flat, type Layout, type LinearName, type LlamaConfig, linearsOf, widthsOf } from './model/config.ts';

/** Addresses below this hold the kernels' own constant tables. */
export const ARENA_START = 65_536;
/**
 * The most gradient buffers. Their number depends on the model alone, never on threads, so that sums have one order. Also the most threads
 * that can train at once. Lanes without a microbatch are never touched and cost nothing.
 */
export const MOST_LANES = 16;
/** The lanes of a larger model share this. */
const LANE_BYTES = 2 ** 27;
/** Rows per decode pass: prefill chunks and single steps together. */
export const DECODE_ROWS = 512;

/** Rows of a matrix that are packed at once while a model is read: the columns that the kernels pack together. */
export const STAGED_ROWS = 2048;

const MAX_SLOTS = 128;
/** Limits for all workers together and for one: many threads share what fits, rather than asking for more than WASM can address. */
const CACHE_BYTES = 2 ** 30;
const MAX_CACHE_BYTES_PER_WORKER = 7 * 2 ** 24;
/** Positions in a page of the key/value cache: a part of what the kernels sum at once. */
const PAGE = 32;
/** What all workers together keep of a forward pass for the backward; what does not fit is computed again. */
const ACTIVATION_BYTES = 5 * 2 ** 25;
/** The most for what the microbatches of a batch share. */
const TRUNK_BYTES = 2 ** 27;
const MAX_BYTES = 65_536 * 65_536;

interface ArenaPlan {
  readonly config: LlamaConfig;
  readonly layout: Layout;
  /** Adapters; undefined if all parameters are trained, or none. */
  readonly lora: LoraLayout | undefined;
  readonly use: 'sampling' | 'training';
  readonly threads: number;
  /** Room for two versions of what is served, so that publishing waits for no request; given up first if memory is short. */
  readonly overlap?: boolean | undefined;
}

export type Arena = Readonly<ReturnType<typeof layOut>>;
export type TrainRegions = NonNullable<Arena['workers'][number]['train']>;
export type DecodeRegions = Readonly<Arena['workers'][number]['decode']>;

type Use = 'weights' | 'adapters' | 'optimizer' | 'gradients' | 'reference' | 'key/value cache' | 'activations' | 'scratch';
type Allocate = (use: Use, floats: number) => number;

/**
 * Approximate rows per microbatch, without what it shares with others; one may be half a sequence longer, because it ends at the nearest
 * sequence end.
 */
const MICROBATCH_ROWS = 512;
/** With fewer, reading the weights takes a good part of the time. */
const FEWEST_ROWS = 128;

/**
 * Plans for as many of the threads as fit: results do not depend on them, so that more cores never mean a smaller model. Throws
 * MODEL_INVALID if the model does not fit into WASM's address space with one.
 */
export function planArena(plan: ArenaPlan): Arena {
  if (!Number.isSafeInteger(plan.threads) || plan.threads < 1) {
    throw new TrainyardError('USAGE', `threads is ${plan.threads}, expected a whole number of at least 1`);
  }
  const arena = layOut(plan);
  if (arena.pages * 65_536 <= MAX_BYTES) return arena;
  if (plan.overlap) return planArena({ ...plan, overlap: false });
  if (plan.threads === 1) throw tooLarge(arena, plan);
  return planArena({ ...plan, threads: plan.threads - 1 });
}

function layOut({ config, lora, layout, use, threads, overlap }: ArenaPlan) {
  const sizes: Partial<Record<Use, number>> = {};
  let end = ARENA_START;
  function allocate(use: Use, floats: number): number {
    const address = end;
    // Whole cache lines, so that threads never share one.
    const bytes = Math.max(1, Math.ceil((floats * 4) / 64)) * 64;
    end += bytes;
    sizes[use] = (sizes[use] ?? 0) + bytes;
    return address;
  }

  const trains = use === 'training';
  const isWhole = trains && lora === undefined;
  const trained: Flat | undefined = lora ?? (trains ? layout : undefined);
  // Parameters rounded up to whole vectors: the length of each flat buffer; the tail is always zero.
  const flatLength = Math.ceil((trained?.length ?? 0) / 4) * 4;
  const fitting = Math.floor(LANE_BYTES / (flatLength * 4 || 1));
  // Beside frozen weights, each lane also has a gradient of what all samples share.
  const lanes = lora === undefined ? Math.max(1, Math.min(MOST_LANES, fitting)) : Math.max(2, Math.min(4, fitting));
  const microbatchRows = planMicrobatchRows(config, lora);
  // The most rows, and targets, in one microbatch.
  const trainRows = Math.max(config.contextLength, microbatchRows.sharing + Math.ceil(config.contextLength / 2));
  const cache = planCache(config, threads);
  const flat = (use: Use, count = 1) => allocate(use, trains ? flatLength * count : 0);
  const served = planServed(config, allocate);
  const arena = {
    flatLength,
    lanes,
    /** What is trained: all parameters, or the adapters. */
    parameters: allocate(lora === undefined ? 'weights' : 'adapters', flatLength),
    firstMoments: flat('optimizer'),
    secondMoments: flat('optimizer'),
    /** `lanes` buffers, flatLength floats apart. */
    gradients: flat('gradients', lanes),
    reference: flat('reference'),
    trunk: planTrunk(config, trains && lora !== undefined ? lanes : 0, allocate),
    cosines: allocate('scratch', (config.contextLength * config.headDim) / 2),
    sines: allocate('scratch', (config.contextLength * config.headDim) / 2),
    staging: allocate('scratch', isWhole ? 0 : stagedFloats(config)),
    /** What requests read: one area for each version that can run at once. Frozen weights are the same in all, and training reads them. */
    areas: Array.from({ length: overlap ? 2 : 1 }, (_, area) => ({
      served: isWhole && area > 0 ? planServed(config, allocate) : served,
      adapters: lora?.layers.map((layer) => planAdapters(config, lora.rank, layer, allocate)),
    })),
    workers: Array.from({ length: threads }, () => ({
      gemmScratch: allocate('scratch', GEMM_SCRATCH),
      train: trains ? planTrain({ config, lora, rows: trainRows, threads }, allocate) : undefined,
      decode: planDecode(config, lora, cache, allocate),
    })),
    ...cache,
    microbatchRows,
    trainRows,
    sizes: sizes as Readonly<Partial<Record<Use, number>>>,
  };
  /** In pages of 64 KiB. */
  return { ...arena, pages: Math.ceil(end / 65_536) };
}

/**
 * Beside frozen weights, as many rows as keep all activations on two threads, with room for one that is longer. Samples that share a long
 * prompt come in larger microbatches, because each computes the prompt once.
 */
function planMicrobatchRows(config: LlamaConfig, lora: LoraLayout | undefined) {
  if (lora === undefined) return { usual: MICROBATCH_ROWS, sharing: MICROBATCH_ROWS };
  const fitting = ACTIVATION_BYTES / 2 / 4 / (config.layers * floatsOf(activationFloats(config, true).kept));
  return { usual: Math.max(FEWEST_ROWS, Math.min(MICROBATCH_ROWS, Math.floor(0.75 * fitting))), sharing: MICROBATCH_ROWS * 1.5 };
}

/** Keys and values of the positions that all samples of a batch begin with, and their gradient in each lane. */
function planTrunk(config: LlamaConfig, lanes: number, allocate: Allocate) {
  const { query, qkv } = widthsOf(config);
  const rowFloats = config.layers * (qkv - query);
  const rows = lanes === 0 ? 0 : Math.min(config.contextLength, Math.floor(TRUNK_BYTES / 4 / (rowFloats * (1 + lanes))));
  return { rows, address: allocate('activations', (1 + lanes) * rows * rowFloats) };
}

/** Such as "weights 0.5 GB, key/value cache 0.5 GB". What the machine gives is only what is touched. */
export function planText(sizes: Arena['sizes']): string {
  const shown = Object.entries(sizes).filter(([, bytes]) => bytes > 5e6);
  return shown.map(([use, bytes]) => `${use} ${(bytes / 1e9).toFixed(2)} GB`).join(', ');
}

function tooLarge({ sizes, pages }: Arena, { layout, lora, use, config }: ArenaPlan): TrainyardError {
  const way = use === 'sampling' ? 'sampling from' : lora === undefined ? 'training all parameters of' : 'training adapters of';
  const gib = (pages / 2 ** 14).toFixed(1);
  const found = `${way} a model with ${layout.length} parameters on one thread`;
  const { activations = 0, scratch = 0, 'key/value cache': cache = 0 } = sizes;
  const leavesRoom = (bytes: number) => bytes < 0.9 * MAX_BYTES;
  const isWhole = use === 'training' && lora === undefined;
  const ways = [
    ...(isWhole && leavesRoom(layout.length * 4) ? ['train adapters instead: --trained adapters'] : []),
    // What is left is as large for any context.
    ...(config.contextLength > 1024 && leavesRoom(pages * 65_536 - activations - scratch - cache)
      ? ['give --context 1024, or as much as the agent needs']
      : []),
  ];
  const hint = ways.join('; or ') || 'use a smaller model; larger ones belong on a Tinker server';
  return new TrainyardError(
    'MODEL_INVALID',
    `${found} needs ${gib} GiB, expected at most 4, which WebAssembly can address: ${planText(sizes)}`,
    hint,
  );
}

/** Pages of all layers' keys and values; a sequence has as many as its tokens need, and sequences with the same beginning share them. */
function planCache(config: LlamaConfig, threads: number) {
  const { contextLength, layers } = config;
  const page = contextLength <= PAGE ? padded(contextLength) : PAGE;
  const layerFloats = config.kvHeads * (keyFloats(page, config.headDim) + valueFloats(page, config.headDim));
  const pageFloats = layers * layerFloats;
  const pagesPerSlot = Math.ceil(contextLength / page);
  const bytes = Math.min(MAX_CACHE_BYTES_PER_WORKER, CACHE_BYTES / threads);
  // At least one sequence of full length, and another that begins.
  const pageCount = Math.max(pagesPerSlot + 1, Math.min(MAX_SLOTS * pagesPerSlot, Math.floor(bytes / (pageFloats * 4))));
  return { page, layerFloats, pageFloats, pagesPerSlot, pageCount, slotCount: Math.min(MAX_SLOTS, pageCount) };
}

function stagedFloats(config: LlamaConfig): number {
  const { hiddenSize, vocabSize } = config;
  const sizes = [...linearsOf(config), { inputs: hiddenSize, outputs: vocabSize }];
  return Math.max(...sizes.map(({ inputs, outputs }) => inputs * Math.min(STAGED_ROWS, outputs)));
}

function planServed(config: LlamaConfig, allocate: Allocate) {
  const { hiddenSize, vocabSize, family, headDim } = config;
  const { qkv } = widthsOf(config);
  const weights = (floats: number) => allocate('weights', floats);
  const linears = linearsOf(config);
  const packed = (wanted: LinearName) => {
    const { inputs, outputs } = linears.find(({ name }) => name === wanted)!;
    return weights(packedFloats(inputs, outputs));
  };
  return {
    /** If tied, the embedding is read from the head. */
    embedding: config.tied ? undefined : weights(vocabSize * hiddenSize),
    layers: Array.from({ length: config.layers }, () => ({
      inputNorm: weights(hiddenSize),
      qkv: packed('qkv'),
      qkvBias: family === 'qwen2' ? weights(qkv) : undefined,
      headNorms: family === 'qwen3' ? weights(2 * headDim) : undefined,
      attentionOut: packed('attentionOut'),
      postNorm: weights(hiddenSize),
      gateUp: packed('gateUp'),
      down: packed('down'),
    })),
    finalNorm: weights(hiddenSize),
    head: weights(packedFloats(hiddenSize, vocabSize)),
  };
}

/** The served adapters of one linear layer, packed: all A at once, and each B. */
interface ServedAdapters {
  readonly a: number;
  readonly b: readonly number[];
}

function planAdapters(config: LlamaConfig, rank: number, layer: Partial<Record<LinearName, Adapters>>, allocate: Allocate) {
  const regions: Partial<Record<LinearName, ServedAdapters>> = {};
  for (const { name, inputs } of linearsOf(config)) {
    const parts = layer[name];
    if (parts === undefined) continue;
    regions[name] = {
      a: allocate('adapters', packedFloats(inputs, parts.length * rank)),
      b: parts.map(({ outputs }) => allocate('adapters', packedFloats(rank, outputs))),
    };
  }
  return regions;
}

/** Floats per row of what a layer's backward needs, in this order; those after `input` may share one place and be computed again. */
export function activationFloats(config: LlamaConfig, isFrozen: boolean) {
  const { hiddenSize, intermediateSize, heads, kvHeads, family } = config;
  const { query, qkv } = widthsOf(config);
  const kept = {
    inputScale: 1,
    qkv,
    ...(family === 'qwen3' && { rawQkv: qkv, headScale: heads + kvHeads }),
    lse: heads,
    attention: query,
    middle: hiddenSize,
    postScale: 1,
    gateUp: 2 * intermediateSize,
  };
  const cheap = { inputNorm: hiddenSize, postNorm: hiddenSize, activated: intermediateSize };
  // With a frozen base, which is usually large, what is cheap to compute is not kept.
  return isFrozen ? { kept, shared: cheap } : { kept: { ...kept, ...cheap }, shared: {} };
}

/** In floats, of these parts for one row. */
export function floatsOf(parts: Readonly<Record<string, number>>): number {
  return Object.values(parts).reduce((sum, floats) => sum + floats, 0);
}

interface TrainPlan {
  readonly config: LlamaConfig;
  readonly lora: LoraLayout | undefined;
  readonly rows: number;
  readonly threads: number;
}

function planTrain({ config, lora, rows, threads }: TrainPlan, allocate: Allocate) {
  const { hiddenSize, intermediateSize, vocabSize, layers, heads, kvHeads, headDim } = config;
  const { query, qkv } = widthsOf(config);
  const scratch = (floats: number) => allocate('scratch', floats);
  const perRow = (floats: number) => scratch(rows * floats);
  // Logits are computed for some rows at a time: 16 MiB of them, but never fewer than 16 rows.
  const headRows = Math.max(16, Math.min(rows, Math.floor(2 ** 22 / vocabSize)));
  const { kept, shared } = activationFloats(config, lora !== undefined);
  // One layer always fits; each part of it begins on a cache line.
  const layerFloats = rows * floatsOf(kept) + 16 * Object.keys(kept).length;
  const activations = Math.max(layerFloats, Math.min(layers * layerFloats, Math.floor(ACTIVATION_BYTES / threads / 4)));
  const ranks = lora === undefined ? 0 : 3 * lora.rank;
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
    /** Inputs of all layers, and the last one's output. */
    inputs: Array.from({ length: layers + 1 }, () => allocate('activations', rows * hiddenSize)),
    activations: { address: allocate('activations', activations), floats: activations },
    /** For what is computed again in each layer. */
    shared: scratch(rows * floatsOf(shared) + 16 * Object.keys(shared).length),
    headInput: perRow(hiddenSize),
    headNorm: perRow(hiddenSize),
    headScale: perRow(1),
    headRows,
    logits: scratch(headRows * vocabSize),
    dHeadNorm: perRow(hiddenSize),
    dHeadInput: perRow(hiddenSize),
    dx: perRow(hiddenSize),
    dNorm: perRow(hiddenSize),
    dAttention: perRow(query),
    dQkv: perRow(qkv),
    dActivated: perRow(intermediateSize),
    dGateUp: perRow(2 * intermediateSize),
    /** A x of the adapters, and its gradient. */
    low: perRow(ranks),
    dLow: perRow(ranks),
    /** Gradients of frozen norms, which nobody wants; one row of all heads. */
    unused: scratch(Math.max(hiddenSize, headDim)),
    headRow: scratch(Math.max(heads, kvHeads) * headDim),
    attentionScratch: scratch(attentionScratchFloats(config.contextLength, headDim)),
  };
}

function planDecode(
  config: LlamaConfig,
  lora: LoraLayout | undefined,
  { slotCount, pagesPerSlot, pageCount, pageFloats }: ReturnType<typeof planCache>,
  allocate: Allocate,
) {
  const { hiddenSize, intermediateSize, vocabSize, heads } = config;
  const { query, qkv } = widthsOf(config);
  const scratch = (floats: number) => allocate('scratch', floats);
  const perRow = (floats: number) => scratch(DECODE_ROWS * floats);
  const perSlot = (floats: number) => scratch(slotCount * floats);
  return {
    tokens: perRow(1),
    positions: perRow(1),
    slots: perRow(1),
    headRows: perSlot(1),
    inverseTemperatures: perSlot(1),
    uniforms: perSlot(1),
    /** One row of the vocabulary. */
    weights: scratch(vocabSize),
    drawn: perSlot(1),
    logprobs: perSlot(1),
    x: perRow(hiddenSize),
    norm: perRow(hiddenSize),
    scale: perRow(heads),
    qkv: perRow(qkv),
    attention: perRow(Math.max(query, hiddenSize)),
    gateUp: perRow(2 * intermediateSize),
    activated: perRow(intermediateSize),
    low: perRow(lora === undefined ? 0 : 3 * lora.rank),
    scores: scratch(attendScratchFloats(config.contextLength, config.headDim)),
    logits: perSlot(vocabSize),
    /** Addresses of each slot's pages. */
    tables: perSlot(pagesPerSlot),
    pages: allocate('key/value cache', pageCount * pageFloats),
  };
}

// Sizes in floats that this layout assumes of the kernels. It is computed before any kernel is loaded; `wasm.ts` compares these with what
// the kernels report.

/** Columns of a tile; matrices that the kernels multiply by are padded to a multiple. */
const PANEL = 16;

export const GEMM_SCRATCH = 192 * 384 + 384 * 2048 + 8 * PANEL;

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
export function attendScratchFloats(context: number, headDim: number): number {
  return 6 * (padded(context) + PANEL) + padded(headDim);
}

/** For one path of the tree, forward or backward. */
export function attentionScratchFloats(context: number, headDim: number): number {
  const keys = keyFloats(context, headDim);
  const values = valueFloats(context, headDim);
  const backward = context + 2 * keys + 3 * values + 2 * 48 * padded(context);
  return Math.max(keys + values + attendScratchFloats(context, headDim), backward);
}
