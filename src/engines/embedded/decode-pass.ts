/**
 * One pass of the weights in one served area over rows of (token, position, slot), with a key/value cache, in one worker. Rows of one slot
 * may be consecutive positions (a prefill chunk): all keys and values of a layer are stored before any row attends. A row's result depends
 * only on its own sequence, never on what else is in the pass.
 */
import { type Arena, DECODE_ROWS, type DecodeRegions } from './arena.ts';
import type { LoraLayout } from './lora.ts';
import { type Layout, type Linear, type LinearName, type LlamaConfig, linearsOf, widthsOf } from './model/config.ts';
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
  readonly #lora: LoraLayout | undefined;
  readonly #linears: Readonly<Record<LinearName, Linear>>;
  readonly #queryWidth: number;
  readonly #qkvWidth: number;
  readonly #tokens: Int32Array;
  readonly #positions: Int32Array;
  readonly #slots: Int32Array;
  readonly #headRows: Int32Array;
  #area: Arena['areas'][number];
  #rowCount = 0;
  #headCount = 0;

  constructor({ kernels, buffer, config, lora, arena, regions }: PassOptions<DecodeRegions>) {
    this.#kernels = kernels;
    this.#buffer = buffer;
    this.#config = config;
    this.#arena = arena;
    this.#area = arena.areas[0]!;
    this.#regions = regions;
    this.#lora = lora;
    this.#linears = Object.fromEntries(linearsOf(config).map((linear) => [linear.name, linear])) as Record<LinearName, Linear>;
    const widths = widthsOf(config);
    this.#queryWidth = widths.query;
    this.#qkvWidth = widths.qkv;
    this.#tokens = new Int32Array(buffer, regions.tokens, DECODE_ROWS);
    this.#positions = new Int32Array(buffer, regions.positions, DECODE_ROWS);
    this.#slots = new Int32Array(buffer, regions.slots, DECODE_ROWS);
    this.#headRows = new Int32Array(buffer, regions.headRows, arena.slotCount);
  }

  /** Starts collecting rows for the next pass, which reads this area of the arena. Their slots' pages must be of the same weights. */
  begin(area = 0): void {
    this.#area = this.#arena.areas[area]!;
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
    const { hiddenSize, vocabSize, layers } = this.#config;
    const { tokens, x } = this.#regions;
    const { embedding, head } = this.#area.served;
    if (embedding === undefined) this.#kernels.gatherPacked(head, hiddenSize, vocabSize, tokens, this.#rowCount, x);
    else this.#kernels.gatherRows(embedding, tokens, this.#rowCount, hiddenSize, x);
    for (let l = 0; l < layers; l++) this.#layer(l);
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

  /** Tells where a slot's pages lie. */
  setPages(slot: number, pages: readonly number[]): void {
    const { pagesPerSlot, slotCount } = this.#arena;
    if (slot >= slotCount || pages.length > pagesPerSlot)
      throw new RangeError(`${pages.length} pages of slot ${slot} lie outside`);
    const table = new Uint32Array(this.#buffer, this.#regions.tables + slot * pagesPerSlot * 4, pages.length);
    table.set(pages.map((page) => this.#pageAddress(page)));
  }

  /** Copies the first `count` positions of one page to another. */
  copyPage(from: number, to: number, count: number): void {
    const { layers, kvHeads, headDim } = this.#config;
    this.#kernels.copyPage(this.#pageAddress(from), this.#pageAddress(to), count, this.#arena.page, layers, kvHeads, headDim);
  }

  #pageAddress(page: number): number {
    if (page >= this.#arena.pageCount) throw new RangeError(`page ${page} lies outside the cache`);
    return this.#regions.pages + page * this.#arena.pageFloats * 4;
  }

  #layer(l: number): void {
    const { hiddenSize, intermediateSize, rmsNormEps, heads, kvHeads, headDim } = this.#config;
    const { x, norm, scale, qkv, attention, gateUp, activated, positions } = this.#regions;
    const layer = this.#area.served.layers[l]!;
    const kernels = this.#kernels;
    const n = this.#rowCount;

    kernels.rmsNorm(x, layer.inputNorm, norm, scale, n, hiddenSize, rmsNormEps);
    this.#multiply(l, 'qkv', norm, qkv, 0);
    if (layer.qkvBias !== undefined) kernels.addToRows(qkv, layer.qkvBias, n, this.#qkvWidth);
    if (layer.headNorms !== undefined) this.#headNorms(layer.headNorms);
    const { cosines, sines } = this.#arena;
    kernels.rope(qkv, n, this.#qkvWidth, heads + kvHeads, headDim, positions, cosines, sines, 1);
    this.#attend(l);
    this.#multiply(l, 'attentionOut', attention, x, 1);

    kernels.rmsNorm(x, layer.postNorm, norm, scale, n, hiddenSize, rmsNormEps);
    this.#multiply(l, 'gateUp', norm, gateUp, 0);
    kernels.swiglu(gateUp, activated, n, intermediateSize);
    this.#multiply(l, 'down', activated, x, 1);
  }

  /** y (+)= W a, with the layer's adapters. */
  #multiply(l: number, name: LinearName, a: number, y: number, accumulate: 0 | 1): void {
    const { inputs, outputs } = this.#linears[name];
    const kernels = this.#kernels;
    const n = this.#rowCount;
    kernels.gemmPacked(n, outputs, inputs, a, inputs, this.#area.served.layers[l]![name], y, outputs, accumulate);
    const parts = this.#lora?.layers[l]?.[name];
    const served = this.#area.adapters?.[l]?.[name];
    if (this.#lora === undefined || parts === undefined || served === undefined) return;
    const { rank, scale } = this.#lora;
    const { low } = this.#regions;
    const width = parts.length * rank;
    kernels.gemmPacked(n, width, inputs, a, inputs, served.a, low, width, 0);
    kernels.scaleFloats(low, scale, n * width);
    parts.forEach(({ column, outputs: own }, i) => {
      kernels.gemmPacked(n, own, rank, low + i * rank * 4, width, served.b[i]!, y + column * 4, outputs, 1);
    });
  }

  #headNorms(gains: number): void {
    const { heads, kvHeads, headDim, rmsNormEps } = this.#config;
    const { qkv, scale } = this.#regions;
    const norm = (at: number, gain: number, count: number) =>
      this.#kernels.headNorm(at, this.#qkvWidth, gain, at, this.#qkvWidth, scale, this.#rowCount, count, headDim, rmsNormEps);
    norm(qkv, gains, heads);
    norm(qkv + this.#queryWidth * 4, gains + headDim * 4, kvHeads);
  }

  #attend(l: number): void {
    const { heads, kvHeads, headDim } = this.#config;
    const { qkv, slots, positions, tables, attention, scores } = this.#regions;
    const { pagesPerSlot, layerFloats, page } = this.#arena;
    const width = this.#qkvWidth;
    const rows = [width, this.#rowCount, slots, positions, tables, pagesPerSlot, l * layerFloats, page] as const;
    this.#kernels.storeCacheRows(qkv + this.#queryWidth * 4, ...rows, kvHeads, headDim);
    this.#kernels.cachedAttention(qkv, ...rows, heads, kvHeads, headDim, attention, scores);
  }

  #head(): void {
    const { hiddenSize, vocabSize, rmsNormEps } = this.#config;
    const { x, norm, scale, headRows, attention, logits } = this.#regions;
    const { finalNorm, head } = this.#area.served;
    // The attention buffer is free at this point and wide enough for hidden rows.
    this.#kernels.gatherRows(x, headRows, this.#headCount, hiddenSize, attention);
    this.#kernels.rmsNorm(attention, finalNorm, norm, scale, this.#headCount, hiddenSize, rmsNormEps);
    this.#kernels.gemmPacked(this.#headCount, vocabSize, hiddenSize, norm, hiddenSize, head, logits, vocabSize, 0);
  }
}

interface Packing {
  readonly kernels: Kernels;
  readonly config: LlamaConfig;
  readonly arena: Arena;
  /** Which of the arena's areas is filled; the first unless told. */
  readonly area?: number;
}

/** Fills the served regions from all parameters, which are being trained. */
export function packServed({ kernels, config, arena, area = 0 }: Packing, layout: Layout): void {
  const { hiddenSize, vocabSize, headDim } = config;
  const { served } = arena.areas[area]!;
  const source = (offset: number) => arena.parameters + offset * 4;
  // Stored as [outputs, inputs], multiplied as [inputs, outputs].
  const pack = (offset: number, inputs: number, outputs: number, to: number) =>
    kernels.packMatrix(source(offset), 1, inputs, inputs, outputs, to);
  const copy = (to: number | undefined, offset: number | undefined, count: number) => {
    if (to !== undefined && offset !== undefined) kernels.copyFloats(to, source(offset), count);
  };

  copy(served.embedding, layout.embedding, vocabSize * hiddenSize);
  const linears = linearsOf(config);
  layout.layers.forEach((layer, l) => {
    const to = served.layers[l]!;
    copy(to.inputNorm, layer.inputNorm, hiddenSize);
    copy(to.qkvBias, layer.qkvBias, widthsOf(config).qkv);
    copy(to.headNorms, layer.headNorms, 2 * headDim);
    copy(to.postNorm, layer.postNorm, hiddenSize);
    for (const { name, inputs, outputs } of linears) pack(layer[name], inputs, outputs, to[name]);
  });
  copy(served.finalNorm, layout.finalNorm, hiddenSize);
  pack(layout.head, hiddenSize, vocabSize, served.head);
}

/** Fills the served adapters from those being trained. */
export function packAdapters({ kernels, config, arena, area = 0 }: Packing, lora: LoraLayout): void {
  const source = (offset: number) => arena.parameters + offset * 4;
  lora.layers.forEach((layer, l) => {
    for (const { name, inputs } of linearsOf(config)) {
      const parts = layer[name];
      const to = arena.areas[area]!.adapters?.[l]?.[name];
      if (parts === undefined || to === undefined) continue;
      kernels.packMatrix(source(parts[0]!.a), 1, inputs, inputs, parts.length * lora.rank, to.a);
      parts.forEach(({ b, outputs }, i) => {
        kernels.packMatrix(source(b), 1, lora.rank, lora.rank, outputs, to.b[i]!);
      });
    }
  });
}
