/**
 * One pass of the served weights over rows of (token, position, slot), with a key/value cache, in one worker. Rows of one slot may be
 * consecutive positions (a prefill chunk): all keys and values of a layer are stored before any row attends. A row's result depends only on
 * its own sequence, never on what else is in the pass.
 */
import { type Arena, DECODE_ROWS, type DecodeRegions, type ServedRegions } from './arena.ts';
import type { Layout } from './config.ts';
import { type LlamaConfig, widthsOf } from './config.ts';
import type { Kernels, PassOptions } from './wasm.ts';

export interface Draw {
  readonly temperature: number;
  readonly uniform: number;
}

export class DecodePass {
  readonly #kernels: Kernels;
  readonly #buffer: ArrayBufferLike;
  readonly #config: LlamaConfig;
  readonly #arena: Arena;
  readonly #regions: DecodeRegions;
  readonly #queryWidth: number;
  readonly #qkvWidth: number;
  readonly #tokens: Int32Array;
  readonly #positions: Int32Array;
  readonly #slots: Int32Array;
  readonly #headRows: Int32Array;
  #rowCount = 0;
  #headCount = 0;

  constructor({ kernels, buffer, config, arena, regions }: PassOptions<DecodeRegions>) {
    this.#kernels = kernels;
    this.#buffer = buffer;
    this.#config = config;
    this.#arena = arena;
    this.#regions = regions;
    const widths = widthsOf(config);
    this.#queryWidth = widths.query;
    this.#qkvWidth = widths.qkv;
    this.#tokens = new Int32Array(buffer, regions.tokens, DECODE_ROWS);
    this.#positions = new Int32Array(buffer, regions.positions, DECODE_ROWS);
    this.#slots = new Int32Array(buffer, regions.slots, DECODE_ROWS);
    this.#headRows = new Int32Array(buffer, regions.headRows, arena.slotCount);
  }

  /** Starts collecting rows for the next pass. */
  begin(): void {
    this.#rowCount = 0;
    this.#headCount = 0;
  }

  get room(): number {
    return DECODE_ROWS - this.#rowCount;
  }

  /** Adds a row; with `wantLogits`, returns the index of its row of logits. At most one such row per slot. */
  add(token: number, position: number, slot: number, wantLogits: boolean): number {
    if (this.room === 0 || position >= this.#config.contextLength || slot >= this.#arena.slotCount) {
      throw new RangeError(`row ${this.#rowCount} at position ${position} of slot ${slot} lies outside the arena`);
    }
    const row = this.#rowCount++;
    this.#tokens[row] = token;
    this.#positions[row] = position;
    this.#slots[row] = slot;
    if (wantLogits) this.#headRows[this.#headCount++] = row;
    return this.#headCount - 1;
  }

