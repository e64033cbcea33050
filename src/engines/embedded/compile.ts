/**
 * Compiles the kernels once per process, in the faster of two ways. V8 can merge neighbouring 128-bit operations of a module into 256-bit
 * ones, behind an experimental flag, which is set only while our own module is compiled. Tested with V8 13.6; on any version from 13 on,
 * merged code is used only if it passes a trial at start: it must multiply correctly, leave the same bytes as unmerged code, kernel by
 * kernel, and be faster. Both ways compute the same bits, so the choice never shows in a result.
 */
import { readFileSync } from 'node:fs';
import { setFlagsFromString } from 'node:v8';
import {
  ARENA_START,
  attendScratchFloats,
  attentionScratchFloats,
  GEMM_SCRATCH,
  keyFloats,
  packedFloats,
  valueFloats,
} from './arena.ts';
import { type CompiledKernels, type Kernels, type KernelVariant, loadKernels } from './wasm.ts';

const FIRST_V8_WITH_MERGING = 13;
/** Compiles everything eagerly and optimised, so that nothing is compiled after the flags are reset. */
const FLAGS = ['experimental-wasm-revectorize', 'no-liftoff', 'no-wasm-lazy-compilation'];
/**
 * A custom section that says "merged". V8 caches compiled code by the module's bytes, whatever the flags: without the section, the second
 * compilation would get the first one's code.
 */
const MARK = [0, 7, 6, ...Buffer.from('merged')];

const compiled = new Map<KernelVariant, CompiledKernels>();

/** Whether this machine accepts the build. */
export function isRunnable(variant: KernelVariant): boolean {
  return WebAssembly.validate(readVariant(variant));
}

/** The fastest build that this machine accepts. */
export function bestVariant(): KernelVariant {
  return isRunnable('relaxed') ? 'relaxed' : 'plain';
}

export function compileKernels(variant: KernelVariant): CompiledKernels {
  const known = compiled.get(variant);
  if (known !== undefined) return known;
  const kernels = compileFaster(variant) ?? compileAsWritten(variant);
  compiled.set(variant, kernels);
  return kernels;
}

export function compileAsWritten(variant: KernelVariant): CompiledKernels {
  return { variant, module: new WebAssembly.Module(readVariant(variant)), wide: false };
}

/** With merged vector operations, if V8 supports it and the result is correct and faster. */
function compileFaster(variant: KernelVariant): CompiledKernels | undefined {
  const module = compileMerged(variant);
  if (module === undefined) return undefined;
  const merged: CompiledKernels = { variant, module, wide: true };
  const wide = productTrial(merged);
  const narrow = productTrial({ module, wide: false });
  if (!wide.isRight() || !narrow.isRight()) return undefined;
  const written: CompiledKernels = { ...compileAsWritten(variant), wide: true };
  if (!traceOfKernels(merged).equals(traceOfKernels(written))) return undefined;
  let fastestWide = Number.POSITIVE_INFINITY;
  let fastestNarrow = Number.POSITIVE_INFINITY;
  // The wide tile is faster only if its operations were merged. The two alternate, so that other load slows both; takes 1 to 2 ms.
  for (let round = 0; round < 50; round++) {
    fastestWide = Math.min(fastestWide, wide.time());
    fastestNarrow = Math.min(fastestNarrow, narrow.time());
  }
  return fastestWide < fastestNarrow ? merged : undefined;
}

/** Undefined if V8 does not support it or the user disabled it. */
export function compileMerged(variant: KernelVariant): WebAssembly.Module | undefined {
  const canMerge = process.arch === 'x64' && Number.parseInt(process.versions.v8, 10) >= FIRST_V8_WITH_MERGING;
  if (!canMerge || process.env['TRAINYARD_WIDE'] === '0') return undefined;
  const bytes = Uint8Array.of(...readVariant(variant), ...MARK);
  for (const flag of FLAGS) setFlagsFromString(`--${flag}`);
  try {
    return new WebAssembly.Module(bytes);
  } finally {
    for (const flag of FLAGS) setFlagsFromString(flag.startsWith('no-') ? `--${flag.slice(3)}` : `--no-${flag}`);
  }
}

function readVariant(variant: KernelVariant): Uint8Array<ArrayBuffer> {
  return new Uint8Array(readFileSync(new URL(`./kernels/${variant}.wasm`, import.meta.url)));
}

