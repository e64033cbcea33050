/**
 * Matrix product C[M,N] (+)= A·B for operands of any shape and stride, and the same product with B packed beforehand.
 *
 * Blocked after Goto: B in panels of 8 columns, A in panels of 6 rows, and a 6×8 register tile between them. Every element of C
 * is a sum over k in ascending order, in blocks of KC: a row of C never depends on which other rows are computed with it. The
 * sampler's results are independent of batching only because of this.
 *
 * Strides are in floats. Ragged edges are computed in a full tile on the side and copied.
 */
import { at, fma } from './simd';

const MR: i32 = 6;
const NR: i32 = 8;
const MC: i32 = 192;
const KC: i32 = 256;
const NC: i32 = 2048;

let packedA: usize = 0;
let packedB: usize = 0;
let tile: usize = 0;

/** Floats of scratch one instance needs for packing. */
export function gemmScratchFloats(): i32 {
  return MC * KC + KC * NC + MR * NR;
}

/** Gives this instance its scratch. Must be called before any product. */
export function setGemmScratch(scratch: usize): void {
  packedA = scratch;
  packedB = at(packedA, MC * KC);
  tile = at(packedB, KC * NC);
}

/** Floats that `packMatrix` writes for a K×N matrix. */
export function packedFloats(K: i32, N: i32): i32 {
  return K * ((N + NR - 1) / NR) * NR;
}

/** 4×4 transpose: rows at p, p+stride, … become columns stored 8 floats apart. */
@inline
function transpose4(p: usize, stride: usize, out: usize): void {
  const r0 = v128.load(p);
  const r1 = v128.load(p + stride);
  const r2 = v128.load(p + stride * 2);
  const r3 = v128.load(p + stride * 3);
  const low01 = v128.shuffle<f32>(r0, r1, 0, 4, 1, 5);
  const low23 = v128.shuffle<f32>(r2, r3, 0, 4, 1, 5);
  const high01 = v128.shuffle<f32>(r0, r1, 2, 6, 3, 7);
  const high23 = v128.shuffle<f32>(r2, r3, 2, 6, 3, 7);
  v128.store(out, v128.shuffle<f32>(low01, low23, 0, 1, 4, 5));
  v128.store(out, v128.shuffle<f32>(low01, low23, 2, 3, 6, 7), 32);
  v128.store(out, v128.shuffle<f32>(high01, high23, 0, 1, 4, 5), 64);
  v128.store(out, v128.shuffle<f32>(high01, high23, 2, 3, 6, 7), 96);
}

/** One panel of 8 columns whose elements are contiguous along k (a transposed B). */
function packColumnsContiguousInK(b: usize, columnStride: i32, K: i32, out: usize): void {
  const stride = <usize>columnStride << 2;
  const right = b + stride * 4;
  let k = 0;
  for (; k + 4 <= K; k += 4) {
    transpose4(at(b, k), stride, at(out, k * NR));
    transpose4(at(right, k), stride, at(out, k * NR + 4));
  }
  for (; k < K; k++) {
    for (let j = 0; j < NR; j++) store<f32>(at(out, k * NR + j), load<f32>(at(b, k + j * columnStride)));
  }
}

function packB(b: usize, rowStride: i32, columnStride: i32, K: i32, N: i32, out: usize): void {
  for (let j = 0; j < N; j += NR) {
    const source = at(b, j * columnStride);
    const panel = at(out, j * K);
    if (j + NR <= N && columnStride == 1) {
      for (let k = 0; k < K; k++) {
        const from = at(source, k * rowStride);
        v128.store(at(panel, k * NR), v128.load(from));
        v128.store(at(panel, k * NR), v128.load(from, 16), 16);
      }
    } else if (j + NR <= N && rowStride == 1) {
      packColumnsContiguousInK(source, columnStride, K, panel);
    } else {
      const columns = min(NR, N - j);
      for (let k = 0; k < K; k++) {
        for (let jj = 0; jj < NR; jj++) {
          const value: f32 = jj < columns ? load<f32>(at(source, k * rowStride + jj * columnStride)) : 0;
          store<f32>(at(panel, k * NR + jj), value);
        }
      }
    }
  }
}

/** One full panel of 6 rows. */
@inline
function packRows(a: usize, rowStride: i32, columnStride: i32, K: i32, out: usize): void {
  const row = <usize>rowStride << 2;
  const column = <usize>columnStride << 2;
  let from = a;
  let to = out;
  for (let k = 0; k < K; k++) {
    store<f32>(to, load<f32>(from));
    store<f32>(to, load<f32>(from + row), 4);
    store<f32>(to, load<f32>(from + row * 2), 8);
    store<f32>(to, load<f32>(from + row * 3), 12);
    store<f32>(to, load<f32>(from + row * 4), 16);
    store<f32>(to, load<f32>(from + row * 5), 20);
    from += column;
    to += 24;
  }
}

function packA(a: usize, rowStride: i32, columnStride: i32, M: i32, K: i32, out: usize): void {
  for (let i = 0; i < M; i += MR) {
    const source = at(a, i * rowStride);
    const panel = at(out, i * K);
    if (i + MR > M) {
      const rows = M - i;
      for (let k = 0; k < K; k++) {
        for (let ii = 0; ii < MR; ii++) {
          const value: f32 = ii < rows ? load<f32>(at(source, ii * rowStride + k * columnStride)) : 0;
          store<f32>(at(panel, k * MR + ii), value);
        }
      }
    } else if (rowStride == 1) {
      for (let k = 0; k < K; k++) {
        const from = at(source, k * columnStride);
        v128.store(at(panel, k * MR), v128.load(from));
        store<u64>(at(panel, k * MR), load<u64>(from, 16), 16);
      }
    } else {
      packRows(source, rowStride, columnStride, K, panel);
    }
  }
}

