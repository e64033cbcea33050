/**
 * Causal attention over a tree of sequences that share prefixes, forward and backward.
 *
 * Rows of `qkv` hold all query heads, then all key heads, then all value heads. The tree comes as segments in depth-first order, three
 * integers each: first row, depth (positions before it, which it shares with the segments before), length. One path from the root is
 * held at a time: a segment keeps the first `depth` positions of the path and replaces the rest, so that every row's keys and
 * values are stored once, whatever shares them. A segment's gradient of keys and values is complete when the path leaves it.
 *
 * The tree may stand on a trunk: the first positions of every path, which were computed elsewhere. Its rows hold all key heads, then all
 * value heads, and their gradient is added to rows of the same form.
 *
 * The forward computes a row as sampling does, and keeps one log-sum-exp per row and head. The backward takes queries in
 * blocks and computes the probabilities again: memory is linear in the length.
 */
import { attend, attendScratchFloats, keyFloats, padded, storeInPanel, storeInRows, valueFloats } from './attend';
import { addRow, at, dot, exp4, loadPart, storePart } from './simd';
import { MR, multiplyEdge, multiplyTile, NR } from './tile';

/** Queries per block of the backward: a multiple of the tile's height. */
const BLOCK: i32 = 48;

/** Floats of scratch for paths of up to `context` tokens. */
export function attentionScratchFloats(context: i32, headDim: i32): i32 {
  const forward = keyFloats(context, headDim) + valueFloats(context, headDim) + attendScratchFloats(context, headDim);
  const backward = context + 2 * keyFloats(context, headDim) + 3 * valueFloats(context, headDim) + 2 * BLOCK * padded(context);
  return max(forward, backward);
}

/** One head's, from rows `width` apart, to the positions from `depth` on. */
function storeKeysAndValues(
  from: usize, width: i32, keyWidth: i32, count: i32, headDim: i32, keys: usize, values: usize, depth: i32,
): void {
  for (let i = 0; i < count; i++) {
    const key = at(from, i * width);
    storeInPanel(key, headDim, keys, depth + i);
    storeInRows(at(key, keyWidth), headDim, values, depth + i);
  }
}

/** `out` has rows of heads·headDim, `lse` rows of heads. */
export function attentionForward(
  qkv: usize, width: i32, segments: usize, count: i32, context: i32, trunk: usize, trunkLength: i32,
  heads: i32, kvHeads: i32, headDim: i32, out: usize, lse: usize, scratch: usize,
): void {
  const scale: f32 = 1 / sqrt<f32>(<f32>headDim);
  const keys = scratch;
  const values = at(keys, keyFloats(context, headDim));
  const scores = at(values, valueFloats(context, headDim));
  const group = heads / kvHeads;
  const keyWidth = kvHeads * headDim;
  for (let g = 0; g < kvHeads; g++) {
    storeKeysAndValues(at(trunk, g * headDim), 2 * keyWidth, keyWidth, trunkLength, headDim, keys, values, 0);
    for (let s = 0; s < count; s++) {
      const row = load<i32>(at(segments, s * 3));
      const depth = load<i32>(at(segments, s * 3 + 1));
      const length = load<i32>(at(segments, s * 3 + 2));
      storeKeysAndValues(at(qkv, row * width + (heads + g) * headDim), width, keyWidth, length, headDim, keys, values, depth);
      for (let h = g * group; h < (g + 1) * group; h++) {
        for (let i = 0; i < length; i += MR) {
          const r = row + i;
          attend(
            min(MR, length - i), at(qkv, r * width + h * headDim), width, depth + i, keys, values, 0, i32.MAX_VALUE, headDim, scale, scores,
            at(out, (r * heads + h) * headDim), heads * headDim, at(lse, r * heads + h), heads,
          );
        }
      }
    }
  }
}

/** Scores become probabilities again. */
@inline
function probabilitiesFromLse(row: usize, visible: i32, scale: f32, lse: f32): void {
  const s = f32x4.splat(scale);
  const l = f32x4.splat(lse);
  let j = 0;
  for (; j + 8 <= visible; j += 8) {
    const x0 = v128.load(at(row, j));
    const x1 = v128.load(at(row, j), 16);
    v128.store(at(row, j), exp4(f32x4.sub(f32x4.mul(s, x0), l)));
    v128.store(at(row, j), exp4(f32x4.sub(f32x4.mul(s, x1), l)), 16);
  }
  for (; j + 4 <= visible; j += 4) v128.store(at(row, j), exp4(f32x4.sub(f32x4.mul(s, v128.load(at(row, j))), l)));
  if (j < visible) {
    const left = visible - j;
    storePart(at(row, j), exp4(f32x4.sub(f32x4.mul(s, loadPart(at(row, j), left, 0)), l)), left);
  }
}

