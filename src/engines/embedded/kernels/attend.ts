/**
 * Attention of neighbouring queries of one sequence over the keys and values before them: the one routine that sampling and
 * training share, so that a token's log-probability in training is, bit for bit, the one it was sampled with.
 *
 * One head's keys lie in panels of 16 positions ([position/16][headDim][16]), its values in rows padded to whole panels: both are
 * what the tiles multiply by, and both grow by one position without moving the others. Both may lie in pages of some positions, the same
 * place in each page, with a table of the pages' addresses. A query's scores and its sum over values are
 * computed in the same order whether it comes alone or with others: entries after its own position get the weight 0, which
 * changes no sum.
 */
import { at, expRow, maxOfRow, scaleRow } from './simd';
import { MR, multiplyEdge, multiplyHalfStrip, multiplyStrip, multiplyTile, NR, RESUME } from './tile';

/**
 * Sums over values are cut here, counted from the first position, so that a query's do not depend on those after it. A page holds a part of
 * this, or all positions.
 */
const KC: i32 = 256;

/** What is added to the address of a key or value at `position`: that of its page. Without a table, all lies in one place. */
@inline
function pageOf(table: usize, page: i32, position: i32): usize {
  return table == 0 ? 0 : <usize>load<u32>(at(table, position / page));
}

/** `count` rounded up to whole panels. */
@inline
export function padded(count: i32): i32 {
  return (count + NR - 1) & ~(NR - 1);
}

/** Floats of one head's keys for `context` positions. */
export function keyFloats(context: i32, headDim: i32): i32 {
  return padded(context) * headDim;
}

/** Floats of one head's values for `context` positions. */
export function valueFloats(context: i32, headDim: i32): i32 {
  return context * padded(headDim);
}

/** Writes one position of a matrix in panels. */
@inline
export function storeInPanel(row: usize, headDim: i32, panels: usize, position: i32): void {
  const to = at(panels, (position & ~(NR - 1)) * headDim + (position & (NR - 1)));
  for (let j = 0; j < headDim; j++) store<f32>(at(to, j * NR), load<f32>(at(row, j)));
}

/** Writes one position of a matrix in padded rows. */
@inline
export function storeInRows(row: usize, headDim: i32, rows: usize, position: i32): void {
  const to = at(rows, position * padded(headDim));
  let j = 0;
  for (; j + 4 <= headDim; j += 4) v128.store(at(to, j), v128.load(at(row, j)));
  for (; j < headDim; j++) store<f32>(at(to, j), load<f32>(at(row, j)));
}

/** Scores become weights that sum to 1. Returns the log-sum-exp of the scaled scores. */
function softmax(row: usize, visible: i32, scale: f32): f32 {
  const top = maxOfRow(row, visible);
  const sum = expRow(row, visible, scale, top);
  scaleRow(row, 1 / sum, visible);
  return <f32>(<f64>scale * <f64>top + Math.log(<f64>sum));
}

/** Floats of scratch that `attend` needs. */
export function attendScratchFloats(context: i32, headDim: i32): i32 {
  return MR * (padded(context) + NR) + padded(headDim);
}

/** Adds what was computed aside to `out`, or puts it there. */
@inline
function putRow(out: usize, aside: usize, count: i32, accumulate: bool): void {
  for (let j = 0; j < count; j++) {
    const value = load<f32>(at(aside, j));
    store<f32>(at(out, j), accumulate ? load<f32>(at(out, j)) + value : value);
  }
}

/** A query's sum over values in pages: page by page, each going on with the sum of the one before, so to the same bits as without pages. */
function sumPagedRow(count: i32, values: usize, table: usize, page: i32, headDim: i32, scores: usize, out: usize): void {
  const width = padded(headDim);
  const step = <usize>width << 2;
  // Six rows of scores have room beside this one's.
  const aside = at(scores, padded(count));
  for (let k = 0; k < count; k += KC) {
    const end = min(count, k + KC);
    for (let p = k; p < end; p += page) {
      const from = values + pageOf(table, page, p);
      const depth = min(page, end - p);
      const weights = at(scores, p);
      const mode: i32 = p > k ? RESUME : 0;
      let n = 0;
      for (; n + 2 * NR <= width; n += 2 * NR) multiplyStrip(weights, at(from, n), step, NR << 2, depth, at(aside, n), mode);
      if (n < width) multiplyHalfStrip(weights, at(from, n), step, depth, at(aside, n), mode);
    }
    putRow(out, aside, headDim, k > 0);
  }
}