@inline
function put(c: usize, left: v128, right: v128, accumulate: bool): void {
  if (accumulate) {
    v128.store(c, f32x4.add(v128.load(c), left));
    v128.store(c, f32x4.add(v128.load(c, 16), right), 16);
  } else {
    v128.store(c, left);
    v128.store(c, right, 16);
  }
}

/** The 6×8 tile: 12 accumulators stay in registers over the whole of K. */
function multiplyTile(a: usize, b: usize, K: i32, c: usize, cStride: usize, accumulate: bool): void {
  const zero = f32x4.splat(0);
  let c00 = zero, c01 = zero, c10 = zero, c11 = zero, c20 = zero, c21 = zero;
  let c30 = zero, c31 = zero, c40 = zero, c41 = zero, c50 = zero, c51 = zero;
  const end = b + (<usize>K << 5);
  while (b < end) {
    const b0 = v128.load(b);
    const b1 = v128.load(b, 16);
    let s = v128.load32_splat(a);
    c00 = fma(s, b0, c00);
    c01 = fma(s, b1, c01);
    s = v128.load32_splat(a, 4);
    c10 = fma(s, b0, c10);
    c11 = fma(s, b1, c11);
    s = v128.load32_splat(a, 8);
    c20 = fma(s, b0, c20);
    c21 = fma(s, b1, c21);
    s = v128.load32_splat(a, 12);
    c30 = fma(s, b0, c30);
    c31 = fma(s, b1, c31);
    s = v128.load32_splat(a, 16);
    c40 = fma(s, b0, c40);
    c41 = fma(s, b1, c41);
    s = v128.load32_splat(a, 20);
    c50 = fma(s, b0, c50);
    c51 = fma(s, b1, c51);
    a += 24;
    b += 32;
  }
  put(c, c00, c01, accumulate);
  put(c + cStride, c10, c11, accumulate);
  put(c + cStride * 2, c20, c21, accumulate);
  put(c + cStride * 3, c30, c31, accumulate);
  put(c + cStride * 4, c40, c41, accumulate);
  put(c + cStride * 5, c50, c51, accumulate);
}

/** A tile that sticks out of C: computed aside, then only its inside is copied. */
function multiplyEdge(a: usize, b: usize, K: i32, c: usize, cStride: i32, rows: i32, columns: i32, accumulate: bool): void {
  multiplyTile(a, b, K, tile, <usize>NR << 2, false);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const target = at(c, i * cStride + j);
      const value = load<f32>(at(tile, i * NR + j));
      store<f32>(target, accumulate ? load<f32>(target) + value : value);
    }
  }
}

function multiplyBlock(M: i32, N: i32, K: i32, a: usize, b: usize, c: usize, cStride: i32, accumulate: bool): void {
  for (let j = 0; j < N; j += NR) {
    const bPanel = at(b, j * K);
    for (let i = 0; i < M; i += MR) {
      const aPanel = at(a, i * K);
      const target = at(c, i * cStride + j);
      if (i + MR <= M && j + NR <= N) multiplyTile(aPanel, bPanel, K, target, <usize>cStride << 2, accumulate);
      else multiplyEdge(aPanel, bPanel, K, target, cStride, min(MR, M - i), min(NR, N - j), accumulate);
    }
  }
}

/** C = A·B, or C += A·B. */
export function gemm(
  M: i32, N: i32, K: i32,
  a: usize, aRow: i32, aColumn: i32,
  b: usize, bRow: i32, bColumn: i32,
  c: usize, cStride: i32, accumulate: bool,
): void {
  for (let n = 0; n < N; n += NC) {
    const columns = min(NC, N - n);
    for (let k = 0; k < K; k += KC) {
      const depth = min(KC, K - k);
      packB(at(b, k * bRow + n * bColumn), bRow, bColumn, depth, columns, packedB);
      for (let m = 0; m < M; m += MC) {
        const rows = min(MC, M - m);
        packA(at(a, m * aRow + k * aColumn), aRow, aColumn, rows, depth, packedA);
        multiplyBlock(rows, columns, depth, packedA, packedB, at(c, m * cStride + n), cStride, accumulate || k > 0);
      }
    }
  }
}

/** Packs a K×N matrix once, in the order in which `gemmPacked` walks through it. */
export function packMatrix(b: usize, bRow: i32, bColumn: i32, K: i32, N: i32, out: usize): void {
  let to = out;
  for (let n = 0; n < N; n += NC) {
    const columns = min(NC, N - n);
    for (let k = 0; k < K; k += KC) {
      const depth = min(KC, K - k);
      packB(at(b, k * bRow + n * bColumn), bRow, bColumn, depth, columns, to);
      to = at(to, packedFloats(depth, columns));
    }
  }
}

/** `gemm` with a B from `packMatrix`; A and C have contiguous rows. */
export function gemmPacked(M: i32, N: i32, K: i32, a: usize, packed: usize, c: usize, accumulate: bool): void {
  let from = packed;
  for (let n = 0; n < N; n += NC) {
    const columns = min(NC, N - n);
    for (let k = 0; k < K; k += KC) {
      const depth = min(KC, K - k);
      for (let m = 0; m < M; m += MC) {
        const rows = min(MC, M - m);
        packA(at(a, m * K + k), K, 1, rows, depth, packedA);
        multiplyBlock(rows, columns, depth, packedA, from, at(c, m * N + n), N, accumulate || k > 0);
      }
      from = at(from, packedFloats(depth, columns));
    }
  }
}
