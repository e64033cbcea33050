import { execFileSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { relativeError } from '../../../test/fixtures/nn/models.ts';
import { ARENA_START, attentionScratchFloats, GEMM_SCRATCH } from './arena.ts';
import { compileAsWritten, compileKernels, compileMerged, traceOfKernels } from './compile.ts';
import { gaussian, randomStream } from './random.ts';
import { type CompiledKernels, type Kernels, loadKernels } from './wasm.ts';

const GUARD = 12_345;

/** Kernels over a fresh memory, and a bump allocator that leaves a guard float after each array. */
function bench(compiled: CompiledKernels) {
  const memory = new WebAssembly.Memory({ initial: 1600, maximum: 1600, shared: true });
  const kernels: Kernels = loadKernels(compiled, memory);
  kernels.setGemmScratch(ARENA_START);
  let end = ARENA_START + GEMM_SCRATCH * 4;
  const guards: number[] = [];
  function place(values: ArrayLike<number>): number {
    const address = end;
    const view = new Float32Array(memory.buffer, address, values.length + 1);
    view.set(values);
    view[values.length] = GUARD;
    guards.push(address + values.length * 4);
    end = address + (values.length + 1) * 4;
    return address;
  }
  const read = (address: number, length: number) => new Float32Array(memory.buffer, address, length).slice();
  const intact = () => guards.every((guard) => read(guard, 1)[0] === GUARD);
  return { kernels, place, read, intact };
}

function randomValues(length: number, seed: number): Float32Array {
  const random = randomStream(seed);
  return Float32Array.from({ length }, () => gaussian(random));
}

function product(
  M: number,
  N: number,
  K: number,
  a: (i: number, k: number) => number,
  b: (k: number, j: number) => number,
): Float64Array {
  const c = new Float64Array(M * N);
  for (let i = 0; i < M; i++) {
    for (let k = 0; k < K; k++) {
      for (let j = 0; j < N; j++) c[i * N + j]! += a(i, k) * b(k, j);
    }
  }
  return c;
}

/** Around every block size of the product: 6 and 192 rows, 16 and 2048 columns, a depth of 256. */
const SIZES = [
  [1, 1, 1],
  [5, 7, 3],
  [6, 8, 4],
  [7, 9, 5],
  [13, 17, 257],
  [193, 15, 31],
  [200, 64, 300],
  [3, 2051, 9],
  [2, 2060, 260],
] as const;

describe.each(['relaxed', 'plain'] as const)('the %s matrix product', (variant) => {
  it.each(SIZES)('is right for %d×%d×%d, with every orientation of its operands, and stays within its arrays', (M, N, K) => {
    const { kernels, place, read, intact } = bench(compileKernels(variant));
    const [aValues, bValues, start] = [randomValues(M * K, 1), randomValues(K * N, 2), randomValues(M * N, 3)];
    const [a, b] = [place(aValues), place(bValues)];
    for (const [aRow, aColumn] of [
      [K, 1],
      [1, M],
    ] as const) {
      for (const [bRow, bColumn] of [
        [N, 1],
        [1, K],
      ] as const) {
        const wanted = product(
          M,
          N,
          K,
          (i, k) => aValues[i * aRow + k * aColumn]!,
          (k, j) => bValues[k * bRow + j * bColumn]!,
        );
        const c = place(start);
        kernels.gemm(M, N, K, a, aRow, aColumn, b, bRow, bColumn, c, N, 0);
        expect(relativeError(read(c, M * N), wanted)).toBeLessThan(2e-6);
        const added = place(start);
        kernels.gemm(M, N, K, a, aRow, aColumn, b, bRow, bColumn, added, N, 1);
        expect(
          relativeError(
            read(added, M * N),
            wanted.map((value, i) => value + start[i]!),
          ),
        ).toBeLessThan(2e-6);
      }
    }
    expect(intact()).toBe(true);
  });

  it.each(SIZES)('gives the same bits for %d×%d×%d with B packed beforehand, and for each row alone', (M, N, K) => {
    const { kernels, place, read, intact } = bench(compileKernels(variant));
    const [a, b] = [place(randomValues(M * K, 1)), place(randomValues(K * N, 2))];
    const whole = place(new Float32Array(M * N));
    const packed = place(new Float32Array(K * Math.ceil(N / 16) * 16));
    const byPacked = place(new Float32Array(M * N));
    const row = place(new Float32Array(N));
    kernels.gemm(M, N, K, a, K, 1, b, 1, K, whole, N, 0);
    kernels.packMatrix(b, 1, K, K, N, packed);
    kernels.gemmPacked(M, N, K, a, K, packed, byPacked, N, 0);
    expect(read(byPacked, M * N)).toEqual(read(whole, M * N));
    for (const i of [0, M >> 1, M - 1]) {
      kernels.gemmPacked(1, N, K, a + i * K * 4, K, packed, row, N, 0);
      expect(read(row, N)).toEqual(read(whole + i * N * 4, N));
    }
    expect(intact()).toBe(true);
  });

  it.each([...SIZES, [5, 2100, 410] as const])(
    'is right for %d×%d×%d the way back through a packed B, and finds its columns',
    (M, N, K) => {
      const { kernels, place, read, intact } = bench(compileKernels(variant));
      // Rows further apart than they are wide, and something in between that must stay.
      const [aRow, cRow] = [N + 3, K + 5];
      const [aValues, bValues, start] = [randomValues(M * aRow, 1), randomValues(K * N, 2), randomValues(M * cRow, 3)];
      const [a, b] = [place(aValues), place(bValues)];
      const packed = place(new Float32Array(K * Math.ceil(N / 16) * 16));
      kernels.packMatrix(b, 1, K, K, N, packed);
      const at = (i: number, n: number) => aValues[i * aRow + n]!;
      const wanted = product(M, K, N, at, (n, k) => bValues[n * K + k]!);
      for (const accumulate of [0, 1] as const) {
        const c = place(start);
        kernels.gemmPackedTransposed(M, N, K, a, aRow, packed, c, cRow, accumulate);
        const found = read(c, M * cRow);
        const expected = Float64Array.from(start, (before, i) => {
          const [row, k] = [Math.floor(i / cRow), i % cRow];
          return k < K ? wanted[row * K + k]! + accumulate * before : before;
        });
        expect(relativeError(found, expected)).toBeLessThan(2e-6);
        expect(found.filter((_, i) => i % cRow >= K)).toEqual(start.filter((_, i) => i % cRow >= K));
      }
      const indices = Int32Array.from([0, N - 1, N >> 1, N - 1]);
      const columns = place(new Float32Array(4 * K));
      kernels.gatherPacked(packed, K, N, place(new Float32Array(indices.buffer)), 4, columns);
      expect(read(columns, 4 * K)).toEqual(
        Float32Array.from([...indices].flatMap((n) => [...bValues.subarray(n * K, (n + 1) * K)])),
      );
      expect(intact()).toBe(true);
    },
  );
});

const MERGES = compileMerged('plain') !== undefined;

describe('compiling in both ways', () => {
  /** Whether V8's optimising compiler made the merged product and the one as written, before either is called, in a process of its own. */
  function optimised(first: 'merged' | 'written'): unknown {
    const compile = ["const merged = compileMerged('plain')", "const written = compileAsWritten('plain').module"];
    const script = `
      import { compileAsWritten, compileMerged } from ${JSON.stringify(new URL('./compile.ts', import.meta.url).href)};
      ${(first === 'merged' ? compile : compile.toReversed()).join(';\n')};
      const memory = new WebAssembly.Memory({ initial: 64, maximum: 64, shared: true });
      const isOptimised = (module) => %IsTurboFanFunction(new WebAssembly.Instance(module, { env: { memory } }).exports.gemm);
      console.log(JSON.stringify({ merged: isOptimised(merged), written: isOptimised(written) }));`;
    const flags = ['--conditions=trainyard-source', '--allow-natives-syntax', '--input-type=module'];
    return JSON.parse(execFileSync(process.execPath, [...flags, '-e', script], { encoding: 'utf8' }));
  }

  it.runIf(MERGES).each(['merged', 'written'] as const)('gives each its own code when the %s one comes first', (first) => {
    // Merged code is optimised at once; what is compiled as written waits for its first calls.
    expect(optimised(first)).toEqual({ merged: true, written: false });
  });

  it.runIf(MERGES)('merges the sums of a tile, which all the speed of products rests on', () => {
    const compile = `(await import(${JSON.stringify(new URL('./compile.ts', import.meta.url).href)})).compileMerged('relaxed')`;
    const flags = ['--conditions=trainyard-source', '--trace-wasm-revectorize', '--input-type=module'];
    const trace = execFileSync(process.execPath, [...flags, '-e', compile], { encoding: 'utf8', maxBuffer: 2 ** 26 });
    // What goes round a loop, in pairs: two for each of six rows.
    const sums = trace.match(/: Phi\(#\d+, #\d+\)/g) ?? [];
    expect(sums.length).toBeGreaterThanOrEqual(12);
  });

  it.runIf(MERGES)('makes modules of different bytes', () => {
    const marks = (module: WebAssembly.Module) => WebAssembly.Module.customSections(module, 'merged').length;
    expect([marks(compileMerged('plain')!), marks(compileAsWritten('plain').module)]).toEqual([1, 0]);
  });

  it.runIf(MERGES)('leaves the same trace of all kernels, another than other arithmetic does', () => {
    const trace = (variant: 'relaxed' | 'plain') => traceOfKernels({ ...compileAsWritten(variant), wide: true });
    for (const variant of ['relaxed', 'plain'] as const) {
      expect(traceOfKernels({ module: compileMerged(variant)!, wide: true }).equals(trace(variant))).toBe(true);
    }
    expect(trace('relaxed').equals(trace('plain'))).toBe(false);
  });
});

describe.each(['relaxed', 'plain'] as const)('the %s AdamW', (variant) => {
  it('tells new weights that are not finite from finite ones, wherever they lie', () => {
    const step = (weights: readonly number[], gradient: readonly number[]) => {
      const { kernels, place } = bench(compileKernels(variant));
      const [p, g, m, v] = [weights, gradient, new Float32Array(8), new Float32Array(8)].map((values) => place(values)) as [
        number,
        number,
        number,
        number,
      ];
      return kernels.adamW(p, g, m, v, 0, 8, 1e38, 0.9, 0.98, 1e-8, 0, 0.1, 0.02, 1);
    };
    const at = (index: number, value: number) => Array.from({ length: 8 }, (_, i) => (i === index ? value : 0));
    for (let i = 0; i < 8; i++) {
      expect(step(at(i, 2e38), at(i, 1))).toBe(0);
      expect(step(at(i, -3e38), at(i, 1))).toBeNaN();
      expect(step(at(i, 3e38), at(i, -1))).toBeNaN();
      expect(step(at(i, Number.NaN), at(i, 0))).toBeNaN();
    }
  });
});

describe.each(['relaxed', 'plain'] as const)('the %s kernels with merged vector operations', (variant) => {
  const written = compileAsWritten(variant);
  const merged = compileMerged(variant) ?? written.module;
  const ways = [
    written,
    { ...written, wide: true },
    { variant, module: merged, wide: true },
    { variant, module: merged, wide: false },
  ];

  /** What a kernel leaves in `out`, each way. */
  function outputs(length: number, run: (kernels: Kernels, place: (values: ArrayLike<number>) => number, out: number) => void) {
    return ways.map((compiled) => {
      const { kernels, place, read } = bench(compiled);
      const out = place(new Float32Array(length));
      run(kernels, place, out);
      return read(out, length);
    });
  }
  const expectSame = (found: Float32Array[]) => {
    expect(found[0]!.some((value) => value !== 0)).toBe(true);
    for (const other of found) expect(other).toEqual(found[0]);
  };

  it('multiply to the same bits', () => {
    for (const [M, N, K] of SIZES) {
      expectSame(
        outputs(M * N, (kernels, place, c) => {
          const [a, b] = [place(randomValues(M * K, 1)), place(randomValues(K * N, 2))];
          kernels.gemm(M, N, K, a, K, 1, b, 1, K, c, N, 0);
          kernels.gemm(M, N, K, a, 1, M, b, N, 1, c, N, 1);
        }),
      );
    }
  });

  it('attend and go back to the same bits', () => {
    const [heads, kvHeads, headDim, rows, context] = [4, 2, 20, 131, 128];
    const width = (heads + 2 * kvHeads) * headDim;
    expectSame(
      outputs(rows * width, (kernels, place, dQkv) => {
        const segments = Int32Array.of(0, 0, 70, 70, 33, 60, 130, 90, 1);
        const qkv = place(randomValues(rows * width, 1));
        const tree = place(new Float32Array(segments.buffer));
        const [out, lse] = [place(new Float32Array(rows * heads * headDim)), place(new Float32Array(rows * heads))];
        const scratch = place(new Float32Array(attentionScratchFloats(context, headDim)));
        const shape = [heads, kvHeads, headDim] as const;
        kernels.attentionForward(qkv, width, tree, 3, context, 0, 0, ...shape, out, lse, scratch);
        kernels.attentionBackward(qkv, width, tree, 3, context, 0, 0, ...shape, lse, out, dQkv, 0, scratch);
      }),
    );
  });
});
