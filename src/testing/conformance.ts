/**
 * What the conformance suites share: how a case is made of a sentence, what is handed to the suites, made-up prompts and samples, how
 * refusals and numbers are compared, and a trainer seen from outside.
 *
 * Prompts and samples fit any policy with a vocabulary of at least 16 ids and a context of at least 64.
 */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type ErrorCode, TrainyardError } from '../core/errors.ts';
import type { AdamSettings, Engine, Loss, LossInput, SampleRequest, SampleResult, Trainer } from '../core/policy.ts';
import type { Sample, SamplingSettings } from '../core/types.ts';
import { crossEntropy } from '../trainer/losses.ts';

export interface ConformanceCase {
  readonly name: string;
  run(): Promise<void>;
}

/** One case for each sentence. */
export function casesOf<Check>(
  name: string,
  sentences: Readonly<Record<string, Check>>,
  run: (check: Check) => Promise<void>,
): readonly ConformanceCase[] {
  return Object.entries(sentences).map(([sentence, check]) => ({ name: `${name} ${sentence}`, run: () => run(check) }));
}

/** That it rejects with this code, what it says, and that it says what to do. */
export async function rejectsWith(code: ErrorCode, promise: Promise<unknown>, message = /./): Promise<void> {
  const thrown = await refuses([code], promise, 'the call');
  assert.match(thrown.message, message);
  assert.ok(thrown.hint, `${code} says what happened but not what to do`);
}

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

/** That it rejects as a typed error of one of these codes, which is given back. */
export async function refuses(codes: readonly ErrorCode[], promise: Promise<unknown>, what: string): Promise<TrainyardError> {
  const outcome = await promise.then(
    () => 'it was accepted',
    (thrown: unknown) => thrown,
  );
  assert.ok(outcome instanceof TrainyardError, `${what}: expected ${codes.join(' or ')}, found: ${String(outcome)}`);
  assert.ok(codes.includes(outcome.code), `${what}: expected ${codes.join(' or ')}, found ${outcome.code}: ${outcome.message}`);
  return outcome;
}

/** That the samples have these log-probabilities, one list for each. */
export function sameLists(
  found: readonly ArrayLike<number>[],
  expected: readonly ArrayLike<number>[],
  tolerance: number,
  what: string,
): void {
  assert.equal(found.length, expected.length, `${what}: found ${found.length} of them, expected ${expected.length}`);
  for (const [i, list] of expected.entries()) sameNumbers(found[i]!, list, tolerance, `${what} ${i}`);
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

// ── a trainer seen from outside ──────────────────────────────────────────────────────────────────────────────────────────
// What its weights are is told only by the log-probabilities they give to a few fixed samples. Two ways of training are compared by starting
// both at the same saved state. Whether their results are the same is judged by how far the weights moved on the way: within a hundredth of
// it, or within rounding.

/** Large enough to be seen in every sample, small enough to harm no weights. */
export const ADAM: AdamSettings = { learningRate: 2e-3, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 0 };

/** How far apart, in shares of the way that was gone, two results may lie to be the same, and must lie to differ. */
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

  /** An empty folder, removed when the case is over. */
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

  /** What the current weights say. */
  async look(weights?: 'current' | 'reference'): Promise<readonly number[]> {
    const found = await this.trainer.forward(this.#samples, weights);
    return found.flatMap((logprobs) => [...logprobs]);
  }

  /** What the weights say after each of these ways from one and the same state, and what they said before. */
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

  /** That two ways from one and the same state lead to the same weights. */
  async sameAfter(what: string, way: () => Promise<unknown>, other: () => Promise<unknown>): Promise<void> {
    const { start, found, expected } = await this.outcomes({ found: way, expected: other });
    this.same(found, expected, start, what);
  }

  /** One step on these samples. */
  async step(samples: readonly Sample[], loss: Loss = crossEntropy(), adam: AdamSettings = ADAM): Promise<void> {
    await this.trainer.forwardBackward(samples, loss);
    await this.trainer.optimStep(adam);
  }

  /** Forwards and losses of the same weights. */
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

  /** How far. A step that moved nothing would make all comparisons vain. */
  moved(end: readonly number[], start: readonly number[]): number {
    const way = distance(end, start);
    const least = Math.max(100 * this.tolerance, 1e-3);
    assert.ok(way > least, `a step moved log-probabilities by ${way} only, expected more than ${least}`);
    return way;
  }
}

/** By what each says; `open` gives another policy of the same kind. */
export type TrainerCases = Readonly<Record<string, (probe: TrainerProbe, open: () => Promise<PolicyUnderTest>) => Promise<void>>>;

/** Samples that pull the weights in directions of their own. */
export function batchFor(engine: Engine, first: number, count: number): readonly Sample[] {
  return Array.from({ length: count }, (_, i) => sampleFor(engine, 12 + ((i * 7) % 9), first + i));
}

/** Samples that differ in nothing but their last token. */
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
    // NaN is as far as can be.
    return apart <= most ? most : Number.isNaN(apart) ? Number.POSITIVE_INFINITY : apart;
  }, 0);
}

/** The same function under a name that nobody knows; `seen` gets what it is called with. */
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
