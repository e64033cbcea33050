/**
 * From the datums of a pass to our samples. Everything is checked before anything is computed; an error names the datum and the input.
 *
 * A datum is a sequence without its last token, with what belongs to the token after each position beside it; a sample is the whole
 * sequence, with what belongs to each token at the token itself. So everything moves one to the right. There is no mask on the wire:
 * log-probabilities are wanted for every position, and a position without weight (or without advantage and sampled log-probability)
 * is context, which the loss does not see.
 */
import { setImmediate as nextTick } from 'node:timers/promises';
import type { Sample } from '../../core/types.ts';
import type { Datum, PassRequest, Tensor } from '../wire/messages.ts';
import { ApiError } from './api-error.ts';
import { TINKER_LIMITS } from './limits.ts';

export interface Shape {
  readonly vocabSize: number;
  readonly contextLength: number;
}

/** Tokens checked before others get a turn: a millisecond or two. */
const TOKENS_AT_ONCE = 20_000;

const CROSS_ENTROPY = { needed: ['target_tokens'], known: ['target_tokens', 'weights'] } as const;
const OFF_POLICY = {
  needed: ['target_tokens', 'logprobs', 'advantages'],
  known: ['target_tokens', 'logprobs', 'advantages'],
} as const;

/** Throws for the first thing that cannot be trained. */
export async function samplesOf({ data, loss }: PassRequest, shape: Shape): Promise<Sample[]> {
  if (data.length === 0) throw invalid('data', 'is empty, expected at least one datum');
  if (data.length > TINKER_LIMITS.data)
    throw invalid('data', `has ${data.length} datums, expected at most ${TINKER_LIMITS.data}`);
  const samples: Sample[] = [];
  let sinceTick = 0;
  for (const [i, datum] of data.entries()) {
    samples.push(sampleOf(datum, `data[${i}]`, loss, shape));
    sinceTick += datum.tokens.length;
    if (sinceTick < TOKENS_AT_ONCE) continue;
    sinceTick = 0;
    await nextTick();
  }
  return samples;
}

function sampleOf({ tokens, inputs }: Datum, where: string, loss: string, shape: Shape): Sample {
  const length = tokens.length;
  if (length === 0) throw invalid(`${where}.model_input`, 'is empty, expected at least one token');
  // The last target is one more token of the sequence.
  if (length >= shape.contextLength) {
    throw invalid(`${where}.model_input`, `has ${length} tokens, expected less than the context of ${shape.contextLength}`);
  }
  checkIds(tokens, `${where}.model_input`, shape.vocabSize);
  const { needed, known } = loss === 'cross_entropy' ? CROSS_ENTROPY : OFF_POLICY;
  for (const name of needed) if (inputs[name] === undefined) throw invalid(`${where}.loss_fn_inputs.${name}`, 'is missing');
  for (const [name, tensor] of Object.entries(inputs)) {
    if (!known.some((other) => other === name)) {
      throw invalid(`${where}.loss_fn_inputs.${name}`, `is not an input of ${loss}, expected ${known.join(', ')}`);
    }
    checkTensor(tensor, `${where}.loss_fn_inputs.${name}`, name, length);
  }
  const targets = inputs['target_tokens']!.data as Int32Array;
  checkIds(targets, `${where}.loss_fn_inputs.target_tokens`, shape.vocabSize);
  const weights = inputs[loss === 'cross_entropy' ? 'weights' : 'advantages']?.data as Float32Array | undefined;
  checkShift(tokens, targets, weights, where);
  const all = new Int32Array(length + 1);
  all.set(tokens);
  all[length] = targets[length - 1]!;
  return {
    tokens: all,
    mask: new Uint8Array(length + 1).fill(1, 1),
    logprobs: shifted(inputs['logprobs']?.data as Float32Array | undefined, length, 0),
    advantages: shifted(weights, length, 1),
    versions: new Int32Array(length + 1),
    temperature: 1,
    weight: 1,
    rolloutId: where,
    groupId: where,
  };
}

/** One to the right; `otherwise` everywhere where the input was left out. */
function shifted(values: Float32Array | undefined, length: number, otherwise: number): Float32Array {
  const moved = new Float32Array(length + 1);
  if (values === undefined) moved.fill(otherwise, 1);
  else moved.set(values, 1);
  return moved;
}

function checkTensor({ dtype, data, shape }: Tensor, where: string, name: string, length: number): void {
  const wanted = name === 'target_tokens' ? 'int64' : 'float32';
  if (dtype !== wanted) throw invalid(where, `is of ${dtype}, expected ${wanted}`);
  if (data.length !== length) throw invalid(where, `has ${data.length} entries, expected ${length} as model_input has tokens`);
  if (shape !== undefined && shape.length > 1) throw invalid(where, `has the shape [${shape.join(', ')}], expected [${length}]`);
  const bad = dtype === 'float32' ? data.findIndex((value) => !Number.isFinite(value)) : -1;
  if (bad >= 0) throw invalid(`${where}[${bad}]`, `is ${data[bad]}, expected a finite number`);
}

function checkIds(ids: Int32Array, where: string, vocabSize: number): void {
  const bad = ids.findIndex((id) => id < 0 || id >= vocabSize);
  if (bad >= 0) throw invalid(`${where}[${bad}]`, `is the id ${ids[bad]}, outside the vocabulary of ${vocabSize}`);
}

/** What is predicted at a position is the token that follows it: a model that reads other tokens than it learns is another task. */
function checkShift(tokens: Int32Array, targets: Int32Array, weights: Float32Array | undefined, where: string): void {
  for (let i = 0; i + 1 < tokens.length; i++) {
    if (targets[i] === tokens[i + 1] || weights?.[i] === 0) continue;
    throw invalid(
      `${where}.loss_fn_inputs.target_tokens[${i}]`,
      `is ${targets[i]}, expected ${tokens[i + 1]}: the targets are the tokens of model_input moved by one, and one more`,
    );
  }
}

function invalid(where: string, found: string): ApiError {
  return new ApiError('invalid_request', `${where} ${found}`, { param: where });
}
