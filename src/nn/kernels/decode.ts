/**
 * Sampling with a key/value cache: writing and copying cache rows, attention of single rows over the cache, drawing tokens.
 *
 * A cache holds, for one layer's keys or values, [slot][position][kvHeads·headDim]. Each row is computed alone and in one order,
 * so a result never depends on the other rows of the pass.
 */
import { attendRow } from './attention-row';
import { at, expRow, maxOfRow } from './simd';

/** Copies `rowFloats` of each row of `source` to the cache, at the row's slot and position. */
export function storeCacheRows(
  source: usize, width: i32, rows: i32, slots: usize, positions: usize, cache: usize, context: i32, rowFloats: i32,
): void {
  for (let r = 0; r < rows; r++) {
    const row = load<i32>(at(slots, r)) * context + load<i32>(at(positions, r));
    memory.copy(at(cache, row * rowFloats), at(source, r * width), <usize>rowFloats << 2);
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
      const to = at(out, (r * heads + h) * headDim);
      attendRow(q, at(keys, offset), at(values, offset), rowFloats, count, headDim, scale, scores, to);
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
 * Draws one token per row of logits, with one uniform number in [0, 1) each, and gives its log-probability, computed exactly as
 * `logProbabilities` does in training. An inverse temperature of 0 takes the most likely token and reports its log-probability
 * at temperature 1. `weights` is scratch for one row.
 */
export function drawTokens(
  logits: usize, rows: i32, vocabulary: i32, inverseTemperatures: usize, uniforms: usize, weights: usize, tokens: usize, logprobs: usize,
): void {
  for (let r = 0; r < rows; r++) {
    const row = at(logits, r * vocabulary);
    const inverse = load<f32>(at(inverseTemperatures, r));
    const scale: f32 = inverse > 0 ? inverse : 1;
    const top = maxOfRow(row, vocabulary);
    memory.copy(weights, row, <usize>vocabulary << 2);
    const sum = expRow(weights, vocabulary, scale, top);
    const token = inverse > 0 ? pick(weights, vocabulary, <f64>load<f32>(at(uniforms, r)) * <f64>sum) : argmax(row, vocabulary, top);
    store<i32>(at(tokens, r), token);
    const chosen = load<f32>(at(row, token));
    store<f32>(at(logprobs, r), <f32>(<f64>scale * (<f64>chosen - <f64>top) - Math.log(<f64>sum)));
  }
}
