/**
 * A trainer seen from outside: what its weights are is told only by the log-probabilities they give to a few fixed samples.
 *
 * Two ways of training are compared by starting both at the same saved state. Whether their results are the same is judged by how far
 * the weights moved on the way: within a hundredth of it, or within rounding.
 */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { AdamSettings, Engine, Loss, LossInput, Trainer } from '../core/policy.ts';
import type { Sample } from '../core/types.ts';
import { idsFor, type PolicyUnderTest, sampleFor } from './policy-under-test.ts';

/** Large enough to be seen in every sample, small enough to harm no weights. */
export const ADAM: AdamSettings = {
  learningRate: 2e-3,
  beta1: 0.9,
  beta2: 0.95,
  epsilon: 1e-8,
  weightDecay: 0,
  maxGradNorm: 0,
};

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

  /** One step on these samples. */
  async step(samples: readonly Sample[], loss: Loss = crossEntropy()): Promise<void> {
    await this.trainer.forwardBackward(samples, loss);
    await this.trainer.optimStep(ADAM);
  }

  /** Forwards and losses of the same weights. */
  unchanged(found: readonly number[], expected: readonly number[], what: string): void {
    const apart = distance(found, expected);
    assert.ok(apart <= this.tolerance, `${what}: log-probabilities moved by ${apart}, expected at most ${this.tolerance}`);
  }

  moved(found: readonly number[], start: readonly number[]): void {
    this.#way(found, start);
  }

  same(found: readonly number[], expected: readonly number[], start: readonly number[], what: string): void {
    const way = this.#way(expected, start);
    const apart = distance(found, expected);
    const allowed = Math.max(SAME * way, 2 * this.tolerance);
    assert.ok(apart <= allowed, `${what}: results lie ${apart} apart after a way of ${way}, expected at most ${allowed}`);
  }

  different(found: readonly number[], other: readonly number[], start: readonly number[], what: string): void {
    const way = this.#way(other, start);
    const apart = distance(found, other);
    assert.ok(apart > DIFFERENT * way, `${what}: results lie only ${apart} apart after a way of ${way}`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#folders.map((dir) => rm(dir, { recursive: true, force: true })));
  }

  /** A step that moved nothing would make all comparisons vain. */
  #way(end: readonly number[], start: readonly number[]): number {
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

// ── losses to train with ─────────────────────────────────────────────────────────────────────────────────────────────────
// As small as they can be said, by the names and settings that servers know them under. Not for training.

/** The loss of one token and its derivative by lp; s: as sampled, A: advantage, ref: of the reference. */
type Token = (lp: number, s: number, A: number, ref: number) => readonly [loss: number, slope: number];

/** −Σ A·lp */
export function crossEntropy(): Loss {
  return tokenwise('cross_entropy', {}, (lp, _s, A) => [-A * lp, -A]);
}

/** −Σ e^(lp − s)·A */
export function importanceSampling(): Loss {
  return tokenwise('importance_sampling', {}, (lp, s, A) => [-Math.exp(lp - s) * A, -Math.exp(lp - s) * A]);
}

const CLIP = { clipLow: 0.2, clipHigh: 0.28 };

/** −Σ min(r·A, clip(r)·A) */
export function ppo(): Loss {
  return tokenwise('ppo', CLIP, clipped);
}

/** `ppo` with k3 to the reference on top: another loss, though its name is the same. */
export function ppoWithKl(coefficient: number): Loss {
  const withPenalty: Token = (lp, s, A, ref) => {
    const [loss, slope] = clipped(lp, s, A, ref);
    const penalty = Math.expm1(ref - lp) - (ref - lp);
    return [loss + coefficient * penalty, slope - coefficient * Math.expm1(ref - lp)];
  };
  const loss = tokenwise('ppo', { ...CLIP, kl: coefficient }, withPenalty);
  return {
    ...loss,
    evaluate(input) {
      if (input.reference === undefined) throw new TypeError('the sample has no reference log-probabilities');
      return loss.evaluate(input);
    },
  };
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

function clipped(lp: number, s: number, A: number, _ref: number): readonly [number, number] {
  const ratio = Math.exp(lp - s);
  const limited = Math.min(Math.max(ratio, 1 - CLIP.clipLow), 1 + CLIP.clipHigh);
  return limited * A < ratio * A ? [-limited * A, 0] : [-ratio * A, -ratio * A];
}

function tokenwise(name: string, settings: Readonly<Record<string, number>>, token: Token): Loss {
  return {
    name,
    settings,
    evaluate({ logprobs, sampled, advantages, reference }) {
      const parts = Array.from(logprobs, (lp, i) => token(lp, sampled[i]!, advantages[i]!, reference?.[i] ?? 0));
      return { loss: parts.reduce((sum, [loss]) => sum + loss, 0), gradient: Float32Array.from(parts, ([, slope]) => slope) };
    },
  };
}