/** dScores = scale · p · (dP − Σ p·dP), written over dP. */
@inline
function softmaxBackwardRow(p: usize, dP: usize, visible: i32, scale: f32): void {
  const mean = dot(p, dP, visible);
  const m = f32x4.splat(mean);
  const s = f32x4.splat(scale);
  let j = 0;
  for (; j + 4 <= visible; j += 4) {
    const slope = f32x4.mul(v128.load(at(p, j)), f32x4.sub(v128.load(at(dP, j)), m));
    v128.store(at(dP, j), f32x4.mul(s, slope));
  }
  for (; j < visible; j++) {
    store<f32>(at(dP, j), scale * (load<f32>(at(p, j)) * (load<f32>(at(dP, j)) - mean)));
  }
}

// One head's path during the backward. Keys and values in the layouts that the products below want them in.
let keyPanels: usize = 0;
let valuePanels: usize = 0;
let keyRows: usize = 0;
let dKeys: usize = 0;
let dValues: usize = 0;
let rowOf: usize = 0;
let probabilities: usize = 0;
let dScores: usize = 0;

function layOutPath(scratch: usize, context: i32, headDim: i32): void {
  keyPanels = scratch;
  valuePanels = at(keyPanels, keyFloats(context, headDim));
  keyRows = at(valuePanels, keyFloats(context, headDim));
  dKeys = at(keyRows, valueFloats(context, headDim));
  dValues = at(dKeys, valueFloats(context, headDim));
  rowOf = at(dValues, valueFloats(context, headDim));
  probabilities = at(rowOf, context);
  dScores = at(probabilities, BLOCK * padded(context));
}

/** Positions that the path leaves: their gradients are complete. */
function closePositions(from: i32, end: i32, dKey: usize, width: i32, keyWidth: i32, headDim: i32): void {
  const stride = padded(headDim);
  for (let p = from; p < end; p++) {
    const to = at(dKey, load<i32>(at(rowOf, p)) * width);
    memory.copy(to, at(dKeys, p * stride), <usize>headDim << 2);
    memory.copy(at(to, keyWidth), at(dValues, p * stride), <usize>headDim << 2);
  }
}

/** The trunk's positions: other trees stand on it too. */
function addToTrunk(length: i32, dTrunk: usize, keyWidth: i32, headDim: i32): void {
  const stride = padded(headDim);
  for (let p = 0; p < length; p++) {
    const to = at(dTrunk, p * 2 * keyWidth);
    addRow(to, at(dKeys, p * stride), headDim);
    addRow(at(to, keyWidth), at(dValues, p * stride), headDim);
  }
}

/** Positions that the path enters; `key` is the first one's, in `qkv`. */
function openPositions(key: usize, row: i32, depth: i32, length: i32, width: i32, keyWidth: i32, headDim: i32): void {
  const stride = padded(headDim);
  for (let i = 0; i < length; i++) {
    const k = at(key, i * width);
    storeInPanel(k, headDim, keyPanels, depth + i);
    storeInRows(k, headDim, keyRows, depth + i);
    storeInPanel(at(k, keyWidth), headDim, valuePanels, depth + i);
    store<i32>(at(rowOf, depth + i), row + i);
  }
  memory.fill(at(dKeys, depth * stride), 0, <usize>(length * stride) << 2);
  memory.fill(at(dValues, depth * stride), 0, <usize>(length * stride) << 2);
}

/**
 * One block of `rows` queries, the first at position `first`. Masked entries are never computed: each tile of six queries goes only as
 * far as its last one sees, and the sums over queries begin at the first one that sees a key.
 */
