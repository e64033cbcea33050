/**
 * One batch through the workers: microbatch forward, loss on the main thread, backward; and the AdamW step that follows. Gradients are
 * summed in a fixed number of lanes: microbatch i belongs to lane i mod their number, and one worker processes a lane in order. Which worker takes
 * which lane varies, but never changes the result.
 */
import { TrainyardError } from '../../core/errors.ts';
import {
  type AdamSettings,
  evaluateLoss,
  type ForwardBackwardResult,
  type Loss,
  type LossOutput,
  sumOfLosses,
} from '../../core/policy.ts';
import type { Sample } from '../../core/types.ts';
import type { Arena } from './arena.ts';
import { commonPrefix } from './slots.ts';
import type { Microbatch } from './train-pass.ts';
import type { Span } from './worker-messages.ts';
import type { WorkerPool } from './worker-pool.ts';

/** Log-probabilities of each sample's trained tokens, in sample order. */
export async function forwardBatch(
  pool: WorkerPool,
  arena: Arena,
  weights: number,
  samples: readonly Sample[],
): Promise<Float32Array[]> {
  const results = samples.map(() => new Float32Array(0));
  const { trunk, microbatches } = planBatch(samples, arena);
  if (trunk.length > 0) await pool.call(0, 'trunk', { weights, tokens: trunk, lanes: 0 }, 'TRAINER_FAILED');
  await workOff(pool, arena, microbatches, async (worker, sequences) => {
    const { batch, members } = assemble(sequences, trunk.length);
    const logprobs = await pool.call(worker, 'forward', { weights, batch }, 'TRAINER_FAILED');
    for (const { index, predictions } of members) results[index] = valuesAt(predictions, logprobs);
  });
  return results;
}

/** Adds the batch's gradient to the first `lanes` lanes. If it throws, all lanes are undefined and the caller must clear them. */
export async function forwardBackwardBatch(
  pool: WorkerPool,
  arena: Arena,
  samples: readonly Sample[],
  loss: Loss,
): Promise<ForwardBackwardResult & { readonly lanes: number }> {
  const { trunk: tokens, microbatches } = planBatch(samples, arena);
  const outputs: (LossOutput | undefined)[] = samples.map(() => undefined);
  const found = samples.map(() => new Float32Array(0));
  const { parameters: weights } = arena;
  const lanes = Math.min(arena.lanes, microbatches.length);
  if (tokens.length > 0) await pool.call(0, 'trunk', { weights, tokens, lanes }, 'TRAINER_FAILED');
  await workOff(pool, arena, microbatches, async (worker, sequences, lane) => {
    const { batch, members } = assemble(sequences, tokens.length);
    const logprobs = await pool.call(worker, 'forward', { weights, batch }, 'TRAINER_FAILED');
    const slopes = new Float32Array(logprobs.length);
    for (const { index, sample, predictions } of members) {
      const own = valuesAt(predictions, logprobs);
      const output = evaluateLoss(loss, sample, own, index);
      outputs[index] = output;
      found[index] = own;
      for (let i = 0; i < predictions.length; i++) slopes[predictions[i]!]! += output.gradient[i]! * sample.weight;
    }
    await pool.call(worker, 'backward', { lane, slopes }, 'TRAINER_FAILED');
  });
  if (tokens.length > 0) await pool.call(0, 'trunk-backward', { weights, tokens, lanes }, 'TRAINER_FAILED');
  return { ...sumOfLosses(samples, outputs), logprobs: found, lanes };
}

type Work = (worker: number, microbatch: readonly Sequence[], lane: number) => Promise<void>;

/** Every worker takes the next free lane until all are taken. When this settles, even on failure, all workers are idle. */
async function workOff(
  pool: WorkerPool,
  { lanes }: Arena,
  microbatches: readonly (readonly Sequence[])[],
  work: Work,
): Promise<void> {
  let nextLane = 0;
  let failed = false;
  const runs = Array.from({ length: pool.size }, async (_, worker) => {
    while (nextLane < lanes) {
      const lane = nextLane++;
      for (let i = lane; i < microbatches.length && !failed; i += lanes) {
        await work(worker, microbatches[i]!, lane).catch((thrown: unknown) => {
          failed = true;
          throw thrown;
        });
      }
    }
  });
  const settled = await Promise.allSettled(runs);
  const rejected = settled.find((result) => result.status === 'rejected');
  if (rejected !== undefined) throw rejected.reason;
}

