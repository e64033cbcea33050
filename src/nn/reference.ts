/**
 * The model once more, slow and obvious, in float64: what the kernels are tested against.
 *
 * One sequence at a time, one loop per sum, every intermediate kept. Computes log-probabilities of next tokens and the
 * gradient of all parameters. Not used outside tests.
 */
import type { LlamaConfig } from './config.ts';
import { type LayerOffsets, planLayout } from './layout.ts';

/** Rows of numbers, row-major. */
type Matrix = Float64Array;

interface LayerRecord {
  readonly input: Matrix;
  readonly inputNorm: Matrix;
  readonly qkv: Matrix;
  /** [head][query][key] */
  readonly probabilities: Matrix;
  readonly attention: Matrix;
  readonly middle: Matrix;
  readonly postNorm: Matrix;
  readonly gateUp: Matrix;
  readonly activated: Matrix;
}

interface ForwardRecord {
  readonly layers: readonly LayerRecord[];
  readonly output: Matrix;
  readonly outputNorm: Matrix;
  /** Softmax of logits / temperature. */
  readonly distributions: Matrix;
}

export class ReferenceModel {
  readonly #config: LlamaConfig;
  readonly #layout: ReturnType<typeof planLayout>;
  readonly #weights: Float64Array;

  /** `weights` are in the order of the layout and are read anew by every call. */
  constructor(config: LlamaConfig, weights: Float64Array) {
    this.#config = config;
    this.#layout = planLayout(config);
    this.#weights = weights;
  }

  /** Entry i is the log-probability of token i given those before it; entry 0 is 0. */
  logprobs(tokens: Int32Array, temperature: number): Float64Array {
    return this.#logprobsOf(this.#forward(tokens, temperature), tokens);
  }

  /** Adds the gradient to `gradient`, given d loss / d logprob of each token. */
  backward(tokens: Int32Array, temperature: number, slopes: ArrayLike<number>, gradient: Float64Array): void {
    const { vocabSize, hiddenSize } = this.#config;
    const record = this.#forward(tokens, temperature);
    const dLogits = new Float64Array(tokens.length * vocabSize);
    for (let i = 1; i < tokens.length; i++) {
      for (let v = 0; v < vocabSize; v++) {
        const hit = v === tokens[i] ? 1 : 0;
        const at = (i - 1) * vocabSize + v;
        dLogits[at] = (slopes[i]! * (hit - record.distributions[at]!)) / temperature;
      }
    }
    const { head, finalNorm, embedding, layers } = this.#layout;
    const dNorm = this.#projectBackward(record.outputNorm, head, hiddenSize, vocabSize, dLogits, gradient);
    let dx = this.#normBackward(record.output, finalNorm, dNorm, gradient);
    for (let l = layers.length - 1; l >= 0; l--) dx = this.#layerBackward(layers[l]!, record.layers[l]!, dx, gradient);
    tokens.forEach((token, i) => {
      for (let j = 0; j < hiddenSize; j++) gradient[embedding + token * hiddenSize + j]! += dx[i * hiddenSize + j]!;
    });
  }

  #forward(tokens: Int32Array, temperature: number): ForwardRecord {
    const { vocabSize, hiddenSize } = this.#config;
    let x: Matrix = new Float64Array(tokens.length * hiddenSize);
    tokens.forEach((token, i) => {
      const at = this.#layout.embedding + token * hiddenSize;
      x.set(this.#weights.subarray(at, at + hiddenSize), i * hiddenSize);
    });
    const layers: LayerRecord[] = [];
    for (const offsets of this.#layout.layers) {
      const { record, output } = this.#layerForward(offsets, x);
      layers.push(record);
      x = output;
    }
    const outputNorm = this.#norm(x, this.#layout.finalNorm);
    const logits = this.#project(outputNorm, this.#layout.head, hiddenSize, vocabSize);
    for (let i = 0; i < tokens.length; i++) softmax(logits.subarray(i * vocabSize, (i + 1) * vocabSize), 1 / temperature);
    return { layers, output: x, outputNorm, distributions: logits };
  }

