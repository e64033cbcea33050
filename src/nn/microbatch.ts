/**
 * From samples to microbatches: each a tree of sequences in which a prefix that several share is computed once.
 *
 * Samples are sorted by their tokens, so that what shares a prefix lies together, and cut into about equal parts. A trained token in
 * a shared prefix is predicted once for all who share it. Sharing is a fact about tokens; nothing here looks at groups. The cut depends
 * on the samples alone, never on threads. A sequence ends before its last trained token, which is only a target; samples without trained
 * tokens are left out.
 */
import type { Sample } from '../core/types.ts';
import { MICROBATCH_ROWS } from './arena.ts';
import { commonPrefix } from './slots.ts';
import type { Microbatch } from './train-pass.ts';

interface Member {
  /** Place of the sample in the batch. */
  readonly index: number;
  readonly sample: Sample;
  /** Positions of its trained tokens, ascending. */
  readonly positions: Int32Array;
  /** Which of the microbatch's predictions belongs to each of them. Several members may have one in common. */
  readonly predictions: Int32Array;
}

interface PlannedMicrobatch {
  readonly batch: Microbatch;
  readonly members: readonly Member[];
}

/** A sample on its way into a microbatch. */
export interface Sequence extends Omit<Member, 'predictions'> {
  /** Tokens before the last trained one: what the model must read. */
  readonly input: Int32Array;
  /** Length of the prefix in common with the sequence before it: by the order, the longest in common with any before. */
  readonly shared: number;
}

/**
 * The sequences of each microbatch, which `assemble` makes into one when its turn has come: all at once would stop everything else.
 * `capacity` is how many rows, and how many targets, a microbatch can hold; a sequence fits in any case.
 */
export function planMicrobatches(samples: readonly Sample[], capacity: number): (readonly Sequence[])[] {
  return cut(inOrder(samples), capacity);
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
 * Parts of about equal size, so that threads finish together: as many as there are whole microbatches, rounded up to a
 * multiple of four where there are more than two. A part ends where it comes nearest to its share.
 */
function cut(sequences: readonly Sequence[], capacity: number): Sequence[][] {
  const total = sequences.reduce((sum, { input, shared }) => sum + input.length - shared, 0);
  const least = Math.ceil(total / MICROBATCH_ROWS);
  const share = total / (least > 2 ? Math.ceil(least / 4) * 4 : least);
  const parts: Sequence[][] = [];
  let rows = 0;
  let path = new PredictedPath();
  let left = 0;
  for (const sequence of sequences) {
    const added = sequence.input.length - sequence.shared;
    path.cut(sequence.shared);
    const full = rows + added > capacity || path.count + path.missing(sequence) > capacity;
    if (parts.length === 0 || full || added / 2 > left) {
      parts.push([]);
      left += share;
      rows = sequence.shared;
      path = new PredictedPath();
    }
    parts.at(-1)!.push(sequence);
    rows += added;
    left -= added;
    path.add(sequence);
  }
  return parts;
}

/** The predictions along one path of the tree, while it is built. One of another temperature is another one. */
class PredictedPath {
  /** Of each position: the prediction of its token, and its temperature. Nothing, or a temperature of 0, where there is none. */
  readonly #predictions: number[] = [];
  readonly #temperatures: number[] = [];
  /** Made so far, on all paths. */
  count = 0;

  /** The next sequence has the first `depth` tokens in common with the last one. */
  cut(depth: number): void {
    if (this.#temperatures.length <= depth) return;
    this.#predictions.length = depth;
    this.#temperatures.length = depth;
  }

  /** How many predictions `add` would make. */
  missing({ sample, positions }: Sequence): number {
    let missing = 0;
    for (let i = 0; i < positions.length; i++) if (this.#temperatures[positions[i]!] !== sample.temperature) missing++;
    return missing;
  }

  /** The sequence's predictions; those that are new have numbers from the former `count` on. */
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

/** Rows in depth-first order: a sequence adds what follows its shared prefix. */
export function assemble(sequences: readonly Sequence[]): PlannedMicrobatch {
  const tokens: number[] = [];
  const segments: number[] = [];
  const rows: number[] = [];
  const targets: number[] = [];
  const inverseTemperatures: number[] = [];
  const members: Member[] = [];
  /** Row of each position of the current sequence. */
  const path: number[] = [];
  const predicted = new PredictedPath();
  sequences.forEach((sequence, i) => {
    const { index, sample, positions, input, shared } = sequence;
    const depth = i === 0 ? 0 : shared;
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
  const batch = {
    tokens: new Int32Array(tokens),
    segments: new Int32Array(segments),
    rows: new Int32Array(rows),
    targets: new Int32Array(targets),
    inverseTemperatures: new Float32Array(inverseTemperatures),
  };
  return { batch, members };
}
