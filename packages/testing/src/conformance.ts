/**
 * Shared by the conformance suites: cases, policies under test, prompts and samples, assertions, and `TrainerProbe`. Prompts and samples
 * fit any policy with a vocabulary of at least 16 ids and a context of at least 64 tokens.
 */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type AdamSettings,
  type Engine,
  type ErrorCode,
  type Loss,
  type LossInput,
  type Sample,
  type SampleRequest,
  type SampleResult,
  type SamplingSettings,
  type Trainer,
  TrainyardError,
} from '../../../src/index.ts';
import { crossEntropy } from '../../../src/loop.ts';
import { scrambled } from './trajectories.ts';

export interface ConformanceCase {
  readonly name: string;
  run(): Promise<void>;
}

/** Makes one case per sentence. */
export function casesOf<Check>(
  name: string,
  sentences: Readonly<Record<string, Check>>,
  run: (check: Check) => Promise<void>,
): readonly ConformanceCase[] {
  return Object.entries(sentences).map(([sentence, check]) => ({ name: `${name} ${sentence}`, run: () => run(check) }));
}

/** Asserts that the promise rejects with this code, a matching message and a hint. */
export async function rejectsWith(code: ErrorCode, promise: Promise<unknown>, message = /./): Promise<void> {
  const thrown = await refuses([code], promise, 'the call');
  assert.match(thrown.message, message);
  assert.ok(thrown.hint, `${code} says what happened but not what to do`);
}

export interface EngineUnderTest extends AsyncDisposable {
  readonly engine: Engine;
}

/** A trainer and the engine that serves what it publishes. */
export interface PolicyUnderTest extends EngineUnderTest {
  readonly trainer: Trainer;
}

export interface PolicyConformanceOptions {
  /** Largest difference between log-probabilities of one token under the same weights; 0 if batching changes no bit. Default 1e-4. */
  readonly tolerance?: number;
}

export const TOLERANCE = 1e-4;

/** Pseudo-random ids that depend only on `length` and `seed`. */
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

/** Trains tokens from the third on, except every fifth, so that masked tokens also occur after the prompt. */
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

/** A sample for scoring what was sampled: its mask selects the sampled tokens. */
export function scoredSample(engine: Engine, promptIds: Int32Array, { ids, logprobs }: SampleResult, temperature = 1): Sample {
  const before = promptIds.length;
  const tokens = Int32Array.of(...promptIds, ...ids);
  return sampleFor(engine, tokens.length, 0, {
    tokens,
    mask: Uint8Array.from(tokens, (_, i) => (i >= before ? 1 : 0)),
    logprobs: Float32Array.from(tokens, (_, i) => (i >= before ? logprobs[i - before]! : 0)),
    advantages: new Float32Array(tokens.length),
    temperature,
  });
}

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

/** Asserts that the promise rejects with a TrainyardError of one of these codes; returns it. */
export async function refuses(codes: readonly ErrorCode[], promise: Promise<unknown>, what: string): Promise<TrainyardError> {
  const outcome = await promise.then(
    () => 'it was accepted',
    (thrown: unknown) => thrown,
  );
  assert.ok(outcome instanceof TrainyardError, `${what}: expected ${codes.join(' or ')}, found: ${String(outcome)}`);
  assert.ok(codes.includes(outcome.code), `${what}: expected ${codes.join(' or ')}, found ${outcome.code}: ${outcome.message}`);
  return outcome;
}

export function sameLists(
  found: readonly ArrayLike<number>[],
  expected: readonly ArrayLike<number>[],
  tolerance: number,
  what: string,
): void {
  assert.equal(found.length, expected.length, `${what}: found ${found.length} of them, expected ${expected.length}`);
  for (const [i, list] of expected.entries()) sameNumbers(found[i]!, list, tolerance, `${what} ${i}`);
}

/** For `catch`: swallows the errors of an implementation that does not support something; rethrows all others. */
export function refusedWith(...codes: readonly ErrorCode[]): (thrown: unknown) => undefined {
  return (thrown) => {
    if (!(thrown instanceof TrainyardError && codes.includes(thrown.code))) throw thrown;
  };
}

// Observes a trainer from outside: its weights show only in the log-probabilities of a few fixed samples. Two ways of training start from
// the same saved state. Their results count as equal if they differ by at most a hundredth of how far the weights moved, or by rounding.

/** Large enough to show in every sample, small enough not to ruin the weights. */
export const ADAM: AdamSettings = { learningRate: 2e-3, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 0 };

/** As shares of how far the weights moved: the largest difference between equal results, and the smallest between different ones. */
const SAME = 0.01;
const DIFFERENT = 0.05;

export class TrainerProbe implements AsyncDisposable {
  readonly engine: Engine;
  readonly trainer: Trainer;
  readonly tolerance: number;
  readonly #samples: readonly Sample[];
  readonly #folders: string[] = [];

  constructor({ engine, trainer }: PolicyUnderTest, tolerance: number) {
    this.engine = engine;
    this.trainer = trainer;
    this.tolerance = tolerance;
    this.#samples = [3, 5, 8, 13].map((length, i) => sampleFor(engine, length + 10, 900 + i));
  }

