/**
 * From samples to microbatches: checking each sample, and cutting the batch into ragged pieces.
 *
 * The cut depends on the samples alone, never on threads: sorted by length (then by place), filled up to a fixed number of tokens. A
 * sequence ends before its last trained token, which is only a target; samples without trained tokens are left out.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Sample } from '../core/types.ts';
import { MICROBATCH_TOKENS } from './arena.ts';
import type { LlamaConfig } from './config.ts';
import { isTemperature, MIN_TEMPERATURE } from './request.ts';
import type { Microbatch } from './train-pass.ts';

export interface Member {
  /** Place of the sample in the batch. */
  readonly index: number;
  readonly sample: Sample;
  /** Positions of its trained tokens, ascending. */
  readonly positions: Int32Array;
  /** Where its trained rows begin among the microbatch's. */
  readonly firstRow: number;
}

export interface PlannedMicrobatch {
  readonly batch: Microbatch;
  readonly members: readonly Member[];
}

/** Throws SAMPLE_REFUSED for what cannot be trained as it is. */
export function checkSample(sample: Sample, index: number, config: LlamaConfig): void {
  const refuse = (found: string) => {
    throw new TrainyardError('SAMPLE_REFUSED', `sample ${index} (rollout ${JSON.stringify(sample.rolloutId)}): ${found}`);
  };
  const length = sample.tokens.length;
  const { mask, logprobs, advantages, versions, reference } = sample;
  for (const [name, array] of Object.entries({ mask, logprobs, advantages, versions, reference })) {
    if (array !== undefined && array.length !== length)
      refuse(`${name} has ${array.length} entries, expected ${length} as tokens`);
  }
  if (length > config.contextLength) refuse(`it has ${length} tokens, the context is ${config.contextLength}`);
  if (mask[0] === 1) refuse('its first token is masked in, but nothing predicts it');
  const badMask = mask.find((m) => m > 1);
  if (badMask !== undefined) refuse(`mask holds ${badMask}, expected 0 or 1`);
  const badId = sample.tokens.find((id) => id < 0 || id >= config.vocabSize);
  if (badId !== undefined) refuse(`token id ${badId} is outside the vocabulary of ${config.vocabSize}`);
  for (const [name, array] of Object.entries({ logprobs, advantages, reference })) {
    const bad = array?.find((value) => !Number.isFinite(value));
    if (bad !== undefined) refuse(`${name} holds ${bad}, expected finite numbers`);
  }
  if (!Number.isFinite(sample.weight)) refuse(`its weight is ${sample.weight}, expected a finite number`);
  if (!isTemperature(sample.temperature)) {
    refuse(`its temperature is ${sample.temperature}, expected at least ${MIN_TEMPERATURE}`);
  }
}

export function planMicrobatches(samples: readonly Sample[]): PlannedMicrobatch[] {
  const rows = samples
    .map((sample, index) => ({ index, sample, positions: trainedPositions(sample) }))
    .filter(({ positions }) => positions.length > 0)
    .sort((a, b) => inputLength(a.positions) - inputLength(b.positions) || a.index - b.index);

  const groups: (typeof rows)[] = [];
  let tokens = Number.POSITIVE_INFINITY;
  for (const row of rows) {
    const length = inputLength(row.positions);
    if (tokens + length > MICROBATCH_TOKENS) {
      groups.push([]);
      tokens = 0;
    }
    groups.at(-1)!.push(row);
    tokens += length;
  }
  return groups.map(assemble);
}

/** Tokens before the last trained one: what the model must read. */
function inputLength(positions: Int32Array): number {
  return positions.at(-1)!;
}

function trainedPositions({ mask }: Sample): Int32Array {
  const positions: number[] = [];
  mask.forEach((m, i) => {
    if (m === 1) positions.push(i);
  });
  return Int32Array.from(positions);
}

function assemble(rows: readonly Omit<Member, 'firstRow'>[]): PlannedMicrobatch {
  const lengths = rows.map(({ positions }) => inputLength(positions));
  const rowCount = rows.reduce((sum, { positions }) => sum + positions.length, 0);
  const batch = {
    tokens: new Int32Array(lengths.reduce((sum, n) => sum + n, 0)),
    lengths,
    rows: new Int32Array(rowCount),
    targets: new Int32Array(rowCount),
    inverseTemperatures: new Float32Array(rowCount),
  };
  const members: Member[] = [];
  let start = 0;
  let row = 0;
  rows.forEach(({ index, sample, positions }, i) => {
    members.push({ index, sample, positions, firstRow: row });
    batch.tokens.set(sample.tokens.subarray(0, lengths[i]!), start);
    for (const position of positions) {
      // The token at `position` is predicted by the row before it.
      batch.rows[row] = start + position - 1;
      batch.targets[row] = sample.tokens[position]!;
      batch.inverseTemperatures[row] = 1 / sample.temperature;
      row++;
    }
    start += lengths[i]!;
  });
  return { batch, members };
}
