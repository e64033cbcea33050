/**
 * Forward and backward of one microbatch through the whole model, in one worker. A microbatch is a tree: a row is one token after one
 * prefix, shared by all sequences that go through it, and only attention knows how rows are connected. The output head is computed only for
 * rows whose next token is trained, once per prediction, a few rows at a time. Activations stay in the worker's arena until the next
 * forward, so a backward can follow once the loss is known.
 */
import type { Arena, LayerActivations, TrainRegions } from './arena.ts';
import type { LayerOffsets, Layout } from './config.ts';
import { type LlamaConfig, widthsOf } from './config.ts';
import type { Kernels, PassOptions } from './wasm.ts';

/** A tree of sequences in depth-first order, and which of its rows predict a trained token. */
export interface Microbatch {
  readonly tokens: Int32Array;
  /** First row, depth and length of each run of rows. A run's prefix is the path so far, cut to that depth. */
  readonly segments: Int32Array;
  /** May repeat: a row predicts one token for each way in which sequences continue from it. The other arrays are aligned with it. */
  readonly rows: Int32Array;
  readonly targets: Int32Array;
  readonly inverseTemperatures: Float32Array;
}

export class TrainPass {
  readonly #kernels: Kernels;
  readonly #buffer: ArrayBufferLike;
  readonly #config: LlamaConfig;
  readonly #layout: Layout;
  readonly #arena: Arena;
  readonly #regions: TrainRegions;
  readonly #queryWidth: number;
  readonly #qkvWidth: number;
  #weights = 0;
  #segmentCount = 0;
  #tokenCount = 0;
  #rowCount = 0;

  constructor({ kernels, buffer, config, layout, arena, regions }: PassOptions<TrainRegions>) {
    this.#kernels = kernels;
    this.#buffer = buffer;
    this.#config = config;
    this.#layout = layout;
    this.#arena = arena;
    this.#regions = regions;
    this.#queryWidth = widthsOf(config).query;
    this.#qkvWidth = widthsOf(config).qkv;
  }

  /** Log-probabilities of the targets under the weights at this address. */
  forward(weights: number, batch: Microbatch): Float32Array {
    this.#load(weights, batch);
    const { layers, output } = this.#regions;
    this.#kernels.gatherRows(
      weights + this.#layout.embedding * 4,
      this.#regions.tokens,
      this.#tokenCount,
      this.#config.hiddenSize,
      layers[0]!.input,
    );
    layers.forEach((activations, l) => {
      this.#layerForward(this.#layout.layers[l]!, activations, layers[l + 1]?.input ?? output);
    });
    this.#headForward();
    return new Float32Array(this.#buffer, this.#regions.logprobs, this.#rowCount).slice();
  }

  /** Adds the gradient to the buffer at this address, given d loss / d logprob of the rows of the last forward. */
  backward(gradients: number, slopes: Float32Array): void {
    const { layers } = this.#regions;
    this.#headBackward(gradients, this.#loadSlopes(slopes));
    for (let l = layers.length - 1; l >= 0; l--) this.#layerBackward(gradients, this.#layout.layers[l]!, layers[l]!);
    const embedding = gradients + this.#layout.embedding * 4;
    this.#kernels.scatterAddRows(embedding, this.#regions.tokens, this.#tokenCount, this.#config.hiddenSize, this.#regions.dx);
  }

