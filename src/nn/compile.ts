/**
 * Compiles the kernels once per process, in the faster of two ways.
 *
 * V8 can merge neighbouring 128-bit operations of a module into 256-bit ones, behind a flag it calls experimental. The flag is set only
 * while our own module is compiled. Our tests ran it with V8 13.6; on any version from 13 on, merged code is used only after a trial at
 * start: it must multiply without a mistake, leave the same bytes as the code as written, kernel by kernel, and be faster. Both ways
 * compute the same bits: which one was chosen is no part of any result.
 */
import { readFileSync } from 'node:fs';
import { setFlagsFromString } from 'node:v8';
import { productTrial, traceOfKernels } from './trial.ts';
import type { CompiledKernels, KernelVariant } from './wasm.ts';

const FIRST_V8_WITH_MERGING = 13;
/** All at once and optimised, so that nothing of the module is compiled after the flags were put back. */
const FLAGS = ['experimental-wasm-revectorize', 'no-liftoff', 'no-wasm-lazy-compilation'];
/**
 * A custom section that says "merged". V8 keeps compiled code by the bytes of its module, whatever the flags were: without it, the second
 * way to be compiled would get the first one's code.
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

/** With merged vector operations, where V8 can and it is right and gains something. */
function compileFaster(variant: KernelVariant): CompiledKernels | undefined {
  const module = compileMerged(variant);
  if (module === undefined) return undefined;
  const merged: CompiledKernels = { variant, module, wide: true };
  const [wide, narrow] = [productTrial(merged), productTrial({ module, wide: false })];
  if (!wide.isRight() || !narrow.isRight()) return undefined;
  const written: CompiledKernels = { ...compileAsWritten(variant), wide: true };
  if (!traceOfKernels(merged).equals(traceOfKernels(written))) return undefined;
  let [fastestWide, fastestNarrow] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
  // The wide tile gains only if its operations were merged. In turn, so that whatever else the machine does slows both; a millisecond
  // or two in all.
  for (let round = 0; round < 50; round++) {
    fastestWide = Math.min(fastestWide, wide.time());
    fastestNarrow = Math.min(fastestNarrow, narrow.time());
  }
  return fastestWide < fastestNarrow ? merged : undefined;
}

/** Undefined where V8 cannot, or where the user would rather not. */
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
