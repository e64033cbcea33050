/**
 * Attention of one query over the keys and values before it: the one routine that sampling and training share, so that both sum in
 * the same order and a token's log-probability in training is, bit for bit, the one it was sampled with.
 */
import { at, dot, expRow, fma, loadPart, maxOfRow, scaleRow, storePart } from './simd';

/** out = Σ weights[t] · values[t], for t < count. */
@inline
function weightedSum(weights: usize, values: usize, stride: i32, count: i32, width: i32, out: usize): void {
  let j = 0;
  for (; j + 8 <= width; j += 8) {
    let left = f32x4.splat(0);
    let right = left;
    let value = at(values, j);
    for (let t = 0; t < count; t++) {
      const w = v128.load32_splat(at(weights, t));
      left = fma(w, v128.load(value), left);
      right = fma(w, v128.load(value, 16), right);
      value = at(value, stride);
    }
    v128.store(at(out, j), left);
    v128.store(at(out, j), right, 16);
  }
  for (; j < width; j += 4) {
    const part = min(4, width - j);
    let sum = f32x4.splat(0);
    let value = at(values, j);
    for (let t = 0; t < count; t++) {
      const v = part == 4 ? v128.load(value) : loadPart(value, part, 0);
      sum = fma(v128.load32_splat(at(weights, t)), v, sum);
      value = at(value, stride);
    }
    if (part == 4) v128.store(at(out, j), sum);
    else storePart(at(out, j), sum, part);
  }
}

/**
 * out = Σ softmax(scale · q·k) · v over the first `count` keys and values, which lie `stride` floats apart. Returns the log-sum-exp of
 * the scaled scores. `scores` is scratch for `count` floats.
 */
@inline
export function attendRow(
  q: usize, keys: usize, values: usize, stride: i32, count: i32, headDim: i32, scale: f32, scores: usize, out: usize,
): f32 {
  let key = keys;
  for (let t = 0; t < count; t++) {
    store<f32>(at(scores, t), dot(q, key, headDim));
    key = at(key, stride);
  }
  const top = maxOfRow(scores, count);
  const sum = expRow(scores, count, scale, top);
  scaleRow(scores, 1 / sum, count);
  weightedSum(scores, values, stride, count, headDim, out);
  return <f32>(<f64>scale * <f64>top + Math.log(<f64>sum));
}
