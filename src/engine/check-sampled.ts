/**
 * Checks what a server says it sampled, before it becomes a turn that is trained on: ids of the vocabulary, a log-probability for
 * each, no more than asked for, and a stop id exactly where the server says it stopped at one.
 */

import { TrainyardError } from '../core/errors.ts';
import type { SampleResult } from '../core/policy.ts';
import type { SampledSequence } from '../tinker/types.ts';

/** Rounding can lift the log-probability of a certain token a little above 0. */
const ABOVE_ZERO = 1e-3;

interface Asked {
  readonly vocabSize: number;
  readonly maxTokens: number;
  readonly stopIds: readonly number[];
}

/** Throws POLICY_GARBLED. */
export function checkSampled(sequence: SampledSequence, asked: Asked): Omit<SampleResult, 'policyVersion'> {
  const { tokens: ids, logprobs, stopReason } = sequence;
  if (logprobs === undefined) throw garbled('no log-probabilities', 'one for each id');
  if (logprobs.length !== ids.length)
    throw garbled(`${logprobs.length} log-probabilities`, `one for each of the ${ids.length} ids`);
  if (ids.length === 0) throw garbled('no ids', 'at least one');
  if (ids.length > asked.maxTokens) throw garbled(`${ids.length} ids`, `at most ${asked.maxTokens}`);
  const badId = ids.find((id) => id < 0 || id >= asked.vocabSize);
  if (badId !== undefined) throw garbled(`id ${badId}`, `ids below ${asked.vocabSize}`);
  const bad = logprobs.find((value) => !(Number.isFinite(value) && value <= ABOVE_ZERO));
  if (bad !== undefined) throw garbled(`log-probability ${bad}`, 'finite ones of at most 0');
  const stop = ids.findIndex((id) => asked.stopIds.includes(id));
  if (stop >= 0 && stop < ids.length - 1)
    throw garbled(`${ids.length - 1 - stop} ids after stop id ${ids[stop]}`, 'it to be the last');
  const last = ids[ids.length - 1]!;
  if (stopReason === 'stop' && stop < 0)
    throw garbled(`stop_reason "stop" with last id ${last}`, 'one of the stop ids to be the last');
  return { ids, logprobs, stopReason: stop >= 0 ? 'stop' : stopReason };
}

function garbled(found: string, expected: string): TrainyardError {
  return new TrainyardError('POLICY_GARBLED', `the server sampled ${found}, expected ${expected}`, {
    hint: 'what it samples cannot be trained on; check the server’s version and its base model against the model folder',
  });
}
