/**
 * Checks what an engine says it sampled, whichever engine it is, before it becomes a turn that is trained on: ids of the vocabulary, a
 * log-probability for each, no more than asked for, a stop id exactly where the engine says it stopped at one, and a version that was
 * served meanwhile. Whatever passes is copied: the engine may use its buffers again.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Engine, SampleRequest, SampleResult } from '../core/policy.ts';

/** Rounding can lift the log-probability of a certain token a little above 0. */
const ABOVE_ZERO = 1e-3;

export interface Expected {
  readonly engine: Pick<Engine, 'vocabSize' | 'contextLength' | 'policyVersion'>;
  readonly request: SampleRequest;
  /** The version that was served when the request was sent. */
  readonly servedBefore: number;
  /** How many ids a listener wanted to keep, where one ended the sampling. */
  readonly kept: number | undefined;
}

/** Throws POLICY_GARBLED. */
export function checkSampled(result: SampleResult, { engine, request, servedBefore, kept }: Expected): SampleResult {
  const { ids: givenIds, logprobs: given, stopReason, policyVersion } = result ?? {};
  if (!isList(givenIds) || givenIds.length === 0) throw garbled('no ids', 'at least one');
  if (!isList(given) || given.length !== givenIds.length) {
    throw garbled(`${isList(given) ? given.length : 'no'} log-probabilities`, `one for each of the ${givenIds.length} ids`);
  }
  checkIds(givenIds, engine.vocabSize);
  const [ids, logprobs] = [Int32Array.from(givenIds), Float32Array.from(given)];
  const most = Math.min(request.sampling.maxTokens, engine.contextLength - request.promptIds.length, kept ?? Infinity);
  if (ids.length > most) throw garbled(`${ids.length} ids`, `at most ${most}`);
  const bad = logprobs.find((value) => !(Number.isFinite(value) && value <= ABOVE_ZERO));
  if (bad !== undefined) throw garbled(`log-probability ${bad}`, 'finite ones of at most 0');
  const stop = ids.findIndex((id) => request.stopIds.includes(id));
  if (stop >= 0 && stop < ids.length - 1)
    throw garbled(`${ids.length - 1 - stop} ids after stop id ${ids[stop]}`, 'it to be the last');
  if (stopReason !== 'length' && stopReason !== 'stop')
    throw garbled(`with stop reason ${JSON.stringify(stopReason)}`, '"stop" or "length"');
  if (stopReason === 'stop' && stop < 0 && kept === undefined)
    throw garbled(`"stop" with last id ${ids.at(-1)}`, 'one of the stop ids to be the last');
  const [oldest, newest] = [servedBefore, engine.policyVersion].toSorted((a, b) => a - b) as [number, number];
  if (!(Number.isSafeInteger(policyVersion) && policyVersion >= oldest && policyVersion <= newest)) {
    throw garbled(`from policy version ${policyVersion}`, `version ${oldest === newest ? newest : `${oldest} to ${newest}`}`);
  }
  return { ids, logprobs, stopReason: stop >= 0 ? 'stop' : stopReason, policyVersion };
}

/** Throws POLICY_GARBLED for ids outside of the vocabulary. */
export function checkIds(ids: ArrayLike<number>, vocabSize: number): void {
  const bad = Array.prototype.findIndex.call(ids, (id: number) => !(Number.isInteger(id) && id >= 0 && id < vocabSize));
  if (bad !== -1) throw garbled(`id ${ids[bad]}`, `ids below ${vocabSize}`);
}

const isList = (value: unknown): value is ArrayLike<number> => Array.isArray(value) || ArrayBuffer.isView(value);

function garbled(found: string, expected: string): TrainyardError {
  return new TrainyardError('POLICY_GARBLED', `the engine sampled ${found}, expected ${expected}`, {
    hint: 'what it samples cannot be trained on; of a server, check its version and its base model against the model folder',
  });
}
