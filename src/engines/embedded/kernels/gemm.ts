/**
 * Matrix product C[M,N] (+)= A·B for operands of any shape, with contiguous rows or columns, and the same product with B packed beforehand.
 *
 * Blocked after Goto: B in panels of 16 columns; A as it lies where its rows are contiguous, else in panels of 6 rows. Every
 * element of C is a sum over k in ascending order, in blocks of KC: a row of C never depends on which other rows are computed with
 * it. The sampler's results are independent of batching only because of this.
 *
 * Strides are in floats.
 */
import { at } from './simd';
import { MR, multiplyEdge, multiplyHalfStrip, multiplyStrip, multiplyTile, NR, setTileScratch, TILE_FLOATS } from './tile';

const MC: i32 = 192;
/** The longest sum over k that is computed in one go. */
const KC: i32 = 384;
const NC: i32 = 2048;
/** With at most so many rows, a product takes the time that reading B takes. */
const FEW_ROWS: i32 = 64;

let packedA: usize = 0;
let packedB: usize = 0;

/** Floats of scratch one instance needs for packing. */
export function gemmScratchFloats(): i32 {
  return MC * KC + KC * NC + TILE_FLOATS;
}

/** Gives this instance its scratch. Must be called before any product. */
export function setGemmScratch(scratch: usize): void {
  packedA = scratch;
  packedB = at(packedA, MC * KC);
  setTileScratch(at(packedB, KC * NC));
}

/** Floats that `packMatrix` writes for a K×N matrix. */
export function packedFloats(K: i32, N: i32): i32 {
  return K * ((N + NR - 1) / NR) * NR;
}

/** 4×4 transpose: rows at p, p+stride, … become columns stored 16 floats apart. */
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
  v128.store(out, v128.shuffle<f32>(low01, low23, 2, 3, 6, 7), 64);
  v128.store(out, v128.shuffle<f32>(high01, high23, 0, 1, 4, 5), 128);
  v128.store(out, v128.shuffle<f32>(high01, high23, 2, 3, 6, 7), 192);
}

/** One panel of 16 columns whose elements are contiguous along k (a transposed B). */
function packColumnsContiguousInK(b: usize, columnStride: i32, K: i32, out: usize): void {
  const stride = <usize>columnStride << 2;
  let k = 0;
  for (; k + 4 <= K; k += 4) {
    const from = at(b, k);
    const to = at(out, k * NR);
    transpose4(from, stride, to);
    transpose4(from + stride * 4, stride, to + 16);
    transpose4(from + stride * 8, stride, to + 32);
    transpose4(from + stride * 12, stride, to + 48);
  }
  for (; k < K; k++) {
    for (let j = 0; j < NR; j++) store<f32>(at(out, k * NR + j), load<f32>(at(b, k + j * columnStride)));
  }
}

@inline
function copy16(from: usize, to: usize): void {
  const v0 = v128.load(from);
  const v1 = v128.load(from, 16);
  const v2 = v128.load(from, 32);
  const v3 = v128.load(from, 48);
  v128.store(to, v0);
  v128.store(to, v1, 16);
  v128.store(to, v2, 32);
  v128.store(to, v3, 48);
}