// The trial of merged kernels: small products against plain arithmetic, and every computing kernel against its unmerged build. Takes
// milliseconds.

/** Products of small integers, which are exact in every order of summation. */
function productTrial(kernels: Pick<CompiledKernels, 'module' | 'wide'>) {
  const M = 45;
  const N = 50;
  const K = 270;
  const floats = [GEMM_SCRATCH, M * K, N * K, M * N];
  const [scratch, a, b, c] = floats.map((_, i) => ARENA_START + 4 * floats.slice(0, i).reduce((sum, n) => sum + n, 0)) as [
    number,
    number,
    number,
    number,
  ];
  const pages = Math.ceil((c + M * N * 4) / 65_536);
  const memory = new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
  const loaded: Kernels = loadKernels(kernels, memory);
  loaded.setGemmScratch(scratch);
  const left = new Float32Array(memory.buffer, a, M * K);
  const right = new Float32Array(memory.buffer, b, N * K);
  left.set(left.map((_, i) => (i % 13) - 6));
  right.set(right.map((_, i) => (i % 11) - 5));
  const multiply = () => loaded.gemm(M, N, K, a, K, 1, b, 1, K, c, N, 0);

  function isRight(): boolean {
    multiply();
    return new Float32Array(memory.buffer, c, M * N).every((value, at) => {
      const i = Math.floor(at / N);
      const j = at % N;
      let sum = 0;
      for (let k = 0; k < K; k++) sum += left[i * K + k]! * right[j * K + k]!;
      return value === sum;
    });
  }
  function time(): number {
    const start = performance.now();
    multiply();
    return performance.now() - start;
  }
  return { isRight, time };
}

/** Sizes that leave a remainder in every tile and vector. */
const ROWS = 13;
const WIDTH = 37;
const CONTEXT = 40;
const HEADS = 2;
const HEAD_DIM = 20;
const QKV = 4 * HEAD_DIM;
const PAGE = 48;

/** All inputs and outputs after every vector kernel ran once. Two equivalent compilations leave equal bytes if `wide` is the same. */
export function traceOfKernels(compiled: Pick<CompiledKernels, 'module' | 'wide'>): Buffer {
  const memory = new WebAssembly.Memory({ initial: 64, maximum: 64, shared: true });
  const kernels = loadKernels(compiled, memory);
  const start = ARENA_START + GEMM_SCRATCH * 4;
  let end = start;
  const place = (length: number, value?: (i: number) => number): number => {
    const address = end;
    const floats = new Float32Array(memory.buffer, address, length);
    if (value !== undefined) for (let i = 0; i < length; i++) floats[i] = value(i);
    end += length * 4;
    return address;
  };
  const integers = (...values: number[]) => {
    const address = place(values.length);
    new Int32Array(memory.buffer, address).set(values);
    return address;
  };
  kernels.setGemmScratch(ARENA_START);
  multiplyAndTrain(kernels, place, integers);
  attendBothWays(kernels, place, integers);
  return Buffer.from(memory.buffer, start, end - start);
}

type Place = (length: number, value?: (i: number) => number) => number;
type PlaceIntegers = (...values: number[]) => number;

/** Between −1 and 1, with a period that matches no tile. */
const varied = (i: number) => ((i * 7919) % 1009) / 504.5 - 1;