function valuesAt(places: Int32Array, values: Float32Array): Float32Array<ArrayBuffer> {
  const found = new Float32Array(places.length);
  for (let i = 0; i < places.length; i++) found[i] = values[places[i]!]!;
  return found;
}

/**
 * In floats; a multiple of four. The parameters are cut into fixed spans and the norm is summed over spans in order, so the number of
 * threads does not change a bit of the result.
 */
const SPAN = 16_384;

/**
 * Sums the gradient in the first `lanes` lanes, measures its norm, clips it, updates the weights and clears the lanes; `step` counts from
 * 1. Decay is decoupled and applies to every parameter, including norms and embedding. Throws TRAINER_FAILED if the gradient is not finite:
 * the weights are untouched, but the lanes are undefined and the caller must clear them. Also throws it if the new weights are not finite:
 * the old ones are lost, because a copy would cost every step a pass over the memory.
 */
export async function adamStep(
  pool: WorkerPool,
  arena: Arena,
  lanes: number,
  step: number,
  adam: AdamSettings,
): Promise<{ readonly gradNorm: number }> {
  checkSettings(adam);
  const spans = spansPerWorker(arena.flatLength, pool.size);
  const squares = await pool.all('sum-lanes', (worker) => ({ spans: spans[worker]!, lanes }), 'TRAINER_FAILED');
  const gradNorm = Math.sqrt(squares.flat().reduce((sum, square) => sum + square, 0));
  if (!Number.isFinite(gradNorm)) {
    throw new TrainyardError(
      'TRAINER_FAILED',
      `the gradient's norm is ${gradNorm}, expected a finite number`,
      'weights are unchanged and the accumulated gradient is cleared; lower the learning rate or the weights of samples',
    );
  }
  const { maxGradNorm, ...rates } = adam;
  const numbers = {
    ...rates,
    correction1: 1 - adam.beta1 ** step,
    correction2: 1 - adam.beta2 ** step,
    gradientScale: maxGradNorm > 0 && gradNorm > maxGradNorm ? maxGradNorm / gradNorm : 1,
  };
  const finite = await pool.all('adam', (worker) => ({ spans: spans[worker]!, lanes, step: numbers }), 'TRAINER_FAILED');
  if (!finite.every(Boolean)) {
    throw new TrainyardError(
      'TRAINER_FAILED',
      `step ${step} at learning rate ${adam.learningRate} gave weights that are not finite`,
      'the weights in training are lost; load the last checkpoint, which is whole, and lower the learning rate',
    );
  }
  return { gradNorm };
}

function checkSettings(adam: AdamSettings): void {
  for (const [name, value] of Object.entries(adam)) {
    const fits = Number.isFinite(Math.fround(value)) && value >= 0 && (!name.startsWith('beta') || value < 1);
    if (!fits) {
      const expected = name.startsWith('beta') ? 'a number in [0, 1)' : 'a number of at least 0 that float32 can hold';
      throw new TrainyardError('TRAINER_FAILED', `${name} is ${value}, expected ${expected}`);
    }
  }
}

/** Adjacent spans for each worker; the spans themselves do not depend on the number of workers. */
function spansPerWorker(length: number, workers: number): Span[][] {
  const spans = Array.from({ length: Math.ceil(length / SPAN) }, (_, i) => ({
    first: i * SPAN,
    end: Math.min(length, (i + 1) * SPAN),
  }));
  const share = Math.ceil(spans.length / workers);
  return Array.from({ length: workers }, (_, worker) => spans.slice(worker * share, (worker + 1) * share));
}

