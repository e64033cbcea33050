/**
 * Sampling with a key/value cache: writing and copying cache rows, attention of single rows over the cache, drawing tokens.
 *
 * A cache holds, for one layer's keys or values, [slot][position][kvHeads·headDim]. Each row is computed alone and in one order,
 * so a result never depends on the other rows of the pass.
 */
import { at, dot, expRow, fma, loadPart, maxOfRow, scaleRow, storePart } from './simd';

/** Copies `rowFloats` of each row of `source` to the cache, at the row's slot and position. */
export function storeCacheRows(
  source: usize, width: i32, rows: i32, slots: usize, positions: usize, cache: usize, context: i32, rowFloats: i32,
): void {
  for (let r = 0; r < rows; r++) {
    const row = load<i32>(at(slots, r)) * context + load<i32>(at(positions, r));
    memory.copy(at(cache, row * rowFloats), at(source, r * width), <usize>rowFloats << 2);
  }
}

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

/** Each row attends to positions 0 … its own of its slot; those must be in the cache already. */
export function cachedAttention(
  qkv: usize, width: i32, rows: i32, slots: usize, positions: usize, keys: usize, values: usize, context: i32,
  heads: i32, kvHeads: i32, headDim: i32, out: usize, scores: usize,
): void {
  const scale: f32 = 1 / sqrt<f32>(<f32>headDim);
  const rowFloats = kvHeads * headDim;
  for (let r = 0; r < rows; r++) {
    const slot = load<i32>(at(slots, r)) * context * rowFloats;
    const count = load<i32>(at(positions, r)) + 1;
    for (let h = 0; h < heads; h++) {
      const q = at(qkv, r * width + h * headDim);
      const offset = slot + (h / (heads / kvHeads)) * headDim;
      let key = at(keys, offset);
      for (let t = 0; t < count; t++) {
        store<f32>(at(scores, t), dot(q, key, headDim));
        key = at(key, rowFloats);
      }
      const sum = expRow(scores, count, scale, maxOfRow(scores, count));
      scaleRow(scores, 1 / sum, count);
      weightedSum(scores, at(values, offset), rowFloats, count, headDim, at(out, (r * heads + h) * headDim));
    }
  }
}

/** The most likely token; the lowest id among equals. */
@inline
function argmax(row: usize, vocabulary: i32, top: f32): i32 {
  let token = 0;
  while (token < vocabulary - 1 && load<f32>(at(row, token)) != top) token++;
  return token;
}

/** The token at which the running sum of weights passes `threshold`. */
@inline
function pick(weights: usize, vocabulary: i32, threshold: f64): i32 {
  let left = threshold;
  let token = 0;
  for (; token < vocabulary - 1; token++) {
    left -= <f64>load<f32>(at(weights, token));
    if (left < 0) break;
  }
  return token;
}

/**
 * Draws one token per row of logits, with one uniform number in [0, 1) each, and gives its log-probability. Temperature 0 takes
 * the most likely token and reports its log-probability at temperature 1. Destroys the logits.
 */
export function drawTokens(
  logits: usize, rows: i32, vocabulary: i32, temperatures: usize, uniforms: usize, tokens: usize, logprobs: usize,
): void {
  for (let r = 0; r < rows; r++) {
    const row = at(logits, r * vocabulary);
    const temperature = load<f32>(at(temperatures, r));
    const scale: f32 = temperature > 0 ? 1 / temperature : 1;
    const top = maxOfRow(row, vocabulary);
    let token = temperature > 0 ? -1 : argmax(row, vocabulary, top);
    const sum = expRow(row, vocabulary, scale, top);
    if (token < 0) token = pick(row, vocabulary, <f64>load<f32>(at(uniforms, r)) * <f64>sum);
    store<i32>(at(tokens, r), token);
    store<f32>(at(logprobs, r), <f32>(Math.log(<f64>load<f32>(at(row, token))) - Math.log(<f64>sum)));
  }
}
