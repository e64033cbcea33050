/**
 * Builds the WASM kernels from AssemblyScript: `relaxed.wasm` with fused multiply-add, `plain.wasm` without, from one source.
 *
 * Both files are committed, so that installing needs no compiler. With `--check` nothing is written: the sources are built
 * into a temporary folder and compared byte by byte with what is committed; a difference is exit code 1.
 */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import asc from 'assemblyscript/asc';

const root = fileURLToPath(new URL('..', import.meta.url));
const kernels = join(root, 'src/engines/embedded/kernels');

const VARIANTS = { relaxed: ['--enable', 'relaxed-simd'], plain: [] } as const;
const OPTIONS = ['-O3', '--noAssert', '--runtime', 'stub', '--importMemory', '--sharedMemory', '--maximumMemory', '65536'];
const FEATURES = ['--enable', 'simd', '--enable', 'threads'];

async function build(variant: keyof typeof VARIANTS, folder: string): Promise<string> {
  const file = join(folder, `${variant}.wasm`);
  const args = [join(kernels, 'index.ts'), '-o', file, ...OPTIONS, ...FEATURES, ...VARIANTS[variant]];
  const { error, stderr } = await asc.main(args);
  if (error) throw new Error(`${variant}.wasm did not build:\n${stderr.toString()}`, { cause: error });
  return file;
}

async function check(): Promise<boolean> {
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-kernels-'));
  try {
    let same = true;
    for (const variant of ['relaxed', 'plain'] as const) {
      const built = await readFile(await build(variant, folder));
      const committed = await readFile(join(kernels, `${variant}.wasm`)).catch(() => Buffer.alloc(0));
      const equal = built.equals(committed);
      same &&= equal;
      const verdict = equal ? 'is up to date' : `differs from its sources (${committed.length} bytes, expected ${built.length})`;
      console.log(`src/engines/embedded/kernels/${variant}.wasm ${verdict}`);
    }
    return same;
  } finally {
    await rm(folder, { recursive: true });
  }
}

if (process.argv.includes('--check')) {
  if (!(await check())) {
    console.error('run `node scripts/build-kernels.ts` and commit the result');
    process.exitCode = 1;
  }
} else {
  for (const variant of ['relaxed', 'plain'] as const) console.log(await build(variant, kernels));
}
