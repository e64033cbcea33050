/**
 * Compiles the kernels once per process, in the faster of two ways.
 *
 * V8 can merge neighbouring 128-bit operations of a module into 256-bit ones, behind a flag it calls experimental. The flag is set only
 * while our own module is compiled, and only for V8 versions it was tried with; the merged code must then multiply small matrices
 * without a mistake and be faster, or it is not used. Both ways compute the same bits: which one was chosen is no part of any result.
 */
import { readFileSync } from 'node:fs';
import { setFlagsFromString } from 'node:v8';
import { ARENA_START } from './arena.ts';
import { GEMM_SCRATCH } from './kernel-sizes.ts';
import { type CompiledKernels, type Kernels, type KernelVariant, loadKernels } from './wasm.ts';

const FIRST_V8_WITH_MERGING = 13;
/** All at once and optimised, so that nothing of the module is compiled after the flags were put back. */
const FLAGS = ['experimental-wasm-revectorize', 'no-liftoff', 'no-wasm-lazy-compilation'];

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

/** With merged vector operations, where V8 can and it is right and gains something. */
function compileFaster(variant: KernelVariant): CompiledKernels | undefined {
  const module = compileMerged(variant);
  if (module === undefined) return undefined;
  const [wide, narrow] = [trial({ module, wide: true }), trial({ module, wide: false })];
  if (!wide.isRight() || !narrow.isRight()) return undefined;
  let [fastestWide, fastestNarrow] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
  // In turn, so that whatever else the machine does slows both; a millisecond or two in all.
  for (let round = 0; round < 50; round++) {
    fastestWide = Math.min(fastestWide, wide.time());
    fastestNarrow = Math.min(fastestNarrow, narrow.time());
  }
  return fastestWide < fastestNarrow ? { variant, module, wide: true } : undefined;
}

/** Undefined where V8 cannot, or where the user would rather not. */
export function compileMerged(variant: KernelVariant): WebAssembly.Module | undefined {
  const canMerge = process.arch === 'x64' && Number.parseInt(process.versions.v8, 10) >= FIRST_V8_WITH_MERGING;
  if (!canMerge || process.env['TRAINYARD_WIDE'] === '0') return undefined;
  const bytes = readVariant(variant);
  for (const flag of FLAGS) setFlagsFromString(`--${flag}`);
  try {
    return new WebAssembly.Module(bytes);
  } finally {
    for (const flag of FLAGS) setFlagsFromString(flag.startsWith('no-') ? `--${flag.slice(3)}` : `--no-${flag}`);
  }
}

/** Products of small whole numbers, which every order of summation gives exactly. */
function trial(kernels: Pick<CompiledKernels, 'module' | 'wide'>) {
  const [M, N, K] = [45, 50, 270];
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
      const [i, j] = [Math.floor(at / N), at % N];
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

function readVariant(variant: KernelVariant): Uint8Array<ArrayBuffer> {
  return new Uint8Array(readFileSync(new URL(`./kernels/${variant}.wasm`, import.meta.url)));
}
