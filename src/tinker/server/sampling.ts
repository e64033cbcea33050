/**
 * One sample request on a model that serves the right weights: its checks, its sequences, their log-probabilities.
 *
 * Log-probabilities are those of the plain softmax, whatever temperature and truncation the tokens were drawn with: that is what the
 * losses of the API compare with. Where tokens were drawn otherwise, they are computed by a pass of their own over the same weights.
 */
import { createHash, randomInt } from 'node:crypto';
import type { OnTokens } from '../../core/policy.ts';
import type { Sample, SamplingSettings } from '../../core/types.ts';
import type { EmbeddedModel } from '../../nn/policy.ts';
import type { Tokenizer } from '../../tokens/tokenizer.ts';
import type { SampleCall, SampledSequence, SampleReply } from '../wire/messages.ts';
import { ApiError } from './api-error.ts';
import { TINKER_LIMITS } from './limits.ts';
import type { Shape } from './training-data.ts';

/** Below it a softmax leaves the range of float32; clients mean 0 by it. */
const LEAST_TEMPERATURE = 1e-3;

/** Throws for what cannot be sampled. Before the request is taken: a client that asks for nonsense is told at once. */
export function checkSampleCall(call: SampleCall, { vocabSize, contextLength }: Shape, tokenizer: Tokenizer | undefined): void {
  const { prompt, count, maxTokens, temperature, topK, topP, stop } = call;
  if (prompt.length === 0) throw invalid('prompt', 'is empty, expected at least one token');
  if (prompt.length >= contextLength) {
    throw invalid('prompt', `has ${prompt.length} tokens, expected less than the context of ${contextLength}`);
  }
  const bad = prompt.findIndex((id) => id < 0 || id >= vocabSize);
  if (bad >= 0) throw invalid('prompt', `has the id ${prompt[bad]} at ${bad}, outside the vocabulary of ${vocabSize}`);
  if (count > TINKER_LIMITS.samples) throw invalid('num_samples', `is ${count}, expected at most ${TINKER_LIMITS.samples}`);
  if (maxTokens !== undefined && maxTokens < 1)
    throw invalid('sampling_params.max_tokens', `is ${maxTokens}, expected at least 1`);
  if (!(temperature >= 0)) throw invalid('sampling_params.temperature', `is ${temperature}, expected at least 0`);
  if (!(topP > 0 && topP <= 1)) throw invalid('sampling_params.top_p', `is ${topP}, expected more than 0 and at most 1`);
  if (topK < -1) throw invalid('sampling_params.top_k', `is ${topK}, expected -1 or more`);
  if (stop.some((one) => one === '')) throw invalid('sampling_params.stop', 'holds an empty text');
  if (typeof stop[0] === 'string' && tokenizer === undefined) {
    throw invalid('sampling_params.stop', 'holds texts, but the model folder has no tokenizer', 'give the ids of stop tokens');
  }
}

export interface SamplingParts {
  readonly model: EmbeddedModel;
  readonly tokenizer: Tokenizer | undefined;
  readonly signal: AbortSignal;
}

export async function sampleReplyOf(call: SampleCall, { model, tokenizer, signal }: SamplingParts): Promise<SampleReply> {
  const sampling = settingsOf(call, model.contextLength);
  const stopIds = call.stop.filter((stop) => typeof stop === 'number');
  const stopTexts = call.stop.filter((stop) => typeof stop === 'string');
  const seed = call.seed ?? randomInt(2 ** 47);
  // They share the prompt, so they are better off on one worker.
  const affinity = call.count > 1 ? `${seed}` : undefined;
  const drawn = await Promise.all(
    Array.from({ length: call.count }, (_, i) =>
      model.sample(
        { promptIds: call.prompt, sampling, stopIds, seed: seedOf(seed, i), ...(affinity === undefined ? {} : { affinity }) },
        signal,
        stopTexts.length > 0 && tokenizer ? watcherOf(stopTexts, tokenizer) : undefined,
      ),
    ),
  );
  const isPlain = sampling.temperature === 1 && sampling.topP === 1 && sampling.topK === 0;
  const plain = isPlain
    ? drawn.map(({ logprobs }) => logprobs)
    : await model.forward(drawn.map(({ ids }) => scored(call.prompt, ids)));
  const sequences = drawn.map(({ ids, stopReason }, i): SampledSequence => ({ stopReason, tokens: ids, logprobs: plain[i]! }));
  if (!call.wantsPromptLogprobs) return { sequences };
  const promptLogprobs = new Float32Array(call.prompt.length).fill(Number.NaN);
  const [found] = await model.forward([scored(call.prompt.subarray(0, 1), call.prompt.subarray(1))]);
  promptLogprobs.set(found!, 1);
  return { sequences, promptLogprobs };
}

function settingsOf({ temperature, topK, topP, maxTokens, prompt }: SampleCall, contextLength: number): SamplingSettings {
  return {
    temperature: temperature < LEAST_TEMPERATURE ? 0 : temperature,
    topK: Math.max(topK, 0),
    topP,
    maxTokens: maxTokens ?? contextLength - prompt.length,
  };
}

/** The first sequence has the request's own seed, so that a client of one sequence knows it; the others have seeds that look unrelated. */
function seedOf(seed: number, index: number): number {
  if (index === 0) return seed;
  return createHash('sha256').update(`${seed} ${index}`).digest().readUIntBE(0, 6);
}

/** Ends a sequence with the token that completes a stop text; the tokens of the text are part of it. */
function watcherOf(stopTexts: readonly string[], tokenizer: Tokenizer): OnTokens {
  // A token may be a byte of a character only: as many as a text has bytes always hold it, and a few more what it was cut from.
  const span = Math.max(...stopTexts.map((text) => Buffer.byteLength(text))) + 4;
  let latest: number[] = [];
  return (ids) => {
    for (const [i, id] of ids.entries()) {
      latest = [...latest, id].slice(-span);
      const text = tokenizer.decode(latest);
      if (stopTexts.some((stop) => text.includes(stop))) return { keep: i + 1 };
    }
    return undefined;
  };
}

/** What the plain softmax makes of `ids` behind a prompt. */
function scored(prompt: Int32Array, ids: Int32Array): Sample {
  const length = prompt.length + ids.length;
  const tokens = new Int32Array(length);
  tokens.set(prompt);
  tokens.set(ids, prompt.length);
  const none = new Float32Array(length);
  const mask = new Uint8Array(length).fill(1, prompt.length);
  return {
    tokens,
    mask,
    logprobs: none,
    advantages: none,
    versions: new Int32Array(length),
    temperature: 1,
    weight: 1,
    rolloutId: 'scored',
    groupId: 'scored',
  };
}

function invalid(param: string, found: string, hint?: string): ApiError {
  return new ApiError('invalid_request', `${param} ${found}`, { param, ...(hint === undefined ? {} : { hint }) });
}