  /** An empty folder, removed when the probe is disposed. */
  async folder(): Promise<string> {
    const dir = await mkdtemp(join(tmpdir(), 'trainyard-conformance-'));
    this.#folders.push(dir);
    return dir;
  }

  async saved(): Promise<string> {
    const dir = await this.folder();
    await this.trainer.save(dir);
    return dir;
  }

  /** The fixed samples' log-probabilities. */
  async look(weights?: 'current' | 'reference'): Promise<readonly number[]> {
    const found = await this.trainer.forward(this.#samples, weights);
    return found.flatMap((logprobs) => [...logprobs]);
  }

  /** The log-probabilities at the start, and after each of these ways from that same state. */
  async outcomes<Way extends string>(
    ways: Readonly<Record<Way, () => Promise<unknown>>>,
  ): Promise<Readonly<Record<Way | 'start', readonly number[]>>> {
    const start = await this.saved();
    const found = new Map<string, readonly number[]>([['start', await this.look()]]);
    for (const [way, go] of Object.entries<() => Promise<unknown>>(ways)) {
      await this.trainer.load(start);
      await go();
      found.set(way, await this.look());
    }
    return Object.fromEntries(found) as Readonly<Record<Way | 'start', readonly number[]>>;
  }

  /** Asserts that two ways from the same state lead to the same weights. */
  async sameAfter(what: string, way: () => Promise<unknown>, other: () => Promise<unknown>): Promise<void> {
    const { start, found, expected } = await this.outcomes({ found: way, expected: other });
    this.same(found, expected, start, what);
  }

  async step(samples: readonly Sample[], loss: Loss = crossEntropy(), adam: AdamSettings = ADAM): Promise<void> {
    await this.trainer.forwardBackward(samples, loss);
    await this.trainer.optimStep(adam);
  }

  /** Asserts that the weights have not changed, up to rounding. */
  unchanged(found: readonly number[], expected: readonly number[], what: string): void {
    const apart = distance(found, expected);
    assert.ok(apart <= this.tolerance, `${what}: log-probabilities moved by ${apart}, expected at most ${this.tolerance}`);
  }

  same(found: readonly number[], expected: readonly number[], start: readonly number[], what: string): void {
    const way = this.moved(expected, start);
    const apart = distance(found, expected);
    const allowed = Math.max(SAME * way, 2 * this.tolerance);
    assert.ok(apart <= allowed, `${what}: results lie ${apart} apart after a way of ${way}, expected at most ${allowed}`);
  }

  different(found: readonly number[], other: readonly number[], start: readonly number[], what: string): void {
    const way = this.moved(other, start);
    const apart = distance(found, other);
    assert.ok(apart > DIFFERENT * way, `${what}: results lie only ${apart} apart after a way of ${way}`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#folders.map((dir) => rm(dir, { recursive: true, force: true })));
  }

  /** Returns how far the weights moved. Asserts that they did: otherwise comparisons would prove nothing. */
  moved(end: readonly number[], start: readonly number[]): number {
    const way = distance(end, start);
    const least = Math.max(100 * this.tolerance, 1e-3);
    assert.ok(way > least, `a step moved log-probabilities by ${way} only, expected more than ${least}`);
    return way;
  }
}

/** Cases by sentence; `open` returns another policy of the same kind. */
export type TrainerCases = Readonly<Record<string, (probe: TrainerProbe, open: () => Promise<PolicyUnderTest>) => Promise<void>>>;

/** Samples that pull the weights in different directions. */
export function batchFor(engine: Engine, first: number, count: number): readonly Sample[] {
  return Array.from({ length: count }, (_, i) => sampleFor(engine, 12 + ((i * 7) % 9), first + i));
}

export function lastTokens(engine: Engine, count: number, changes: Partial<Sample> = {}): readonly Sample[] {
  const base = sampleFor(engine, 8, 77);
  return Array.from({ length: Math.min(count, engine.vocabSize) }, (_, id) => {
    const tokens = Int32Array.of(...idsFor(engine, 7, 77), id);
    return { ...base, tokens, mask: Uint8Array.from(tokens, (_t, i) => (i === 7 ? 1 : 0)), ...changes };
  });
}

function distance(a: readonly number[], b: readonly number[]): number {
  assert.equal(a.length, b.length, 'as many log-probabilities as before');
  return a.reduce((most, value, i) => {
    const apart = Math.abs(value - b[i]!);
    // NaN counts as infinitely far.
    return apart <= most ? most : Number.isNaN(apart) ? Number.POSITIVE_INFINITY : apart;
  }, 0);
}

/** The same loss under a name that no trainer knows; `seen` receives its inputs. */
export function anonymous(loss: Loss, seen?: (input: LossInput) => void): Loss {
  return {
    name: 'a_loss_of_my_own',
    settings: {},
    evaluate(input) {
      seen?.(input);
      return { ...loss.evaluate(input), metrics: { tokens: input.logprobs.length } };
    },
  };
}