// From samples to microbatches: each is a tree of sequences in which a shared prefix is computed once. What all samples share, before anything
// is trained, can be computed once for all microbatches: the trunk that their trees stand on. Samples are sorted by their tokens,
// so that shared prefixes are adjacent, and cut into about equal parts. A trained token in a shared prefix is predicted once for all
// sequences that share it. Only tokens decide about sharing, never groups; the cut depends on the samples alone, never on threads. A
// sequence ends before its last trained token, which is only a target; samples without trained tokens are left out.

interface Member {
  /** Index of the sample in the batch. */
  readonly index: number;
  readonly sample: Sample;
  /** Positions of its trained tokens, ascending. */
  readonly positions: Int32Array;
  /** The index of each one's prediction in the microbatch. Members may share predictions. */
  readonly predictions: Int32Array;
}

interface Sequence extends Omit<Member, 'predictions'> {
  /** The tokens before the last trained one, which the model must read. */
  readonly input: Int32Array;
  /** Length of the prefix shared with the previous sequence: because they are sorted, the longest shared with any earlier one. */
  readonly shared: number;
}

/** `trainRows`: the most rows, and targets, of a microbatch; a single sequence always fits. */
type MicrobatchRows = Pick<Arena, 'trainRows' | 'microbatchRows'> & { readonly trunk: Pick<Arena['trunk'], 'rows'> };

/** Fewer microbatches compute what they share faster than a trunk, on which all threads wait. */
const FEWEST_ON_A_TRUNK = 4;
const SHORTEST_TRUNK = 32;

/**
 * `trunk`: what all sequences begin with, computed once for all microbatches; empty if that is not worth it. `assemble` turns each of
 * `microbatches` into one when its turn comes, because assembling all at once would block everything else.
 */
export function planBatch(samples: readonly Sample[], rows: MicrobatchRows) {
  const sequences = inOrder(samples);
  const length = Math.min(rows.trunk.rows, sharedUntrained(sequences));
  if (length >= SHORTEST_TRUNK) {
    const microbatches = cut(sequences, rows, length);
    if (microbatches.length >= FEWEST_ON_A_TRUNK) return { trunk: sequences[0]!.input.slice(0, length), microbatches };
  }
  return { trunk: new Int32Array(0), microbatches: cut(sequences, rows, 0) };
}

/** How many positions all sequences share, before the first row that predicts a trained token. */
function sharedUntrained(sequences: readonly Sequence[]): number {
  if (sequences.length < 2) return 0;
  const shared = commonPrefix(sequences[0]!.input, sequences.at(-1)!.input);
  return sequences.reduce((least, { positions }) => Math.min(least, positions[0]! - 1), shared);
}

function inOrder(samples: readonly Sample[]): Sequence[] {
  const sequences = samples
    .map((sample, index) => ({ index, sample, positions: trainedPositions(sample) }))
    .filter(({ positions }) => positions.length > 0)
    .map((member) => ({ ...member, input: member.sample.tokens.subarray(0, member.positions.at(-1)) }))
    .sort((a, b) => compareTokens(a.input, b.input) || a.index - b.index);
  return sequences.map((sequence, i) => ({
    ...sequence,
    shared: i === 0 ? 0 : commonPrefix(sequences[i - 1]!.input, sequence.input),
  }));
}

function trainedPositions({ mask }: Sample): Int32Array {
  const positions = new Int32Array(mask.length);
  let count = 0;
  for (let i = 0; i < mask.length; i++) if (mask[i] === 1) positions[count++] = i;
  return positions.subarray(0, count);
}

function compareTokens(a: Int32Array, b: Int32Array): number {
  const i = commonPrefix(a, b);
  return i < a.length && i < b.length ? a[i]! - b[i]! : a.length - b.length;
}

/**
 * Parts of about equal size, so that threads finish together: as many as there are whole microbatches, rounded up to a multiple of four if
 * more than two. A part ends where it comes nearest to its share.
 */
