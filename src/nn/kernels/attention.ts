/**
 * Causal attention of one whole sequence, forward and backward.
 *
 * Rows of `qkv` hold all query heads, then all key heads, then all value heads. The forward goes row by row, as
 * sampling does; it keeps only one log-sum-exp per row and head. The backward takes queries in blocks, each against the keys up to
 * its own end, and computes the probabilities again, so memory is linear in the length.
 */
import { attendRow } from './attention-row';
import { gemm } from './gemm';
import { at, exp4, loadPart, storePart, sum4 } from './simd';

/** Queries per block: a multiple of the tile height, small enough that the unused upper triangle stays cheap. */
const BLOCK: i32 = 48;

/** Floats of scratch for sequences of up to `length` tokens. */
export function attentionScratchFloats(length: i32): i32 {
  return 2 * BLOCK * length;
}

/** `out` has rows of heads·headDim, `lse` rows of heads. */
export function attentionForward(
  qkv: usize, width: i32, length: i32, heads: i32, kvHeads: i32, headDim: i32, out: usize, lse: usize, scratch: usize,
): void {
  const scale: f32 = 1 / sqrt<f32>(<f32>headDim);
  for (let h = 0; h < heads; h++) {
    const k = at(qkv, (heads + h / (heads / kvHeads)) * headDim);
    const v = at(k, kvHeads * headDim);
    for (let i = 0; i < length; i++) {
      const q = at(qkv, i * width + h * headDim);
      const row = attendRow(q, k, v, width, i + 1, headDim, scale, scratch, at(out, (i * heads + h) * headDim));
      store<f32>(at(lse, i * heads + h), row);
    }
  }
}

/** Scores become probabilities again; entries after `visible` become zero. */
@inline
function probabilitiesFromLse(row: usize, visible: i32, total: i32, scale: f32, lse: f32): void {
  const s = f32x4.splat(scale);
  const l = f32x4.splat(lse);
  let j = 0;
  for (; j + 4 <= visible; j += 4) v128.store(at(row, j), exp4(f32x4.sub(f32x4.mul(s, v128.load(at(row, j))), l)));
  if (j < visible) {
    const left = visible - j;
    storePart(at(row, j), exp4(f32x4.sub(f32x4.mul(s, loadPart(at(row, j), left, 0)), l)), left);
  }
  memory.fill(at(row, visible), 0, <usize>(total - visible) << 2);
}

/** dScores = scale · p · (dP − Σ p·dP), written over dP. Masked entries have p = 0. */
@inline
function softmaxBackwardRow(p: usize, dP: usize, total: i32, scale: f32): void {
  let sum = f32x4.splat(0);
  let j = 0;
  for (; j + 4 <= total; j += 4) sum = f32x4.add(sum, f32x4.mul(v128.load(at(p, j)), v128.load(at(dP, j))));
  let mean = sum4(sum);
  for (; j < total; j++) mean += load<f32>(at(p, j)) * load<f32>(at(dP, j));
  const m = f32x4.splat(mean);
  const s = f32x4.splat(scale);
  for (j = 0; j + 4 <= total; j += 4) {
    const slope = f32x4.mul(v128.load(at(p, j)), f32x4.sub(v128.load(at(dP, j)), m));
    v128.store(at(dP, j), f32x4.mul(s, slope));
  }
  for (; j < total; j++) {
    store<f32>(at(dP, j), scale * (load<f32>(at(p, j)) * (load<f32>(at(dP, j)) - mean)));
  }
}

/** Adds to `dQkv`'s keys and values, overwrites its queries: the caller clears it first. */
export function attentionBackward(
  qkv: usize, width: i32, length: i32, heads: i32, kvHeads: i32, headDim: i32, lse: usize, dOut: usize, dQkv: usize, scratch: usize,
): void {
  const scale: f32 = 1 / sqrt<f32>(<f32>headDim);
  const outWidth = heads * headDim;
  const dScores = at(scratch, BLOCK * length);
  for (let h = 0; h < heads; h++) {
    const qOffset = h * headDim;
    const kOffset = (heads + h / (heads / kvHeads)) * headDim;
    const vOffset = kOffset + kvHeads * headDim;
    const k = at(qkv, kOffset);
    const v = at(qkv, vOffset);
    for (let first = 0; first < length; first += BLOCK) {
      const rows = min(BLOCK, length - first);
      const keys = first + rows;
      const q = at(qkv, first * width + qOffset);
      const d = at(dOut, first * outWidth + h * headDim);
      gemm(rows, keys, headDim, q, width, 1, k, 1, width, scratch, keys, false);
      gemm(rows, keys, headDim, d, outWidth, 1, v, 1, width, dScores, keys, false);
      for (let i = 0; i < rows; i++) {
        const row = at(scratch, i * keys);
        probabilitiesFromLse(row, first + i + 1, keys, scale, load<f32>(at(lse, (first + i) * heads + h)));
        softmaxBackwardRow(row, at(dScores, i * keys), keys, scale);
      }
      gemm(keys, headDim, rows, scratch, 1, keys, d, outWidth, 1, at(dQkv, vOffset), width, true);
      gemm(rows, headDim, keys, dScores, keys, 1, k, width, 1, at(dQkv, first * width + qOffset), width, false);
      gemm(keys, headDim, rows, dScores, 1, keys, q, width, 1, at(dQkv, kOffset), width, true);
    }
  }
}