function packB(b: usize, rowStride: i32, columnStride: i32, K: i32, N: i32, out: usize): void {
  for (let j = 0; j < N; j += NR) {
    const source = at(b, j * columnStride);
    const panel = at(out, j * K);
    if (j + NR <= N && columnStride == 1) {
      for (let k = 0; k < K; k++) copy16(at(source, k * rowStride), at(panel, k * NR));
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

/** Panels of 6 rows, for an A whose columns are contiguous; read column by column, as they lie. */
function packA(a: usize, columnStride: i32, M: i32, K: i32, out: usize): void {
  const whole = M - (M % MR);
  const panel = <usize>(MR * K) << 2;
  for (let k = 0; k < K; k++) {
    const from = at(a, k * columnStride);
    let to = at(out, k * MR);
    for (let i = 0; i < whole; i += MR) {
      v128.store(to, v128.load(at(from, i)));
      store<u64>(to, load<u64>(at(from, i), 16), 16);
      to += panel;
    }
    for (let i = whole; i < M; i++) store<f32>(at(to, i - whole), load<f32>(at(from, i)));
  }
}

/**
 * Reads one vector of each cache line of a packed panel in one go: as fast as the memory gives them, which the multiplications, waiting for
 * each line in turn, are not. Lines beyond a multiple of eight are left out.
 */
function touch(panel: usize, lines: i32): void {
  let seen0 = f32x4.splat(0);
  let seen1 = seen0, seen2 = seen0, seen3 = seen0;
  let from = panel;
  for (let i = 0; i + 8 <= lines; i += 8) {
    seen0 = v128.or(seen0, v128.load(from));
    seen1 = v128.or(seen1, v128.load(from, 64));
    seen2 = v128.or(seen2, v128.load(from, 128));
    seen3 = v128.or(seen3, v128.load(from, 192));
    seen0 = v128.or(seen0, v128.load(from, 256));
    seen1 = v128.or(seen1, v128.load(from, 320));
    seen2 = v128.or(seen2, v128.load(from, 384));
    seen3 = v128.or(seen3, v128.load(from, 448));
    from += 512;
  }
  // Stored, or the compiler would leave out the loads.
  v128.store(packedA, v128.or(v128.or(seen0, seen1), v128.or(seen2, seen3)));
}

/** A's element (i, k) lies at i·aRow + k·aStep within its panel; panels lie `aPanel` apart. All in bytes. */
@inline
function multiplyBlock(
  M: i32, N: i32, K: i32, a: usize, aPanel: usize, aRow: usize, aStep: usize, b: usize, c: usize, cStride: i32, accumulate: bool,
): void {
  const cRow = <usize>cStride << 2;
  for (let j = 0; j < N; j += NR) {
    const bPanel = at(b, j * K);
    // What was packed just now is in the cache already.
    if (M <= FEW_ROWS && b != packedB) touch(bPanel, K);
    let from = a;
    for (let i = 0; i < M; i += MR) {
      const target = at(c, i * cStride + j);
      if (i + MR <= M && j + NR <= N) multiplyTile(MR, from, aRow, aStep, bPanel, NR << 2, K, target, cRow, accumulate);
      else multiplyEdge(min(MR, M - i), min(NR, N - j), from, aRow, aStep, bPanel, NR << 2, K, target, cRow, accumulate);
      from += aPanel;
    }
  }
}

function multiplyRow(N: i32, K: i32, a: usize, b: usize, c: usize, accumulate: bool): void {
  let j = 0;
  for (; j + 2 * NR <= N; j += 2 * NR) multiplyStrip(a, at(b, j * K), NR << 2, <usize>(K * NR) << 2, K, at(c, j), accumulate);
  if (j + NR <= N) {
    multiplyHalfStrip(a, at(b, j * K), NR << 2, K, at(c, j), accumulate);
    j += NR;
  }
  if (j < N) multiplyEdge(1, N - j, a, 0, 4, at(b, j * K), NR << 2, K, at(c, j), 0, accumulate);
}

/** One block of C with B packed: A as it lies or packed, whichever its orientation asks for. */
function multiplyPanels(
  M: i32, N: i32, K: i32, a: usize, aRow: i32, aColumn: i32, b: usize, c: usize, cStride: i32, accumulate: bool,
): void {
  // One or two rows that fill no tile are cheaper one by one.
  const single = aColumn == 1 && M % MR <= 2 ? M % MR : 0;
  const inTiles = M - single;
  const row = <usize>aRow << 2;
  // A block of A stays in the cache while all of B passes by.
  for (let m = 0; m < inTiles; m += MC) {
    const rows = min(MC, inTiles - m);
    const from = at(a, m * aRow);
    const to = at(c, m * cStride);
    if (aColumn == 1) {
      multiplyBlock(rows, N, K, from, row * MR, row, 4, b, to, cStride, accumulate);
    } else {
      packA(from, aColumn, rows, K, packedA);
      multiplyBlock(rows, N, K, packedA, <usize>(MR * K) << 2, 4, MR << 2, b, to, cStride, accumulate);
    }
  }
  for (let i = inTiles; i < M; i++) multiplyRow(N, K, at(a, i * aRow), b, at(c, i * cStride), accumulate);
}

/** C = A·B, or C += A·B. Of A's two strides one is 1. */
export function gemm(
  M: i32, N: i32, K: i32,
  a: usize, aRow: i32, aColumn: i32,
  b: usize, bRow: i32, bColumn: i32,
  c: usize, cStride: i32, accumulate: bool,
): void {
  const block = depthOfBlocks(K);
  for (let n = 0; n < N; n += NC) {
    const columns = min(NC, N - n);
    for (let k = 0; k < K; k += block) {
      const depth = min(block, K - k);
      packB(at(b, k * bRow + n * bColumn), bRow, bColumn, depth, columns, packedB);
      multiplyPanels(M, columns, depth, at(a, k * aColumn), aRow, aColumn, packedB, at(c, n), cStride, accumulate || k > 0);
    }
  }
}

/** Sums over k are cut into equal blocks: a function of K alone, so that every product with the same K sums in the same order. */
@inline
function depthOfBlocks(K: i32): i32 {
  const blocks = (K + KC - 1) / KC;
  return (K + blocks - 1) / max(1, blocks);
}

/** Packs a K×N matrix once, in the order in which `gemmPacked` walks through it. */
export function packMatrix(b: usize, bRow: i32, bColumn: i32, K: i32, N: i32, out: usize): void {
  let to = out;
  const block = depthOfBlocks(K);
  for (let n = 0; n < N; n += NC) {
    const columns = min(NC, N - n);
    for (let k = 0; k < K; k += block) {
      const depth = min(block, K - k);
      packB(at(b, k * bRow + n * bColumn), bRow, bColumn, depth, columns, to);
      to = at(to, packedFloats(depth, columns));
    }
  }
}

/** `gemm` with a B from `packMatrix`; A and C have contiguous rows, `aRow` and `cStride` apart. */
export function gemmPacked(
  M: i32, N: i32, K: i32, a: usize, aRow: i32, packed: usize, c: usize, cStride: i32, accumulate: bool,
): void {
  let from = packed;
  const block = depthOfBlocks(K);
  for (let n = 0; n < N; n += NC) {
    const columns = min(NC, N - n);
    for (let k = 0; k < K; k += block) {
      const depth = min(block, K - k);
      multiplyPanels(M, columns, depth, at(a, k), aRow, 1, from, at(c, n), cStride, accumulate || k > 0);
      from = at(from, packedFloats(depth, columns));
    }
  }
}

/** Packs the transpose of a part of a packed matrix: `count` of its columns, from `packed` on, and all `depth` rows of its block. */
function packTransposed(packed: usize, depth: i32, count: i32, out: usize): void {
  for (let i = 0; i < depth; i += NR) {
    const panel = at(out, i * count);
    const rows = min(NR, depth - i);
    for (let o = 0; o < count; o += NR) {
      const from = at(packed, o * depth + i * NR);
      const columns = min(NR, count - o);
      if (rows == NR && columns == NR) {
        for (let ii = 0; ii < NR; ii += 4) {
          for (let oo = 0; oo < NR; oo += 4) transpose4(at(from, ii * NR + oo), NR << 2, at(panel, (o + oo) * NR + ii));
        }
      } else {
        for (let oo = 0; oo < columns; oo++) {
          for (let ii = 0; ii < NR; ii++) {
            store<f32>(at(panel, (o + oo) * NR + ii), ii < rows ? load<f32>(at(from, ii * NR + oo)) : 0);
          }
        }
      }
    }
  }
}

/**
 * C[M,K] (+)= A[M,N] · Bᵀ for a K×N matrix B from `packMatrix`: the way back through `gemmPacked`, without a second copy of B.
 */
export function gemmPackedTransposed(
  M: i32, N: i32, K: i32, a: usize, aRow: i32, packed: usize, c: usize, cStride: i32, accumulate: bool,
): void {
  const block = depthOfBlocks(K);
  let from = packed;
  for (let n = 0; n < N; n += NC) {
    const columns = min(NC, N - n);
    for (let k = 0; k < K; k += block) {
      const depth = min(block, K - k);
      // A multiple of the panel's width, so that no panel is cut.
      for (let o = 0; o < columns; o += KC) {
        const count = min(KC, columns - o);
        packTransposed(at(from, o * depth), depth, count, packedB);
        multiplyPanels(M, depth, count, at(a, n + o), aRow, 1, packedB, at(c, k), cStride, accumulate || n + o > 0);
      }
      from = at(from, packedFloats(depth, columns));
    }
  }
}

/** out[i] = column indices[i] of a packed K×N matrix. */
export function gatherPacked(packed: usize, K: i32, N: i32, indices: usize, count: i32, out: usize): void {
  const block = depthOfBlocks(K);
  for (let i = 0; i < count; i++) {
    const index = load<i32>(at(indices, i));
    const n = index - index % NC;
    const columns = packedFloats(1, min(NC, N - n));
    const column = index - n;
    for (let k = 0; k < K; k += block) {
      const depth = min(block, K - k);
      // Panels of one block, then the column within its panel.
      const from = at(packed, n * K + k * columns + (column & ~(NR - 1)) * depth + (column & (NR - 1)));
      for (let kk = 0; kk < depth; kk++) store<f32>(at(out, i * K + k + kk), load<f32>(at(from, kk * NR)));
    }
  }
}