function cut(
  sequences: readonly Sequence[],
  { trainRows: capacity, microbatchRows }: MicrobatchRows,
  trunk: number,
): Sequence[][] {
  const total = sequences.reduce((sum, { input, shared }) => sum + input.length - Math.max(trunk, shared), 0);
  const shared =
    sequences.reduce((sum, sequence) => sum + Math.max(0, sequence.shared - trunk), 0) / Math.max(1, sequences.length);
  const wanted = shared * 2 >= microbatchRows.usual ? microbatchRows.sharing : microbatchRows.usual;
  const least = Math.ceil(total / wanted);
  const share = total / (least > 2 ? Math.ceil(least / 4) * 4 : least);
  const parts: Sequence[][] = [];
  let rows = 0;
  let path = new PredictedPath();
  let left = 0;
  for (const sequence of sequences) {
    const depth = Math.max(trunk, sequence.shared);
    const added = sequence.input.length - depth;
    path.cut(sequence.shared);
    const full = rows + added > capacity || path.count + path.missing(sequence) > capacity;
    if (parts.length === 0 || full || added / 2 > left) {
      parts.push([]);
      left += share;
      rows = depth - trunk;
      path = new PredictedPath();
    }
    parts.at(-1)!.push(sequence);
    rows += added;
    left -= added;
    path.add(sequence);
  }
  return parts;
}

/** The predictions along one path of the tree while it is built. A different temperature makes a different prediction. */
class PredictedPath {
  /** By position: the prediction of its token, and its temperature. A temperature of 0 means no prediction. */
  readonly #predictions: number[] = [];
  readonly #temperatures: number[] = [];
  /** Number of predictions so far, on all paths. */
  count = 0;

  /** The next sequence shares its first `depth` tokens with the last one. */
  cut(depth: number): void {
    if (this.#temperatures.length <= depth) return;
    this.#predictions.length = depth;
    this.#temperatures.length = depth;
  }

  /** How many predictions `add` would create. */
  missing({ sample, positions }: Sequence): number {
    let missing = 0;
    for (let i = 0; i < positions.length; i++) if (this.#temperatures[positions[i]!] !== sample.temperature) missing++;
    return missing;
  }

  /** The sequence's predictions; new ones are numbered from the previous `count` on. */
  add({ sample: { temperature }, positions }: Sequence): Int32Array {
    const found = new Int32Array(positions.length);
    for (let i = 0; i < positions.length; i++) {
      const position = positions[i]!;
      while (this.#temperatures.length <= position) {
        this.#predictions.push(0);
        this.#temperatures.push(0);
      }
      if (this.#temperatures[position] !== temperature) {
        this.#predictions[position] = this.count++;
        this.#temperatures[position] = temperature;
      }
      found[i] = this.#predictions[position]!;
    }
    return found;
  }
}

/** Rows in depth-first order: a sequence adds what follows its shared prefix. All begin with a trunk of that length, which has no rows. */
export function assemble(sequences: readonly Sequence[], trunk = 0) {
  const tokens: number[] = [];
  const segments: number[] = [];
  const rows: number[] = [];
  const targets: number[] = [];
  const inverseTemperatures: number[] = [];
  const members: Member[] = [];
  /** The row of each position of the current sequence. */
  const path: number[] = [];
  const predicted = new PredictedPath();
  sequences.forEach((sequence, i) => {
    const { index, sample, positions, input, shared } = sequence;
    const depth = i === 0 ? trunk : shared;
    predicted.cut(depth);
    if (input.length > depth) segments.push(tokens.length, depth, input.length - depth);
    path.length = depth;
    for (let k = depth; k < input.length; k++) path.push(tokens.push(input[k]!) - 1);
    const predictions = predicted.add(sequence);
    members.push({ index, sample, positions, predictions });
    for (let k = 0; k < positions.length; k++) {
      if (predictions[k]! < rows.length) continue;
      // A token is predicted by the row before it.
      rows.push(path[positions[k]! - 1]!);
      targets.push(sample.tokens[positions[k]!]!);
      inverseTemperatures.push(1 / sample.temperature);
    }
  });
  const batch: Microbatch = {
    trunk,
    tokens: new Int32Array(tokens),
    segments: new Int32Array(segments),
    rows: new Int32Array(rows),
    targets: new Int32Array(targets),
    inverseTemperatures: new Float32Array(inverseTemperatures),
  };
  return { batch, members };
}
