/**
 * Sampling with a key/value cache: writing and copying cache rows, attention of single rows over the cache, drawing tokens.
 *
 * A sequence's cache lies in pages of `page` positions; `tables` has the addresses of each slot's pages, `tableStride` apart. A page holds,
 * for each layer, the keys of all its heads and then their values, as `attend` reads them; `layer` is where the layer's begin, in floats.
 * Each row's sums have one order, so a result never depends on the other rows of the pass.
 */
import { attend, keyFloats, storeInPanel, storeInRows, valueFloats } from './attend';
import { at, expRow, maxOfRow } from './simd';
import { MR } from './tile';

/** Stores each row's keys and values, which lie one after the other at `source`, at the row's slot and position. */
export function storeCacheRows(
  source: usize, width: i32, rows: i32, slots: usize, positions: usize, tables: usize, tableStride: i32, layer: i32, page: i32,
  kvHeads: i32, headDim: i32,
): void {
  const keySize = keyFloats(page, headDim);
  const valueSize = valueFloats(page, headDim);
  for (let r = 0; r < rows; r++) {
    const position = load<i32>(at(positions, r));
    const place = <usize>load<u32>(at(tables, load<i32>(at(slots, r)) * tableStride + position / page));
    const keys = at(place, layer);
    const values = at(keys, kvHeads * keySize);
    for (let g = 0; g < kvHeads; g++) {
      const key = at(source, r * width + g * headDim);
      storeInPanel(key, headDim, at(keys, g * keySize), position % page);
      storeInRows(at(key, kvHeads * headDim), headDim, at(values, g * valueSize), position % page);
    }
  }
}

/** Copies the first `count` positions of one page to another, in all layers; whole panels of keys, of which the tail is overwritten later. */
export function copyPage(from: usize, to: usize, count: i32, page: i32, layers: i32, kvHeads: i32, headDim: i32): void {
  const keySize = <usize>keyFloats(page, headDim) << 2;
  const valueSize = <usize>valueFloats(page, headDim) << 2;
  for (let l = 0; l < layers; l++) {
    for (let g = 0; g < kvHeads; g++) {
      memory.copy(to, from, <usize>keyFloats(count, headDim) << 2);
      from += keySize;
      to += keySize;
    }
    for (let g = 0; g < kvHeads; g++) {
      memory.copy(to, from, <usize>valueFloats(count, headDim) << 2);
      from += valueSize;
      to += valueSize;
    }
  }
}

/** How many rows from `r` on are consecutive positions of one slot, six at most. */
@inline
function runLength(r: i32, rows: i32, slots: usize, positions: usize): i32 {
  const slot = load<i32>(at(slots, r));
  const position = load<i32>(at(positions, r));
  let length = 1;
  while (
    length < MR && r + length < rows && load<i32>(at(slots, r + length)) == slot && load<i32>(at(positions, r + length)) == position + length
  ) length++;
  return length;
}

/** Each row attends to positions 0 … its own of its slot; those must be in the cache already. */
export function cachedAttention(
  qkv: usize, width: i32, rows: i32, slots: usize, positions: usize, tables: usize, tableStride: i32, layer: i32, page: i32,
  heads: i32, kvHeads: i32, headDim: i32, out: usize, scores: usize,
): void {
  const scale: f32 = 1 / sqrt<f32>(<f32>headDim);
  const keySize = keyFloats(page, headDim);
  const valueSize = valueFloats(page, headDim);
  const group = heads / kvHeads;
  for (let r = 0; r < rows; ) {
    const run = runLength(r, rows, slots, positions);
    const position = load<i32>(at(positions, r));
    const table = at(tables, load<i32>(at(slots, r)) * tableStride);
    for (let h = 0; h < heads; h++) {
      const g = h / group;
      attend(
        run, at(qkv, r * width + h * headDim), width, position, at(0, layer + g * keySize), at(0, layer + kvHeads * keySize + g * valueSize),
        table, page, headDim, scale, scores, at(out, (r * heads + h) * headDim), heads * headDim, 0, 0,
      );
    }
    r += run;
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