  #logprobsOf({ distributions }: ForwardRecord, tokens: Int32Array): Float64Array {
    return Float64Array.from(tokens, (token, i) =>
      i === 0 ? 0 : Math.log(distributions[(i - 1) * this.#config.vocabSize + token]!),
    );
  }

  #layerForward(offsets: LayerOffsets, input: Matrix): { record: LayerRecord; output: Matrix } {
    const { hiddenSize, intermediateSize, heads, kvHeads, headDim } = this.#config;
    const inputNorm = this.#norm(input, offsets.inputNorm);
    const qkv = this.#project(inputNorm, offsets.qkv, hiddenSize, (heads + 2 * kvHeads) * headDim);
    this.#rotate(qkv, 1);
    const { probabilities, attention } = this.#attend(qkv);
    const middle = add(input, this.#project(attention, offsets.attentionOut, heads * headDim, hiddenSize));
    const postNorm = this.#norm(middle, offsets.postNorm);
    const gateUp = this.#project(postNorm, offsets.gateUp, hiddenSize, 2 * intermediateSize);
    const activated = new Float64Array(gateUp.length / 2);
    forEachGate(gateUp, intermediateSize, (gate, up, i) => {
      activated[i] = gate * sigmoid(gate) * up;
    });
    const output = add(middle, this.#project(activated, offsets.down, intermediateSize, hiddenSize));
    return { record: { input, inputNorm, qkv, probabilities, attention, middle, postNorm, gateUp, activated }, output };
  }

  #layerBackward(offsets: LayerOffsets, record: LayerRecord, dOutput: Matrix, gradient: Float64Array): Matrix {
    const { hiddenSize, intermediateSize, heads, kvHeads, headDim } = this.#config;
    const dActivated = this.#projectBackward(record.activated, offsets.down, intermediateSize, hiddenSize, dOutput, gradient);
    const dGateUp = new Float64Array(record.gateUp.length);
    forEachGate(record.gateUp, intermediateSize, (gate, up, i, gateAt, upAt) => {
      const s = sigmoid(gate);
      dGateUp[gateAt] = dActivated[i]! * up * s * (1 + gate * (1 - s));
      dGateUp[upAt] = dActivated[i]! * gate * s;
    });
    const dPostNorm = this.#projectBackward(record.postNorm, offsets.gateUp, hiddenSize, 2 * intermediateSize, dGateUp, gradient);
    const dMiddle = add(dOutput, this.#normBackward(record.middle, offsets.postNorm, dPostNorm, gradient));
    const dAttention = this.#projectBackward(
      record.attention,
      offsets.attentionOut,
      heads * headDim,
      hiddenSize,
      dMiddle,
      gradient,
    );
    const dQkv = this.#attendBackward(record, dAttention);
    this.#rotate(dQkv, -1);
    const width = (heads + 2 * kvHeads) * headDim;
    const dInputNorm = this.#projectBackward(record.inputNorm, offsets.qkv, hiddenSize, width, dQkv, gradient);
    return add(dMiddle, this.#normBackward(record.input, offsets.inputNorm, dInputNorm, gradient));
  }

  /** Visits every (head, query, key ≤ query) with the places of its vectors. */
  #forEachPair(length: number, visit: (pair: Pair) => void): void {
    const { heads, kvHeads, headDim } = this.#config;
    const width = (heads + 2 * kvHeads) * headDim;
    for (let head = 0; head < heads; head++) {
      const kvHead = Math.floor(head / (heads / kvHeads));
      for (let query = 0; query < length; query++) {
        for (let key = 0; key <= query; key++) {
          visit({
            score: (head * length + query) * length + key,
            q: query * width + head * headDim,
            k: key * width + (heads + kvHead) * headDim,
            v: key * width + (heads + kvHeads + kvHead) * headDim,
            out: (query * heads + head) * headDim,
          });
        }
      }
    }
  }

  #attend(qkv: Matrix): { probabilities: Matrix; attention: Matrix } {
    const { heads, kvHeads, headDim } = this.#config;
    const length = qkv.length / ((heads + 2 * kvHeads) * headDim);
    const probabilities = new Float64Array(heads * length * length).fill(Number.NEGATIVE_INFINITY);
    const attention = new Float64Array(length * heads * headDim);
    this.#forEachPair(length, ({ score, q, k }) => {
      probabilities[score] = 0;
      for (let j = 0; j < headDim; j++) probabilities[score]! += qkv[q + j]! * qkv[k + j]!;
    });
    for (let row = 0; row < heads * length; row++) {
      softmax(probabilities.subarray(row * length, (row + 1) * length), 1 / Math.sqrt(headDim));
    }
    this.#forEachPair(length, ({ score, v, out }) => {
      for (let j = 0; j < headDim; j++) attention[out + j]! += probabilities[score]! * qkv[v + j]!;
    });
    return { probabilities, attention };
  }

  #attendBackward({ qkv, probabilities }: LayerRecord, dAttention: Matrix): Matrix {
    const { heads, headDim } = this.#config;
    const length = dAttention.length / (heads * headDim);
    const dQkv = new Float64Array(qkv.length);
    const dProbabilities = new Float64Array(probabilities.length);
    const means = new Float64Array(heads * length);
    this.#forEachPair(length, ({ score, v, out }) => {
      for (let j = 0; j < headDim; j++) {
        dProbabilities[score]! += dAttention[out + j]! * qkv[v + j]!;
        dQkv[v + j]! += probabilities[score]! * dAttention[out + j]!;
      }
      means[Math.floor(score / length)]! += probabilities[score]! * dProbabilities[score]!;
    });
    this.#forEachPair(length, ({ score, q, k }) => {
      const slope = probabilities[score]! * (dProbabilities[score]! - means[Math.floor(score / length)]!);
      for (let j = 0; j < headDim; j++) {
        dQkv[q + j]! += (slope * qkv[k + j]!) / Math.sqrt(headDim);
        dQkv[k + j]! += (slope * qkv[q + j]!) / Math.sqrt(headDim);
      }
    });
    return dQkv;
  }

  /** Queries and keys, element j with element j + headDim/2; direction −1 is the backward. */
  #rotate(qkv: Matrix, direction: 1 | -1): void {
    const { heads, kvHeads, headDim, ropeTheta } = this.#config;
    const width = (heads + 2 * kvHeads) * headDim;
    for (let position = 0; position * width < qkv.length; position++) {
      for (let head = 0; head < heads + kvHeads; head++) {
        for (let j = 0; j < headDim / 2; j++) {
          const angle = direction * position * ropeTheta ** ((-2 * j) / headDim);
          const low = position * width + head * headDim + j;
          const high = low + headDim / 2;
          const [a, b] = [qkv[low]!, qkv[high]!];
          qkv[low] = a * Math.cos(angle) - b * Math.sin(angle);
          qkv[high] = b * Math.cos(angle) + a * Math.sin(angle);
        }
      }
    }
  }

  #norm(x: Matrix, gain: number): Matrix {
    const { hiddenSize } = this.#config;
    return x.map((value, i) => value * this.#inverseRms(x, Math.floor(i / hiddenSize)) * this.#weights[gain + (i % hiddenSize)]!);
  }

  #normBackward(x: Matrix, gain: number, dy: Matrix, gradient: Float64Array): Matrix {
    const { hiddenSize } = this.#config;
    const dx = new Float64Array(x.length);
    for (let start = 0; start < x.length; start += hiddenSize) {
      const inverse = this.#inverseRms(x, start / hiddenSize);
      let projection = 0;
      for (let j = 0; j < hiddenSize; j++) {
        projection += dy[start + j]! * this.#weights[gain + j]! * x[start + j]!;
        gradient[gain + j]! += dy[start + j]! * x[start + j]! * inverse;
      }
      for (let j = 0; j < hiddenSize; j++) {
        const straight = dy[start + j]! * this.#weights[gain + j]! * inverse;
        dx[start + j] = straight - (x[start + j]! * projection * inverse ** 3) / hiddenSize;
      }
    }
    return dx;
  }

  #inverseRms(x: Matrix, row: number): number {
    const { hiddenSize, rmsNormEps } = this.#config;
    let squares = 0;
    for (let j = 0; j < hiddenSize; j++) squares += x[row * hiddenSize + j]! ** 2;
    return 1 / Math.sqrt(squares / hiddenSize + rmsNormEps);
  }

  /** y = x · wᵀ */
  #project(x: Matrix, weight: number, inputs: number, outputs: number): Matrix {
    const rows = x.length / inputs;
    const y = new Float64Array(rows * outputs);
    for (let r = 0; r < rows; r++) {
      for (let o = 0; o < outputs; o++) {
        let sum = 0;
        for (let i = 0; i < inputs; i++) sum += x[r * inputs + i]! * this.#weights[weight + o * inputs + i]!;
        y[r * outputs + o] = sum;
      }
    }
    return y;
  }

  /** Adds to the weight's gradient and returns dx. */
  #projectBackward(x: Matrix, weight: number, inputs: number, outputs: number, dy: Matrix, gradient: Float64Array): Matrix {
    const dx = new Float64Array(x.length);
    for (let r = 0; r * inputs < x.length; r++) {
      for (let o = 0; o < outputs; o++) {
        const slope = dy[r * outputs + o]!;
        for (let i = 0; i < inputs; i++) {
          dx[r * inputs + i]! += slope * this.#weights[weight + o * inputs + i]!;
          gradient[weight + o * inputs + i]! += slope * x[r * inputs + i]!;
        }
      }
    }
    return dx;
  }
}

/** Places in the flat matrices. */
interface Pair {
  readonly score: number;
  readonly q: number;
  readonly k: number;
  readonly v: number;
  readonly out: number;
}

/** In place; −∞ becomes 0. */
function softmax(row: Matrix, scale: number): void {
  const top = row.reduce((best, value) => Math.max(best, value), Number.NEGATIVE_INFINITY);
  const sum = row.reduce((total, value) => total + Math.exp(scale * (value - top)), 0);
  row.forEach((value, i) => {
    row[i] = Math.exp(scale * (value - top)) / sum;
  });
}

function sigmoid(x: number): number {
  return 1 / (1 + Math.exp(-x));
}

function add(a: Matrix, b: Matrix): Matrix {
  return a.map((value, i) => value + b[i]!);
}

/** Rows are [gate | up] of `width` each; `i` counts activated elements. */
function forEachGate(
  gateUp: Matrix,
  width: number,
  visit: (gate: number, up: number, i: number, gateAt: number, upAt: number) => void,
): void {
  for (let i = 0; i < gateUp.length / 2; i++) {
    const gateAt = Math.floor(i / width) * 2 * width + (i % width);
    visit(gateUp[gateAt]!, gateUp[gateAt + width]!, i, gateAt, gateAt + width);
  }
}