function multiplyAndTrain(kernels: Kernels, place: Place, integers: PlaceIntegers): void {
  const size = ROWS * WIDTH;
  const x = place(size, varied);
  const weights = place(WIDTH * WIDTH, varied);
  const gateUp = place(2 * size, varied);
  const gain = place(WIDTH, varied);
  const ones = place(ROWS, () => 1);
  const y = place(size);
  const inverse = place(ROWS);
  const packed = place(packedFloats(WIDTH, WIDTH));
  const logprobs = place(ROWS);
  const dGateUp = place(2 * size);
  const dx = place(size);
  const sums = place(ROWS);
  const drawn = place(ROWS);
  kernels.rmsNorm(x, gain, y, inverse, ROWS, WIDTH, 1e-5);
  kernels.packMatrix(weights, 1, WIDTH, WIDTH, WIDTH, packed);
  kernels.gemmPacked(ROWS, WIDTH, WIDTH, y, WIDTH, packed, x, WIDTH, 1);
  kernels.gemmPackedTransposed(ROWS, WIDTH, WIDTH, x, WIDTH, packed, y, WIDTH, 0);
  kernels.addToRows(y, gain, ROWS, WIDTH);
  kernels.sumRows(y, gain, ROWS, WIDTH);
  kernels.scaleFloats(y, 0.1, ROWS * WIDTH);
  kernels.gemm(WIDTH, WIDTH, ROWS, x, 1, WIDTH, y, WIDTH, 1, weights, WIDTH, 1);
  kernels.swiglu(gateUp, y, ROWS, WIDTH);
  kernels.swigluBackward(gateUp, y, dGateUp, ROWS, WIDTH);
  kernels.rmsNormBackward(x, gain, inverse, y, dx, gain, ROWS, WIDTH);
  const targets = integers(...Array.from({ length: ROWS }, (_, r) => 2 * r));
  kernels.scatterAddRows(dGateUp, targets, ROWS, WIDTH, y);
  kernels.drawTokens(x, ROWS, WIDTH, ones, inverse, place(WIDTH), drawn, sums);
  kernels.logProbabilities(x, ROWS, WIDTH, targets, ones, logprobs, sums);
  kernels.logProbabilitiesBackward(x, ROWS, WIDTH, targets, ones, logprobs, sums);
  const flat = size - (size % 4);
  place(1, () => kernels.sumLanes(dGateUp, size, 2, 0, flat));
  const m = place(size);
  const v = place(size);
  place(1, () => kernels.adamW(y, dGateUp, m, v, 0, flat, 0.01, 0.9, 0.98, 1e-8, 0.1, 0.1, 0.02, 0.5));
}

function attendBothWays(kernels: Kernels, place: Place, integers: PlaceIntegers): void {
  const qkv = place(CONTEXT * QKV, varied);
  const out = place(CONTEXT * HEADS * HEAD_DIM);
  const lse = place(CONTEXT * HEADS);
  const dQkv = place(CONTEXT * QKV);
  const page = place(keyFloats(PAGE, HEAD_DIM) + valueFloats(PAGE, HEAD_DIM));
  const scratch = place(attentionScratchFloats(CONTEXT, HEAD_DIM));
  const scores = place(attendScratchFloats(CONTEXT, HEAD_DIM));
  const angles = place(CONTEXT * HEAD_DIM, varied);
  const positions = integers(...Array(CONTEXT).keys());
  const slots = place(CONTEXT);
  const segments = integers(0, 0, 25, 25, 11, 15);
  const shape = [HEADS, 1, HEAD_DIM] as const;
  kernels.rope(qkv, CONTEXT, QKV, HEADS + 1, HEAD_DIM, positions, angles, angles, 1);
  // A tree of its own, then one that stands on a trunk.
  const standing = integers(0, 11, 25);
  const trees: readonly (readonly [number, number, number, number, number])[] = [
    [segments, 2, CONTEXT, 0, 0],
    [standing, 1, CONTEXT, place(22 * HEAD_DIM, varied), 11],
  ];
  for (const tree of trees) {
    kernels.attentionForward(qkv, QKV, ...tree, ...shape, out, lse, scratch);
    kernels.attentionBackward(qkv, QKV, ...tree, ...shape, lse, out, dQkv, place(22 * HEAD_DIM), scratch);
  }
  const tables = integers(page);
  kernels.storeCacheRows(qkv + HEADS * HEAD_DIM * 4, QKV, CONTEXT, slots, positions, tables, 1, 0, PAGE, 1, HEAD_DIM);
  // Several rows at once, then one alone: the two ways to attend.
  kernels.cachedAttention(qkv, QKV, CONTEXT, slots, positions, tables, 1, 0, PAGE, ...shape, out, scores);
  const last = CONTEXT - 1;
  kernels.cachedAttention(qkv, QKV, 1, slots, positions + last * 4, tables, 1, 0, PAGE, ...shape, lse, scores);
  kernels.headNorm(qkv, QKV, angles, qkv, QKV, lse, CONTEXT, HEADS, HEAD_DIM, 1e-5);
  kernels.headNormBackward(qkv, QKV, angles, lse, dQkv, QKV, angles, CONTEXT, HEADS, HEAD_DIM, scratch);
}
