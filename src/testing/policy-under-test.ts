/**
 * What the suites for engines and trainers share: what is handed to them, made-up prompts and samples, and how numbers are compared.
 *
 * Prompts and samples fit any policy with a vocabulary of at least 16 ids and a context of at least 64.
 */
import assert from 'node:assert/strict';
import { type ErrorCode, TrainyardError } from '../core/errors.ts';
import type { Engine, SampleRequest, SampleResult, Trainer } from '../core/policy.ts';
import type { Sample, SamplingSettings } from '../core/types.ts';

export interface EngineUnderTest extends AsyncDisposable {
  readonly engine: Engine;
}

/** Both ends of one policy: what the trainer publishes, the engine serves. */
export interface PolicyUnderTest extends EngineUnderTest {
  readonly trainer: Trainer;
}

export interface PolicyConformanceOptions {
  /**
   * How far apart two log-probabilities of the same token under the same weights may lie, however they were computed. 0, for equal to
   * the bit, is for policies whose arithmetic does not depend on batching; by default 1e-4.
   */
  readonly tolerance?: number;
}

export const TOLERANCE = 1e-4;

/** Ids that look random and are the same each time. */
export function idsFor(engine: Engine, length: number, seed: number): Int32Array {
  return Int32Array.from({ length }, (_, i) => scrambled(seed, i) % engine.vocabSize);
}

export function requestFor(
  promptIds: Int32Array,
  changes: Partial<SamplingSettings> & Pick<Partial<SampleRequest>, 'seed' | 'stopIds' | 'affinity'> = {},
): SampleRequest {
  const { seed = 1, stopIds = [], affinity, ...sampling } = changes;
  const settings = { temperature: 1, topP: 1, topK: 0, maxTokens: 8, ...sampling };
  return { promptIds, sampling: settings, stopIds, seed, ...(affinity === undefined ? {} : { affinity }) };
}

/** Tokens from the third on are trained, except every fifth: what is masked out is not only a prompt. */
export function sampleFor(engine: Engine, length: number, seed: number, changes: Partial<Sample> = {}): Sample {
  const mask = Uint8Array.from({ length }, (_, i) => (i >= 2 && i % 5 !== 4 ? 1 : 0));
  const trained = (value: (i: number) => number) => Float32Array.from(mask, (m, i) => (m === 1 ? value(i) : 0));
  return {
    tokens: idsFor(engine, length, seed),
    mask,
    logprobs: trained((i) => -2 - (scrambled(seed + 1, i) % 100) / 100),
    advantages: trained((i) => 0.5 + (scrambled(seed + 2, i) % 100) / 100),
    versions: new Int32Array(length),
    temperature: 1,
    weight: 1,
    rolloutId: `rollout-${seed}`,
    groupId: 'group',
    ...changes,
  };
}

/** What was sampled, as a sample to score: its masked tokens are the sampled ones. */
export function scoredSample(promptIds: Int32Array, { ids, logprobs }: SampleResult, temperature = 1): Sample {
  const length = promptIds.length + ids.length;
  const behindPrompt = <A extends Float32Array | Int32Array>(array: A, values: ArrayLike<number>): A => {
    array.set(values, promptIds.length);
    return array;
  };
  const tokens = behindPrompt(new Int32Array(length), ids);
  tokens.set(promptIds);
  return {
    tokens,
    mask: Uint8Array.from(tokens, (_, i) => (i >= promptIds.length ? 1 : 0)),
    logprobs: behindPrompt(new Float32Array(length), logprobs),
    advantages: new Float32Array(length),
    versions: new Int32Array(length),
    temperature,
    weight: 1,
    rolloutId: 'scored',
    groupId: 'group',
  };
}

/** What belongs to the masked tokens, in order. */
export function atMask(sample: Sample, values: Float32Array): Float32Array {
  return values.filter((_, i) => sample.mask[i] === 1);
}

export function sameNumbers(found: ArrayLike<number>, expected: ArrayLike<number>, tolerance: number, what: string): void {
  assert.equal(found.length, expected.length, `${what}: found ${found.length} numbers, expected ${expected.length}`);
  for (let i = 0; i < found.length; i++) {
    const close = Math.abs(found[i]! - expected[i]!) <= tolerance;
    assert.ok(close, `${what}: number ${i} is ${found[i]}, expected ${expected[i]} within ${tolerance}`);
  }
}

export function sameResult(found: SampleResult, expected: SampleResult, tolerance: number, what: string): void {
  assert.deepEqual([...found.ids], [...expected.ids], `${what}: ids`);
  assert.equal(found.stopReason, expected.stopReason, `${what}: stopReason`);
  sameNumbers(found.logprobs, expected.logprobs, tolerance, `${what}: log-probabilities`);
}

/** That it rejects as a typed error of one of these codes. */
export async function refuses(codes: readonly ErrorCode[], promise: Promise<unknown>, what: string): Promise<void> {
  const outcome = await promise.then(
    () => 'it was accepted',
    (thrown: unknown) => thrown,
  );
  assert.ok(outcome instanceof TrainyardError, `${what}: expected ${codes.join(' or ')}, found: ${String(outcome)}`);
  assert.ok(codes.includes(outcome.code), `${what}: expected ${codes.join(' or ')}, found ${outcome.code}: ${outcome.message}`);
}

/** For `catch`: undefined for what an implementation that cannot do it answers; anything else is thrown again. */
export function refusedWith(...codes: readonly ErrorCode[]): (thrown: unknown) => undefined {
  return (thrown) => {
    if (!(thrown instanceof TrainyardError && codes.includes(thrown.code))) throw thrown;
  };
}

/** A whole number of 31 bits. */
function scrambled(seed: number, i: number): number {
  let x = (Math.imul(seed, 0x9e3779b1) ^ Math.imul(i + 1, 0x85ebca6b)) | 0;
  for (let round = 0; round < 2; round++) x = Math.imul(x ^ (x >>> 15), 0x2c1b3c6d);
  return (x ^ (x >>> 16)) >>> 1;
}