  #load(weights: number, batch: Microbatch): void {
    const { tokens, positions, segments, rows, targets, inverseTemperatures } = this.#regions;
    const { trainRows } = this.#arena;
    if (batch.tokens.length > trainRows || batch.rows.length > trainRows) {
      throw new RangeError(`${batch.tokens.length} rows and ${batch.rows.length} targets do not fit into ${trainRows}`);
    }
    this.#weights = weights;
    this.#segmentCount = batch.segments.length / 3;
    this.#tokenCount = batch.tokens.length;
    this.#rowCount = batch.rows.length;
    new Int32Array(this.#buffer, tokens, this.#tokenCount).set(batch.tokens);
    new Int32Array(this.#buffer, segments, batch.segments.length).set(batch.segments);
    new Int32Array(this.#buffer, rows, this.#rowCount).set(batch.rows);
    new Int32Array(this.#buffer, targets, this.#rowCount).set(batch.targets);
    new Float32Array(this.#buffer, inverseTemperatures, this.#rowCount).set(batch.inverseTemperatures);
    const position = new Int32Array(this.#buffer, positions, this.#tokenCount);
    for (let s = 0; s < batch.segments.length; s += 3) {
      const [row, depth, length] = batch.segments.subarray(s, s + 3) as unknown as [number, number, number];
      for (let i = 0; i < length; i++) position[row + i] = depth + i;
    }
  }

  /** y (+)= x · wᵀ, for a weight matrix [outputs, inputs] as the layout keeps it. */
  #project(rows: number, x: number, weight: number, inputs: number, outputs: number, y: number, accumulate: 0 | 1): void {
    this.#kernels.gemm(rows, outputs, inputs, x, inputs, 1, weight, 1, inputs, y, outputs, accumulate);
  }

  /** dx = dy · w and dw += dyᵀ · x, the backward of `project`. */
  #projectBackward(
    ...[rows, x, weight, inputs, outputs, dy, dx, dWeight]: readonly [
      rows: number,
      x: number,
      weight: number,
      inputs: number,
      outputs: number,
      dy: number,
      dx: number,
      dWeight: number,
    ]
  ): void {
    this.#kernels.gemm(outputs, inputs, rows, dy, 1, outputs, x, inputs, 1, dWeight, inputs, 1);
    this.#kernels.gemm(rows, inputs, outputs, dy, outputs, 1, weight, inputs, 1, dx, inputs, 0);
  }

  #layerForward(offsets: LayerOffsets, a: LayerActivations, output: number): void {
    const kernels = this.#kernels;
    const { hiddenSize, intermediateSize, rmsNormEps } = this.#config;
    const n = this.#tokenCount;
    const weight = (offset: number) => this.#weights + offset * 4;

    kernels.rmsNorm(a.input, weight(offsets.inputNorm), a.inputNorm, a.inputScale, n, hiddenSize, rmsNormEps);
    this.#project(n, a.inputNorm, weight(offsets.qkv), hiddenSize, this.#qkvWidth, a.qkv, 0);
    this.#rotate(a.qkv, 1);
    this.#attentionForward(a);
    kernels.copyFloats(a.middle, a.input, n * hiddenSize);
    this.#project(n, a.attention, weight(offsets.attentionOut), this.#queryWidth, hiddenSize, a.middle, 1);

    kernels.rmsNorm(a.middle, weight(offsets.postNorm), a.postNorm, a.postScale, n, hiddenSize, rmsNormEps);
    this.#project(n, a.postNorm, weight(offsets.gateUp), hiddenSize, 2 * intermediateSize, a.gateUp, 0);
    kernels.swiglu(a.gateUp, a.activated, n, intermediateSize);
    kernels.copyFloats(output, a.middle, n * hiddenSize);
    this.#project(n, a.activated, weight(offsets.down), intermediateSize, hiddenSize, output, 1);
  }

  /** `dx` holds the gradient of the layer's output on entry and of its input on return, so the residual path needs no copy. */
  #layerBackward(gradients: number, offsets: LayerOffsets, a: LayerActivations): void {
    const kernels = this.#kernels;
    const { hiddenSize, intermediateSize } = this.#config;
    const { dx, dNorm, dAttention, dQkv, dActivated, dGateUp } = this.#regions;
    const n = this.#tokenCount;
    const weight = (offset: number) => this.#weights + offset * 4;
    const slope = (offset: number) => gradients + offset * 4;

    const { down, gateUp, postNorm, attentionOut, qkv, inputNorm } = offsets;
    this.#projectBackward(n, a.activated, weight(down), intermediateSize, hiddenSize, dx, dActivated, slope(down));
    kernels.swigluBackward(a.gateUp, dActivated, dGateUp, n, intermediateSize);
    this.#projectBackward(n, a.postNorm, weight(gateUp), hiddenSize, 2 * intermediateSize, dGateUp, dNorm, slope(gateUp));
    kernels.rmsNormBackward(a.middle, weight(postNorm), a.postScale, dNorm, dx, slope(postNorm), n, hiddenSize);

    this.#projectBackward(
      n,
      a.attention,
      weight(attentionOut),
      this.#queryWidth,
      hiddenSize,
      dx,
      dAttention,
      slope(attentionOut),
    );
    this.#attentionBackward(a);
    this.#rotate(dQkv, -1);
    this.#projectBackward(n, a.inputNorm, weight(qkv), hiddenSize, this.#qkvWidth, dQkv, dNorm, slope(qkv));
    kernels.rmsNormBackward(a.input, weight(inputNorm), a.inputScale, dNorm, dx, slope(inputNorm), n, hiddenSize);
  }

