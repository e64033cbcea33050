import { describe, expect, it } from 'vitest';
import { relativeError } from '../../test/fixtures/nn/models.ts';
import { ARENA_START } from './arena.ts';
import { compileKernels } from './compile.ts';
import { GEMM_SCRATCH } from './kernel-sizes.ts';
import { gaussian, randomStream } from './random.ts';
import { type Kernels, loadKernels } from './wasm.ts';

const GUARD = 12_345;

/** Kernels over a fresh memory, and a bump allocator that leaves a guard float after each array. */
function bench(variant: 'relaxed' | 'plain') {
  const memory = new WebAssembly.Memory({ initial: 1600, maximum: 1600, shared: true });
  const kernels: Kernels = loadKernels(compileKernels(variant), memory);
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
    const { kernels, place, read, intact } = bench(variant);
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
    const { kernels, place, read, intact } = bench(variant);
    const [a, b] = [place(randomValues(M * K, 1)), place(randomValues(K * N, 2))];
    const whole = place(new Float32Array(M * N));
    const packed = place(new Float32Array(K * Math.ceil(N / 16) * 16));
    const byPacked = place(new Float32Array(M * N));
    const row = place(new Float32Array(N));
    kernels.gemm(M, N, K, a, K, 1, b, 1, K, whole, N, 0);
    kernels.packMatrix(b, 1, K, K, N, packed);
    kernels.gemmPacked(M, N, K, a, packed, byPacked, 0);
    expect(read(byPacked, M * N)).toEqual(read(whole, M * N));
    for (const i of [0, M >> 1, M - 1]) {
      kernels.gemmPacked(1, N, K, a + i * K * 4, packed, row, 0);
      expect(read(row, N)).toEqual(read(whole + i * N * 4, N));
    }
    expect(intact()).toBe(true);
  });
});