  run(): void {
    const { hiddenSize } = this.#config;
    this.#kernels.gatherRows(this.#arena.served.embedding, this.#regions.tokens, this.#rowCount, hiddenSize, this.#regions.x);
    this.#arena.served.layers.forEach((layer, l) => {
      this.#layer(layer, l);
    });
    if (this.#headCount > 0) this.#head();
  }

  /** One row of logits of the last pass. */
  logits(index: number): Float32Array {
    const { vocabSize } = this.#config;
    return new Float32Array(this.#buffer, this.#regions.logits + index * vocabSize * 4, vocabSize);
  }

  /** Draws a token for every row of logits. The returned views are valid until the next pass. */
  draw(draws: readonly Draw[]): { readonly tokens: Int32Array; readonly logprobs: Float32Array } {
    const { inverseTemperatures, uniforms, weights, drawn, logprobs, logits } = this.#regions;
    const inverse = new Float32Array(this.#buffer, inverseTemperatures, draws.length);
    const uniform = new Float32Array(this.#buffer, uniforms, draws.length);
    draws.forEach((draw, i) => {
      inverse[i] = draw.temperature > 0 ? 1 / draw.temperature : 0;
      uniform[i] = draw.uniform;
    });
    const { vocabSize } = this.#config;
    this.#kernels.drawTokens(logits, draws.length, vocabSize, inverseTemperatures, uniforms, weights, drawn, logprobs);
    return {
      tokens: new Int32Array(this.#buffer, drawn, draws.length),
      logprobs: new Float32Array(this.#buffer, logprobs, draws.length),
    };
  }

  /** Copies the first `count` positions of one slot's cache to another's. */
  copySlot(from: number, to: number, count: number): void {
    const { contextLength, kvHeads, headDim } = this.#config;
    this.#regions.keys.forEach((keys, l) => {
      this.#kernels.copyCacheSlot(from, to, count, keys, this.#regions.values[l]!, contextLength, kvHeads, headDim);
    });
  }

  #layer(layer: ServedRegions['layers'][number], l: number): void {
    const { hiddenSize, intermediateSize, rmsNormEps, heads, kvHeads, headDim } = this.#config;
    const { x, norm, scale, qkv, attention, gateUp, activated, positions } = this.#regions;
    const kernels = this.#kernels;
    const n = this.#rowCount;

    kernels.rmsNorm(x, layer.inputNorm, norm, scale, n, hiddenSize, rmsNormEps);
    kernels.gemmPacked(n, this.#qkvWidth, hiddenSize, norm, layer.qkv, qkv, 0);
    const { cosines, sines } = this.#arena;
    kernels.rope(qkv, n, this.#qkvWidth, heads + kvHeads, headDim, positions, cosines, sines, 1);
    this.#attend(l);
    kernels.gemmPacked(n, hiddenSize, this.#queryWidth, attention, layer.attentionOut, x, 1);

    kernels.rmsNorm(x, layer.postNorm, norm, scale, n, hiddenSize, rmsNormEps);
    kernels.gemmPacked(n, 2 * intermediateSize, hiddenSize, norm, layer.gateUp, gateUp, 0);
    kernels.swiglu(gateUp, activated, n, intermediateSize);
    kernels.gemmPacked(n, hiddenSize, intermediateSize, activated, layer.down, x, 1);
  }

  #attend(l: number): void {
    const { contextLength, heads, kvHeads, headDim } = this.#config;
    const { qkv, slots, positions, attention, scores } = this.#regions;
    const n = this.#rowCount;
    const [keys, values] = [this.#regions.keys[l]!, this.#regions.values[l]!];
    const width = this.#qkvWidth;
    const fresh = qkv + this.#queryWidth * 4;
    this.#kernels.storeCacheRows(fresh, width, n, slots, positions, keys, values, contextLength, kvHeads, headDim);
    this.#kernels.cachedAttention(
      ...([qkv, width, n, slots, positions, keys, values, contextLength, heads, kvHeads, headDim, attention, scores] as const),
    );
  }

  #head(): void {
    const { hiddenSize, vocabSize, rmsNormEps } = this.#config;
    const { x, norm, scale, headRows, attention, logits } = this.#regions;
    const { finalNorm, head } = this.#arena.served;
    // The attention buffer is free at this point and wide enough for hidden rows.
    this.#kernels.gatherRows(x, headRows, this.#headCount, hiddenSize, attention);
    this.#kernels.rmsNorm(attention, finalNorm, norm, scale, this.#headCount, hiddenSize, rmsNormEps);
    this.#kernels.gemmPacked(this.#headCount, vocabSize, hiddenSize, norm, head, logits, 0);
  }
}

/** Fills the served regions from flat weights, as `publish` does. */
export function packServed(kernels: Kernels, config: LlamaConfig, layout: Layout, served: ServedRegions, weights: number): void {
  const { hiddenSize, intermediateSize, vocabSize } = config;
  const { query, qkv } = widthsOf(config);
  const source = (offset: number) => weights + offset * 4;
  // Stored as [outputs, inputs], multiplied as [inputs, outputs].
  const pack = (offset: number, inputs: number, outputs: number, to: number) =>
    kernels.packMatrix(source(offset), 1, inputs, inputs, outputs, to);

  kernels.copyFloats(served.embedding, source(layout.embedding), vocabSize * hiddenSize);
  layout.layers.forEach((layer, l) => {
    const to = served.layers[l]!;
    kernels.copyFloats(to.inputNorm, source(layer.inputNorm), hiddenSize);
    pack(layer.qkv, hiddenSize, qkv, to.qkv);
    pack(layer.attentionOut, query, hiddenSize, to.attentionOut);
    kernels.copyFloats(to.postNorm, source(layer.postNorm), hiddenSize);
    pack(layer.gateUp, hiddenSize, 2 * intermediateSize, to.gateUp);
    pack(layer.down, intermediateSize, hiddenSize, to.down);
  });
  kernels.copyFloats(served.finalNorm, source(layout.finalNorm), hiddenSize);
  pack(layout.head, hiddenSize, vocabSize, served.head);
}
