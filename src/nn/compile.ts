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
  const kernels = compileMerged(variant) ?? compileAsWritten(variant);
  compiled.set(variant, kernels);
  return kernels;
}

export function compileAsWritten(variant: KernelVariant): CompiledKernels {
  return { variant, module: new WebAssembly.Module(readVariant(variant)), wide: false };
}

/** Undefined where V8 cannot, or gains nothing. */
export function compileMerged(variant: KernelVariant): CompiledKernels | undefined {
  const canMerge = process.arch === 'x64' && Number.parseInt(process.versions.v8, 10) >= FIRST_V8_WITH_MERGING;
  if (!canMerge) return undefined;
  const bytes = readVariant(variant);
  for (const flag of FLAGS) setFlagsFromString(`--${flag}`);
  let module: WebAssembly.Module;
  try {
    module = new WebAssembly.Module(bytes);
  } finally {
    for (const flag of FLAGS) setFlagsFromString(flag.startsWith('no-') ? `--${flag.slice(3)}` : `--no-${flag}`);
  }
  const [wide, narrow] = [trial({ module, wide: true }), trial({ module, wide: false })];
  const gains = wide.isRight && narrow.isRight && wide.seconds < narrow.seconds;
  return gains ? { variant, module, wide: true } : undefined;
}

/** Products of small whole numbers, which every order of summation gives exactly. */
function trial(kernels: Pick<CompiledKernels, 'module' | 'wide'>): { readonly isRight: boolean; readonly seconds: number } {
  const [M, N, K] = [20, 50, 270];
  const pages = Math.ceil((ARENA_START + (GEMM_SCRATCH + M * K + N * K + M * N) * 4) / 65_536);
  const memory = new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
  const loaded: Kernels = loadKernels(kernels, memory);
  loaded.setGemmScratch(ARENA_START);
  const [a, b, c] = [GEMM_SCRATCH, GEMM_SCRATCH + M * K, GEMM_SCRATCH + M * K + N * K].map((at) => ARENA_START + at * 4) as [
    number,
    number,
    number,
  ];
  const floats = (address: number, length: number) => new Float32Array(memory.buffer, address, length);
  const [left, right] = [floats(a, M * K), floats(b, N * K)];
  left.forEach((_, i) => {
    left[i] = (i % 13) - 6;
  });
  right.forEach((_, i) => {
    right[i] = (i % 11) - 5;
  });

  const product = () => loaded.gemm(M, N, K, a, K, 1, b, 1, K, c, N, 0);
  let seconds = Number.POSITIVE_INFINITY;
  for (let round = 0; round < 20; round++) {
    const start = performance.now();
    product();
    seconds = Math.min(seconds, (performance.now() - start) / 1000);
  }
  const isRight = floats(c, M * N).every((value, at) => {
    const [i, j] = [Math.floor(at / N), at % N];
    let sum = 0;
    for (let k = 0; k < K; k++) sum += left[i * K + k]! * right[j * K + k]!;
    return value === sum;
  });
  return { isRight, seconds };
}

function readVariant(variant: KernelVariant): Uint8Array<ArrayBuffer> {
  return new Uint8Array(readFileSync(new URL(`./kernels/${variant}.wasm`, import.meta.url)));
}
