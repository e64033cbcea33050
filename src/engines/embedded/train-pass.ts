/**
 * Forward and backward of one microbatch through the whole model, in one worker. A microbatch is a tree: a row is one token after one
 * prefix, shared by all sequences that go through it, and only attention knows how rows are connected. The output head is computed only for
 * rows whose next token is trained, once per prediction, a few rows at a time. Activations stay in the worker's arena until the next
 * forward, so a backward can follow once the loss is known; of layers for which there is no room, the backward computes them again.
 */
import { type Arena, activationFloats, floatsOf, type TrainRegions } from './arena.ts';
import { FrozenLinear, type TrainedLinear, WholeLinear } from './linear.ts';
import type { LoraLayout } from './lora.ts';
import { type Layout, type LinearName, type LlamaConfig, linearsOf, widthsOf } from './model/config.ts';
import type { Kernels, PassOptions } from './wasm.ts';

/** A tree of sequences in depth-first order, and which of its rows predict a trained token. */
export interface Microbatch {
  /** Positions before all of its sequences whose keys and values `computeTrunk` left in the arena; they have no rows here. */
  readonly trunk: number;
  readonly tokens: Int32Array;
  /** First row, depth and length of each run of rows. A run's prefix is the path so far, cut to that depth. */
  readonly segments: Int32Array;
  /** May repeat: a row predicts one token for each way in which sequences continue from it. The other arrays are aligned with it. */
  readonly rows: Int32Array;
  readonly targets: Int32Array;
  readonly inverseTemperatures: Float32Array;
}

/** Addresses of what a layer's backward needs. */
type Activations = Readonly<
  Record<
    'inputScale' | 'qkv' | 'lse' | 'attention' | 'middle' | 'postScale' | 'gateUp' | 'inputNorm' | 'postNorm' | 'activated',
    number
  >
> & { readonly rawQkv?: number; readonly headScale?: number };

/** A layer's linear parts, and where its other weights lie: among those being trained, or frozen. */
interface Layer extends Readonly<Record<LinearName, TrainedLinear>> {
  readonly vectors: VectorPlaces;
}
type VectorPlaces = Readonly<Record<'inputNorm' | 'postNorm', number>> &
  Readonly<Record<'qkvBias' | 'headNorms', number | undefined>>;

/** The place of what a layer computed of the trunk, before the lanes that sum its gradient. */
const KEPT = -1;

export class TrainPass {
  readonly #kernels: Kernels;
  readonly #buffer: ArrayBufferLike;
  readonly #config: LlamaConfig;
  readonly #layout: Layout;
  readonly #lora: LoraLayout | undefined;
  readonly #arena: Arena;
  readonly #regions: TrainRegions;
  readonly #queryWidth: number;
  readonly #qkvWidth: number;
  readonly #keyValueWidth: number;
  readonly #layers: readonly Layer[];
  readonly #head: TrainedLinear;
  readonly #finalNorm: number;
  #weights = 0;
  #segmentCount = 0;
  #tokenCount = 0;
  #rowCount = 0;
  #trunk = 0;
  /** One for each layer; the last ones may share theirs. */
  #activations: readonly Activations[] = [];