/** The same for up to six queries; `scores` has room for a tile after their rows. */
function sumPaged(
  rows: i32, count: i32, stride: i32, values: usize, table: usize, page: i32, headDim: i32, scores: usize, out: usize, outStride: i32,
): void {
  const step = <usize>padded(headDim) << 2;
  const aside = at(scores, MR * stride);
  for (let k = 0; k < count; k += KC) {
    const end = min(count, k + KC);
    for (let n = 0; n < headDim; n += NR) {
      for (let p = k; p < end; p += page) {
        const from = at(values + pageOf(table, page, p), n);
        const mode: i32 = p > k ? RESUME : 0;
        multiplyTile(rows, at(scores, p), <usize>stride << 2, 4, from, step, min(page, end - p), aside, NR << 2, mode);
      }
      for (let i = 0; i < rows; i++) putRow(at(out, i * outStride + n), at(aside, i * NR), min(NR, headDim - n), k > 0);
    }
  }
}

/** One query at `position`. */
function attendRow(
  q: usize, position: i32, keys: usize, values: usize, table: usize, page: i32, headDim: i32, scale: f32, scores: usize, out: usize,
): f32 {
  const count = position + 1;
  const panel = <usize>(headDim * NR) << 2;
  for (let first = 0; first < count; first += page) {
    const base = keys + pageOf(table, page, first);
    const end = min(page, count - first);
    // Two panels at a time; the second of the last pair may lie beyond the keys and is then the first once more.
    for (let t = 0; t < end; t += 2 * NR) {
      multiplyStrip(q, at(base, t * headDim), NR << 2, t + NR < end ? panel : 0, headDim, at(scores, first + t), false);
    }
  }
  const lse = softmax(scores, count, scale);
  const width = padded(headDim);
  const step = <usize>width << 2;
  if (table != 0) {
    sumPagedRow(count, values, table, page, headDim, scores, out);
    return lse;
  }
  for (let k = 0; k < count; k += KC) {
    const depth = min(KC, count - k);
    const weights = at(scores, k);
    const from = at(values, k * width);
    let n = 0;
    for (; n + 2 * NR <= headDim; n += 2 * NR) multiplyStrip(weights, at(from, n), step, NR << 2, depth, at(out, n), k > 0);
    if (n + NR <= headDim) {
      multiplyHalfStrip(weights, at(from, n), step, depth, at(out, n), k > 0);
      n += NR;
    }
    if (n < headDim) multiplyEdge(1, headDim - n, weights, 0, 4, at(from, n), step, depth, at(out, n), step, k > 0);
  }
  return lse;
}

/**
 * Up to six queries at consecutive positions, `first` the first one's; their keys and values must be stored already. Rows of `q`,
 * `out` and `lse` lie that many floats apart. `lse` may be 0: not wanted.
 */
export function attend(
  rows: i32, q: usize, qStride: i32, first: i32, keys: usize, values: usize, table: usize, page: i32, headDim: i32, scale: f32,
  scores: usize, out: usize, outStride: i32, lse: usize, lseStride: i32,
): void {
  if (rows == 1) {
    const sum = attendRow(q, first, keys, values, table, page, headDim, scale, scores, out);
    if (lse != 0) store<f32>(lse, sum);
    return;
  }
  const count = first + rows;
  const stride = padded(count);
  const qRow = <usize>qStride << 2;
  const scoreRow = <usize>stride << 2;
  for (let start = 0; start < count; start += page) {
    const base = keys + pageOf(table, page, start);
    const end = min(page, count - start);
    for (let t = 0; t < end; t += NR) {
      multiplyTile(rows, q, qRow, 4, at(base, t * headDim), NR << 2, headDim, at(scores, start + t), scoreRow, false);
    }
  }
  for (let i = 0; i < rows; i++) {
    const row = at(scores, i * stride);
    const sum = softmax(row, first + i + 1, scale);
    for (let t = first + i + 1; t < count; t++) store<f32>(at(row, t), 0);
    if (lse != 0) store<f32>(at(lse, i * lseStride), sum);
  }
  if (table != 0) {
    sumPaged(rows, count, stride, values, table, page, headDim, scores, out, outStride);
    return;
  }
  const width = padded(headDim);
  const step = <usize>width << 2;
  const outRow = <usize>outStride << 2;
  for (let k = 0; k < count; k += KC) {
    const depth = min(KC, count - k);
    const weights = at(scores, k);
    for (let n = 0; n < headDim; n += NR) {
      const from = at(values, k * width + n);
      const to = at(out, n);
      if (rows == MR && n + NR <= headDim) multiplyTile(MR, weights, scoreRow, 4, from, step, depth, to, outRow, k > 0);
      else multiplyEdge(rows, min(NR, headDim - n), weights, scoreRow, 4, from, step, depth, to, outRow, k > 0);
    }
  }
}