  /** Queries and keys are rotated, values are not. */
  #rotate(qkv: number, direction: 1 | -1): void {
    const { heads, kvHeads, headDim } = this.#config;
    const { cosines, sines } = this.#arena;
    const { positions } = this.#regions;
    this.#kernels.rope(qkv, this.#tokenCount, this.#qkvWidth, heads + kvHeads, headDim, positions, cosines, sines, direction);
  }

  #attentionForward(a: LayerActivations): void {
    const { heads, kvHeads, headDim, contextLength } = this.#config;
    const { segments, attentionScratch } = this.#regions;
    this.#kernels.attentionForward(
      ...([a.qkv, this.#qkvWidth, segments, this.#segmentCount, contextLength] as const),
      ...([heads, kvHeads, headDim, a.attention, a.lse, attentionScratch] as const),
    );
  }

  #attentionBackward(a: LayerActivations): void {
    const { heads, kvHeads, headDim, contextLength } = this.#config;
    const { segments, attentionScratch, dAttention, dQkv } = this.#regions;
    this.#kernels.attentionBackward(
      ...([a.qkv, this.#qkvWidth, segments, this.#segmentCount, contextLength] as const),
      ...([heads, kvHeads, headDim, a.lse, dAttention, dQkv, attentionScratch] as const),
    );
  }

  #headForward(): void {
    const { headRows } = this.#regions;
    this.#headInputs();
    for (let first = 0; first < this.#rowCount; first += headRows) this.#logProbabilities(first);
  }

  #headInputs(): void {
    const { hiddenSize, rmsNormEps } = this.#config;
    const { output, rows, headInput, headNorm, headScale } = this.#regions;
    const norm = this.#weights + this.#layout.finalNorm * 4;
    this.#kernels.gatherRows(output, rows, this.#rowCount, hiddenSize, headInput);
    this.#kernels.rmsNorm(headInput, norm, headNorm, headScale, this.#rowCount, hiddenSize, rmsNormEps);
  }

  /**
   * If at least half of the predictions have zero slope, as in a context that is only read, drops those from here on. Returns whether
   * `logits` still holds the distributions of all that remain.
   */
  #loadSlopes(slopes: Float32Array): boolean {
    const { rows, targets, inverseTemperatures, slopes: region, headRows } = this.#regions;
    const kept = slopes.reduce((count, slope) => (slope === 0 ? count : count + 1), 0);
    if (kept * 2 > slopes.length) {
      new Float32Array(this.#buffer, region, this.#rowCount).set(slopes);
      return this.#rowCount <= headRows;
    }
    const ids = [rows, targets].map((address) => new Int32Array(this.#buffer, address, this.#rowCount));
    const floats = [inverseTemperatures, region].map((address) => new Float32Array(this.#buffer, address, this.#rowCount));
    floats[1]!.set(slopes);
    let next = 0;
    for (let i = 0; i < slopes.length; i++) {
      if (slopes[i] === 0) continue;
      for (const values of [...ids, ...floats]) values[next] = values[i]!;
      next++;
    }
    this.#rowCount = kept;
    this.#headInputs();
    return false;
  }

  /** Computes up to `headRows` rows and leaves their distributions in `logits`. */
  #logProbabilities(first: number): void {
    const { vocabSize, hiddenSize } = this.#config;
    const { headRows, headNorm, logits, targets, inverseTemperatures, logprobs, sums } = this.#regions;
    const count = Math.min(headRows, this.#rowCount - first);
    const at = first * 4;
    this.#project(count, headNorm + at * hiddenSize, this.#weights + this.#layout.head * 4, hiddenSize, vocabSize, logits, 0);
    const temperatures = inverseTemperatures + at;
    this.#kernels.logProbabilities(logits, count, vocabSize, targets + at, temperatures, logprobs + at, sums + at);
  }

  /** Leaves the gradient of the last layer's output in `dx`. Recomputes the distributions if not all of them are at hand. */
  #headBackward(gradients: number, hasLogits: boolean): void {
    const { vocabSize, hiddenSize } = this.#config;
    const regions = this.#regions;
    const { head, finalNorm } = this.#layout;
    const { headRows, logits, targets, inverseTemperatures, slopes, sums, headNorm } = regions;
    for (let first = 0; first < this.#rowCount; first += headRows) {
      if (!hasLogits) this.#logProbabilities(first);
      const count = Math.min(headRows, this.#rowCount - first);
      const at = first * 4;
      const temperatures = inverseTemperatures + at;
      this.#kernels.logProbabilitiesBackward(logits, count, vocabSize, targets + at, temperatures, slopes + at, sums + at);
      const x = headNorm + at * hiddenSize;
      const dx = regions.dHeadNorm + at * hiddenSize;
      this.#projectBackward(count, x, this.#weights + head * 4, hiddenSize, vocabSize, logits, dx, gradients + head * 4);
    }
    const { headInput, headScale, dHeadNorm, dHeadInput, dx, rows } = regions;
    const norm = this.#weights + finalNorm * 4;
    const dNorm = gradients + finalNorm * 4;
    this.#kernels.fillZero(dHeadInput, this.#rowCount * hiddenSize);
    this.#kernels.rmsNormBackward(headInput, norm, headScale, dHeadNorm, dHeadInput, dNorm, this.#rowCount, hiddenSize);
    this.#kernels.fillZero(dx, this.#tokenCount * hiddenSize);
    this.#kernels.scatterAddRows(dx, rows, this.#rowCount, hiddenSize, dHeadInput);
  }
}