function backwardBlock(
  rows: i32, first: i32, q: usize, width: i32, d: usize, outWidth: i32, headDim: i32, scale: f32, lse: usize, heads: i32, dQ: usize,
): void {
  const count = first + rows;
  const stride = padded(count);
  const scoreRow = <usize>stride << 2;
  const qRow = <usize>width << 2;
  const dRow = <usize>outWidth << 2;
  const headStride = padded(headDim);
  const headStep = <usize>headStride << 2;
  for (let i = 0; i < rows; i += MR) {
    const tileRows = min(MR, rows - i);
    const seen = first + i + tileRows;
    const p = at(probabilities, i * stride);
    const dP = at(dScores, i * stride);
    for (let t = 0; t < seen; t += NR) {
      multiplyTile(tileRows, at(q, i * width), qRow, 4, at(keyPanels, t * headDim), NR << 2, headDim, at(p, t), scoreRow, false);
      multiplyTile(tileRows, at(d, i * outWidth), dRow, 4, at(valuePanels, t * headDim), NR << 2, headDim, at(dP, t), scoreRow, false);
    }
    for (let ii = 0; ii < tileRows; ii++) {
      const visible = first + i + ii + 1;
      const row = at(p, ii * stride);
      const dRowAt = at(dP, ii * stride);
      probabilitiesFromLse(row, visible, scale, load<f32>(at(lse, (i + ii) * heads)));
      softmaxBackwardRow(row, dRowAt, visible, scale);
      // A tile of six reaches at most five past the diagonal.
      for (let t = visible; t < min(count, visible + MR - 1); t++) {
        store<f32>(at(row, t), 0);
        store<f32>(at(dRowAt, t), 0);
      }
    }
    for (let n = 0; n < headDim; n += NR) {
      const columns = min(NR, headDim - n);
      const to = at(dQ, i * width + n);
      if (tileRows == MR && columns == NR) multiplyTile(MR, dP, scoreRow, 4, at(keyRows, n), headStep, seen, to, qRow, false);
      else multiplyEdge(tileRows, columns, dP, scoreRow, 4, at(keyRows, n), headStep, seen, to, qRow, false);
    }
  }
  for (let t = 0; t < count; t += MR) {
    const keys = min(MR, count - t);
    const from = max(0, t - first);
    const p = at(probabilities, from * stride + t);
    const dP = at(dScores, from * stride + t);
    for (let n = 0; n < headDim; n += NR) {
      const dAt = at(d, from * outWidth + n);
      const qAt = at(q, from * width + n);
      const dKey = at(dKeys, t * headStride + n);
      const dValue = at(dValues, t * headStride + n);
      if (keys == MR) {
        multiplyTile(MR, p, 4, scoreRow, dAt, dRow, rows - from, dValue, headStep, true);
        multiplyTile(MR, dP, 4, scoreRow, qAt, qRow, rows - from, dKey, headStep, true);
      } else {
        multiplyEdge(keys, NR, p, 4, scoreRow, dAt, dRow, rows - from, dValue, headStep, true);
        multiplyEdge(keys, NR, dP, 4, scoreRow, qAt, qRow, rows - from, dKey, headStep, true);
      }
    }
  }
}

/** Overwrites `dQkv`, and adds to `dTrunk`. */
export function attentionBackward(
  qkv: usize, width: i32, segments: usize, count: i32, context: i32, trunk: usize, trunkLength: i32,
  heads: i32, kvHeads: i32, headDim: i32, lse: usize, dOut: usize, dQkv: usize, dTrunk: usize, scratch: usize,
): void {
  const scale: f32 = 1 / sqrt<f32>(<f32>headDim);
  const group = heads / kvHeads;
  const outWidth = heads * headDim;
  const keyWidth = kvHeads * headDim;
  layOutPath(scratch, context, headDim);
  for (let g = 0; g < kvHeads; g++) {
    const keyOffset = (heads + g) * headDim;
    openPositions(at(trunk, g * headDim), 0, 0, trunkLength, 2 * keyWidth, keyWidth, headDim);
    let end = trunkLength;
    for (let s = 0; s < count; s++) {
      const row = load<i32>(at(segments, s * 3));
      const depth = load<i32>(at(segments, s * 3 + 1));
      const length = load<i32>(at(segments, s * 3 + 2));
      closePositions(depth, end, at(dQkv, keyOffset), width, keyWidth, headDim);
      openPositions(at(qkv, row * width + keyOffset), row, depth, length, width, keyWidth, headDim);
      end = depth + length;
      for (let h = g * group; h < (g + 1) * group; h++) {
        for (let i = 0; i < length; i += BLOCK) {
          const r = row + i;
          const q = r * width + h * headDim;
          const d = at(dOut, r * outWidth + h * headDim);
          backwardBlock(
            min(BLOCK, length - i), depth + i, at(qkv, q), width, d, outWidth, headDim, scale, at(lse, r * heads + h), heads, at(dQkv, q),
          );
        }
      }
    }
    closePositions(trunkLength, end, at(dQkv, keyOffset), width, keyWidth, headDim);
    addToTrunk(trunkLength, at(dTrunk, g * headDim), keyWidth, headDim);
  }
}