  constructor({ kernels, buffer, config, layout, lora, arena, regions }: PassOptions<TrainRegions>) {
    this.#kernels = kernels;
    this.#buffer = buffer;
    this.#config = config;
    this.#layout = layout;
    this.#lora = lora;
    this.#arena = arena;
    this.#regions = regions;
    this.#queryWidth = widthsOf(config).query;
    this.#qkvWidth = widthsOf(config).qkv;
    const frozen = arena.areas[0]!.served;
    this.#keyValueWidth = this.#qkvWidth - this.#queryWidth;
    const linears = linearsOf(config);
    this.#layers = layout.layers.map((offsets, l) => {
      const served = frozen.layers[l]!;
      const { scale = 1, rank = 0 } = lora ?? {};
      const made = linears.map((linear) => {
        const { name } = linear;
        const adapters = { parts: lora?.layers[l]?.[name] ?? [], scale, rank, low: regions.low, dLow: regions.dLow };
        const made = lora
          ? new FrozenLinear(kernels, linear, served[name], adapters)
          : new WholeLinear(kernels, linear, offsets[name]);
        return [name, made];
      });
      return { ...(Object.fromEntries(made) as Record<LinearName, TrainedLinear>), vectors: lora ? served : offsets };
    });
    const head = { inputs: config.hiddenSize, outputs: config.vocabSize };
    this.#head = lora ? new FrozenLinear(kernels, head, frozen.head) : new WholeLinear(kernels, head, layout.head);
    this.#finalNorm = lora ? frozen.finalNorm : layout.finalNorm;
  }

  /** Log-probabilities of the targets under the weights at this address: those of all parameters, or of the adapters. */
  forward(weights: number, batch: Microbatch): Float32Array {
    this.#load(weights, batch);
    this.#forwardLayers();
    this.#headForward();
    return new Float32Array(this.#buffer, this.#regions.logprobs, this.#rowCount).slice();
  }

  /** Adds the gradient to a lane, given d loss / d logprob of the rows of the last forward. */
  backward(lane: number, slopes: Float32Array): void {
    const gradients = this.#laneAt(lane);
    this.#headBackward(gradients, this.#loadSlopes(slopes));
    this.#backwardLayers(lane);
    if (this.#lora !== undefined) return;
    const embedding = gradients + this.#layout.embedding * 4;
    this.#kernels.scatterAddRows(embedding, this.#regions.tokens, this.#tokenCount, this.#config.hiddenSize, this.#regions.dx);
  }

  /** Computes the positions that the next microbatches stand on, and clears what `lanes` lanes know of their gradient. */
  computeTrunk(weights: number, tokens: Int32Array, lanes: number): void {
    this.#load(weights, trunkBatch(tokens));
    const floats = tokens.length * this.#keyValueWidth;
    const keep = (kept: number, computed: number) => this.#kernels.copyFloats(kept, computed, this.#keyValueWidth);
    this.#forwardLayers((l) => {
      this.#eachTrunkRow(l, KEPT, this.#activations[l]!.qkv, keep);
      for (let lane = 0; lane < lanes; lane++) this.#kernels.fillZero(this.#trunkAt(l, lane), floats);
    });
  }

  /** Goes back through the trunk with what the microbatches of these lanes left; adds the gradient to the first. */
  backwardTrunk(weights: number, tokens: Int32Array, lanes: number): void {
    this.#load(weights, trunkBatch(tokens));
    this.#forwardLayers();
    this.#kernels.fillZero(this.#regions.dx, tokens.length * this.#config.hiddenSize);
    const add = (slopes: number, sum: number) => this.#kernels.addToRows(sum, slopes, 1, this.#keyValueWidth);
    this.#backwardLayers(0, (l) => {
      for (let lane = 0; lane < lanes; lane++) this.#eachTrunkRow(l, lane, this.#regions.dQkv, add);
    });
  }

  /** A layer's keys and values of the trunk, or their gradient in a lane. */
  #trunkAt(l: number, lane: number): number {
    const { address, rows } = this.#arena.trunk;
    return address + ((lane + 1) * this.#layers.length + l) * rows * this.#keyValueWidth * 4;
  }

  /** With the addresses of each row there, and of its keys and values among rows of queries, keys and values. */
  #eachTrunkRow(l: number, lane: number, qkv: number, use: (row: number, own: number) => void): void {
    const from = this.#trunkAt(l, lane);
    const own = qkv + this.#queryWidth * 4;
    for (let r = 0; r < this.#tokenCount; r++) use(from + r * this.#keyValueWidth * 4, own + r * this.#qkvWidth * 4);
  }

  #forwardLayers(computed: (l: number) => void = () => {}): void {
    const { inputs } = this.#regions;
    this.#embed(inputs[0]!);
    this.#layers.forEach((_, l) => {
      this.#layerForward(l, inputs[l + 1]!);
      computed(l);
    });
  }

  /** From the gradient of the last layer's output, in `dx`. `attended` may add to a layer's `dQkv`. */
  #backwardLayers(lane: number, attended?: (l: number) => void): void {
    const last = this.#layers.length - 1;
    for (let l = last; l >= 0; l--) {
      // What layers share was overwritten by the next one.
      if (l < last && this.#activations[l] === this.#activations[l + 1]) this.#layerForward(l, undefined);
      this.#layerBackward(lane, l, attended);
    }
  }

  #laneAt(lane: number): number {
    return this.#arena.gradients + lane * this.#arena.flatLength * 4;
  }

  #embed(to: number): void {
    const { hiddenSize, vocabSize } = this.#config;
    const { embedding, head } = this.#arena.areas[0]!.served;
    const { tokens } = this.#regions;
    if (this.#lora === undefined) {
      this.#kernels.gatherRows(this.#weights + this.#layout.embedding * 4, tokens, this.#tokenCount, hiddenSize, to);
    } else if (embedding === undefined) {
      this.#kernels.gatherPacked(head, hiddenSize, vocabSize, tokens, this.#tokenCount, to);
    } else this.#kernels.gatherRows(embedding, tokens, this.#tokenCount, hiddenSize, to);
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
    this.#trunk = batch.trunk;
    this.#activations = this.#placeActivations();
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

  /** As many layers as there is room for keep their own; the rest share one place. */
  #placeActivations(): readonly Activations[] {
    const { activations, shared: region } = this.#regions;
    const { kept, shared } = activationFloats(this.#config, this.#lora !== undefined);
    const n = this.#tokenCount;
    const place = (parts: Readonly<Record<string, number>>, start: number) => {
      let end = start;
      const placed = Object.entries(parts).map(([name, floats]) => {
        const address = end;
        end += Math.ceil((n * floats * 4) / 64) * 64;
        return [name, address] as const;
      });
      return { placed, end };
    };
    const common = place(shared, region).placed;
    const layerFloats = n * floatsOf(kept) + 16 * Object.keys(kept).length;
    const room = Math.max(1, Math.floor(activations.floats / layerFloats));
    let end = activations.address;
    const own = Array.from({ length: Math.min(room, this.#layers.length) }, () => {
      const one = place(kept, end);
      end = one.end;
      return Object.fromEntries([...one.placed, ...common]) as unknown as Activations;
    });
    return this.#layers.map((_, l) => own[Math.min(l, own.length - 1)]!);
  }

  /** Address of a vector of weights. */
  #vector(place: number): number {
    return this.#lora === undefined ? this.#weights + place * 4 : place;
  }

  /** Address of its gradient; of a frozen one, a place that nobody reads. */
  #slope(gradients: number, place: number): number {
    return this.#lora === undefined ? gradients + place * 4 : this.#regions.unused;
  }

  /** Without `output`, only what the backward needs. */
  #layerForward(l: number, output: number | undefined): void {
    const kernels = this.#kernels;
    const { hiddenSize, intermediateSize, rmsNormEps } = this.#config;
    const layer = this.#layers[l]!;
    const a = this.#activations[l]!;
    const { inputNorm, postNorm, qkvBias, headNorms } = layer.vectors;
    const input = this.#regions.inputs[l]!;
    const n = this.#tokenCount;
    const weights = this.#weights;

    kernels.rmsNorm(input, this.#vector(inputNorm), a.inputNorm, a.inputScale, n, hiddenSize, rmsNormEps);
    layer.qkv.forward(weights, n, a.inputNorm, a.qkv, 0);
    if (qkvBias !== undefined) kernels.addToRows(a.qkv, this.#vector(qkvBias), n, this.#qkvWidth);
    if (headNorms !== undefined) this.#headNorms(a, this.#vector(headNorms));
    this.#rotate(a.qkv, 1);
    this.#attentionForward(l, a);
    kernels.copyFloats(a.middle, input, n * hiddenSize);
    layer.attentionOut.forward(weights, n, a.attention, a.middle, 1);

    kernels.rmsNorm(a.middle, this.#vector(postNorm), a.postNorm, a.postScale, n, hiddenSize, rmsNormEps);
    layer.gateUp.forward(weights, n, a.postNorm, a.gateUp, 0);
    kernels.swiglu(a.gateUp, a.activated, n, intermediateSize);
    if (output === undefined) return;
    kernels.copyFloats(output, a.middle, n * hiddenSize);
    layer.down.forward(weights, n, a.activated, output, 1);
  }

  /** `dx` holds the gradient of the layer's output on entry and of its input on return, so the residual path needs no copy. */
  #layerBackward(lane: number, l: number, attended: ((l: number) => void) | undefined): void {
    const gradients = this.#laneAt(lane);
    const kernels = this.#kernels;
    const { hiddenSize, intermediateSize } = this.#config;
    const { dx, dNorm, dAttention, dQkv, dActivated, dGateUp, inputs } = this.#regions;
    const { vectors, ...layer } = this.#layers[l]!;
    const a = this.#activations[l]!;
    const n = this.#tokenCount;
    const weights = this.#weights;
    const normBackward = (x: number, gain: number, scale: number) =>
      kernels.rmsNormBackward(x, this.#vector(gain), scale, dNorm, dx, this.#slope(gradients, gain), n, hiddenSize);

    if (this.#lora !== undefined) this.#recompute(l, a);
    layer.down.backward(weights, gradients, n, a.activated, dx, dActivated);
    kernels.swigluBackward(a.gateUp, dActivated, dGateUp, n, intermediateSize);
    layer.gateUp.backward(weights, gradients, n, a.postNorm, dGateUp, dNorm);
    normBackward(a.middle, vectors.postNorm, a.postScale);

    layer.attentionOut.backward(weights, gradients, n, a.attention, dx, dAttention);
    this.#attentionBackward(l, a, lane);
    attended?.(l);
    this.#rotate(dQkv, -1);
    if (vectors.headNorms !== undefined) this.#headNormsBackward(a, vectors.headNorms, gradients);
    if (vectors.qkvBias !== undefined && this.#lora === undefined) {
      kernels.sumRows(dQkv, gradients + vectors.qkvBias * 4, n, this.#qkvWidth);
    }
    layer.qkv.backward(weights, gradients, n, a.inputNorm, dQkv, dNorm);
    normBackward(inputs[l]!, vectors.inputNorm, a.inputScale);
  }

  /** What all layers share: by the same operations as in the forward, so to the same bits. */
  #recompute(l: number, a: Activations): void {
    const { hiddenSize, intermediateSize, rmsNormEps } = this.#config;
    const { inputNorm, postNorm } = this.#layers[l]!.vectors;
    const n = this.#tokenCount;
    const norm = (x: number, gain: number, y: number, scale: number) =>
      this.#kernels.rmsNorm(x, this.#vector(gain), y, scale, n, hiddenSize, rmsNormEps);
    norm(this.#regions.inputs[l]!, inputNorm, a.inputNorm, a.inputScale);
    norm(a.middle, postNorm, a.postNorm, a.postScale);
    this.#kernels.swiglu(a.gateUp, a.activated, n, intermediateSize);
  }

  /** Queries with the first gain, keys with the second. */
  #headNorms(a: Activations, gains: number): void {
    const { heads, kvHeads, headDim, rmsNormEps } = this.#config;
    const n = this.#tokenCount;
    const width = this.#qkvWidth;
    this.#kernels.copyFloats(a.rawQkv!, a.qkv, n * width);
    const norm = (x: number, gain: number, y: number, scale: number, count: number) =>
      this.#kernels.headNorm(x, width, gain, y, width, scale, n, count, headDim, rmsNormEps);
    const keys = this.#queryWidth * 4;
    norm(a.rawQkv!, gains, a.qkv, a.headScale!, heads);
    norm(a.rawQkv! + keys, gains + headDim * 4, a.qkv + keys, a.headScale! + n * heads * 4, kvHeads);
  }

  #headNormsBackward(a: Activations, place: number, gradients: number): void {
    const { heads, kvHeads, headDim } = this.#config;
    const { dQkv, headRow } = this.#regions;
    const n = this.#tokenCount;
    const width = this.#qkvWidth;
    const backward = (from: number, gain: number, scale: number, count: number) => {
      const slope = this.#slope(gradients, gain);
      const x = a.rawQkv! + from;
      const d = dQkv + from;
      this.#kernels.headNormBackward(x, width, this.#vector(gain), scale, d, width, slope, n, count, headDim, headRow);
    };
    // Offsets of trained weights count floats, addresses of frozen ones bytes.
    const keyGain = place + (this.#lora === undefined ? headDim : headDim * 4);
    backward(0, place, a.headScale!, heads);
    backward(this.#queryWidth * 4, keyGain, a.headScale! + n * heads * 4, kvHeads);
  }

  /** Queries and keys are rotated, values are not. */
  #rotate(qkv: number, direction: 1 | -1): void {
    const { heads, kvHeads, headDim } = this.#config;
    const { cosines, sines } = this.#arena;
    const { positions } = this.#regions;
    this.#kernels.rope(qkv, this.#tokenCount, this.#qkvWidth, heads + kvHeads, headDim, positions, cosines, sines, direction);
  }

  #attentionForward(l: number, a: Activations): void {
    const { heads, kvHeads, headDim } = this.#config;
    const shape = [heads, kvHeads, headDim] as const;
    const scratch = this.#regions.attentionScratch;
    this.#kernels.attentionForward(a.qkv, this.#qkvWidth, ...this.#tree(l), ...shape, a.attention, a.lse, scratch);
  }

  #attentionBackward(l: number, a: Activations, lane: number): void {
    const { heads, kvHeads, headDim } = this.#config;
    const { attentionScratch, dAttention, dQkv } = this.#regions;
    const shape = [heads, kvHeads, headDim] as const;
    const slopes = [dAttention, dQkv, this.#trunkAt(l, lane)] as const;
    this.#kernels.attentionBackward(a.qkv, this.#qkvWidth, ...this.#tree(l), ...shape, a.lse, ...slopes, attentionScratch);
  }

  #tree(l: number) {
    const { contextLength } = this.#config;
    return [this.#regions.segments, this.#segmentCount, contextLength, this.#trunkAt(l, KEPT), this.#trunk] as const;
  }

  #headForward(): void {
    const { headRows } = this.#regions;
    this.#headInputs();
    for (let first = 0; first < this.#rowCount; first += headRows) this.#logProbabilities(first);
  }

  #headInputs(): void {
    const { hiddenSize, rmsNormEps } = this.#config;
    const { inputs, rows, headInput, headNorm, headScale } = this.#regions;
    const norm = this.#vector(this.#finalNorm);
    this.#kernels.gatherRows(inputs.at(-1)!, rows, this.#rowCount, hiddenSize, headInput);
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
    this.#head.forward(this.#weights, count, headNorm + at * hiddenSize, logits, 0);
    const temperatures = inverseTemperatures + at;
    this.#kernels.logProbabilities(logits, count, vocabSize, targets + at, temperatures, logprobs + at, sums + at);
  }

  /** Leaves the gradient of the last layer's output in `dx`. Recomputes the distributions if not all of them are at hand. */
  #headBackward(gradients: number, hasLogits: boolean): void {
    const { vocabSize, hiddenSize } = this.#config;
    const regions = this.#regions;
    const { headRows, logits, targets, inverseTemperatures, slopes, sums, headNorm } = regions;
    for (let first = 0; first < this.#rowCount; first += headRows) {
      if (!hasLogits) this.#logProbabilities(first);
      const count = Math.min(headRows, this.#rowCount - first);
      const at = first * 4;
      const temperatures = inverseTemperatures + at;
      this.#kernels.logProbabilitiesBackward(logits, count, vocabSize, targets + at, temperatures, slopes + at, sums + at);
      const x = headNorm + at * hiddenSize;
      const dx = regions.dHeadNorm + at * hiddenSize;
      this.#head.backward(this.#weights, gradients, count, x, logits, dx);
    }
    const { headInput, headScale, dHeadNorm, dHeadInput, dx, rows } = regions;
    const norm = this.#vector(this.#finalNorm);
    const dNorm = this.#slope(gradients, this.#finalNorm);
    this.#kernels.fillZero(dHeadInput, this.#rowCount * hiddenSize);
    this.#kernels.rmsNormBackward(headInput, norm, headScale, dHeadNorm, dHeadInput, dNorm, this.#rowCount, hiddenSize);
    this.#kernels.fillZero(dx, this.#tokenCount * hiddenSize);
    this.#kernels.scatterAddRows(dx, rows, this.#rowCount, hiddenSize, dHeadInput);
  }
}

/** One sequence that predicts nothing. */
function trunkBatch(tokens: Int32Array): Microbatch {
  const none = new Int32Array(0);
  const segments = Int32Array.of(0, 0, tokens.length);
  return { trunk: 0, tokens, segments, rows: none, targets: none, inverseTemperatures: new Float32Array(0) };
}
