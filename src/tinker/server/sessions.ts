/**
 * Who is there: sessions, the models they train, the sampling sessions they opened. All of it lives in memory and ends with the process;
 * what was saved does not.
 *
 * A session that gives no sign of life for long enough is ended, with its models and samples. Repetitions of a request that makes
 * something give what was made the first time; the same number with another body is refused.
 */
import { randomBytes } from 'node:crypto';
import type { Clock } from '../../core/contracts.ts';
import { ApiError } from './api-error.ts';
import type { Future } from './futures.ts';
import type { Waits } from './limits.ts';
import type { Model } from './model.ts';
import type { Weights } from './sampler-pool.ts';

/** What was made for a number that the client chose. */
interface Made<T> {
  readonly digest: string;
  readonly what: T;
}

export class Numbered<T> {
  readonly made = new Map<number | string, Made<T>>();
  readonly #what: string;
  readonly #most: number;

  /** `what`: the field the number comes in. `most`: remembered; the oldest are forgotten. */
  constructor(what: string, most: number) {
    this.#what = what;
    this.#most = most;
  }

  /** What was made for this number before, or what `make` makes now. */
  take(number: number | string, digest: string, make: () => T): T {
    const known = this.made.get(number);
    if (known !== undefined && known.digest === digest) return known.what;
    if (known !== undefined) {
      throw new ApiError('seq_id_reused', `${this.#what} ${number} was used before, for another request`, { param: this.#what });
    }
    const what = make();
    this.made.set(number, { digest, what });
    for (const oldest of this.made.keys()) {
      if (this.made.size <= this.#most) break;
      this.made.delete(oldest);
    }
    return what;
  }
}

export interface Session {
  readonly id: string;
  readonly models: Numbered<{ readonly future: Future; readonly model: Model }>;
  readonly samplers: Numbered<Sampler>;
  seenAt: number;
}

/** What is sampled from: one set of weights, for good. */
export interface Sampler {
  readonly id: string;
  readonly sessionId: string;
  /** The tinker:// path of its weights, where they have one. */
  readonly path: string | undefined;
  readonly weights: Weights;
  readonly samples: Numbered<Future>;
}

const MOST_SAMPLES = 20_000;
const MOST_MADE = 10_000;

export class Sessions {
  readonly #clock: Clock;
  readonly #waits: Waits;
  readonly #sessions = new Map<string, Session>();
  readonly #models = new Map<string, Model>();
  readonly #samplers = new Map<string, Sampler>();

  constructor(clock: Clock, waits: Waits) {
    this.#clock = clock;
    this.#waits = waits;
  }

  create(): Session {
    const session: Session = {
      id: newId('s'),
      models: new Numbered('model_seq_id', MOST_MADE),
      samplers: new Numbered('sampling_session_seq_id', MOST_MADE),
      seenAt: this.#clock.now(),
    };
    this.#sessions.set(session.id, session);
    return session;
  }

  /** A sign of life. */
  session(id: string): Session {
    const session = this.#sessions.get(id);
    if (session === undefined) throw unknown('unknown_session', 'session', id, 'session_id');
    session.seenAt = this.#clock.now();
    return session;
  }

  model(id: string): Model {
    const model = this.#models.get(id);
    if (model === undefined) throw unknown('unknown_model', 'model', id, 'model_id');
    this.touch(model.sessionId);
    return model;
  }

  sampler(id: string): Sampler {
    const sampler = this.#samplers.get(id);
    if (sampler === undefined) throw unknown('unknown_sampler', 'sampling session', id, 'sampling_session_id');
    this.touch(sampler.sessionId);
    return sampler;
  }

  addModel(model: Model): void {
    this.#models.set(model.id, model);
  }

  addSampler(session: Session, path: string | undefined, weights: Weights): Sampler {
    const sampler = {
      id: newId('p'),
      sessionId: session.id,
      path,
      weights,
      samples: new Numbered<Future>('seq_id', MOST_SAMPLES),
    };
    this.#samplers.set(sampler.id, sampler);
    return sampler;
  }

  forgetModel(id: string): void {
    this.#models.delete(id);
  }

  get models(): readonly Model[] {
    return [...this.#models.values()];
  }

  /** Of one session. */
  idsOf(sessionId: string): { readonly models: readonly string[]; readonly samplers: readonly string[] } {
    const own = ({ sessionId: of }: { readonly sessionId: string }): boolean => of === sessionId;
    return {
      models: this.models.filter(own).map(({ id }) => id),
      samplers: [...this.#samplers.values()].filter(own).map(({ id }) => id),
    };
  }

  /** Takes a session off the table and cancels its samples; gives the models that nobody will ask for any more. */
  end(id: string): readonly Model[] {
    const ended = this.models.filter(({ sessionId }) => sessionId === id);
    this.#sessions.delete(id);
    for (const model of ended) this.#models.delete(model.id);
    for (const sampler of this.#samplers.values()) {
      if (sampler.sessionId !== id) continue;
      this.#samplers.delete(sampler.id);
      for (const { what: future } of sampler.samples.made.values()) future.cancel();
    }
    return ended;
  }

  /** Ends what gave no sign of life. */
  endIdle(): readonly Model[] {
    const oldest = this.#clock.now() - this.#waits.session;
    return [...this.#sessions.values()].filter(({ seenAt }) => seenAt < oldest).flatMap(({ id }) => this.end(id));
  }

  /** Ends the one that was silent longest of those that have models, where one is silent. */
  endSilent(): readonly Model[] {
    const found = this.models.map(({ sessionId }) => this.#sessions.get(sessionId)!).filter(({ id }) => this.isSilent(id));
    const [longest] = found.toSorted((a, b) => a.seenAt - b.seenAt);
    return longest === undefined ? [] : this.end(longest.id);
  }

  /** Whether its client is likely gone. */
  isSilent(id: string): boolean {
    return this.#clock.now() - (this.#sessions.get(id)?.seenAt ?? Number.POSITIVE_INFINITY) > this.#waits.silence;
  }

  /** A sign of life, where it is still there. */
  touch(id: string | undefined): void {
    const session = id === undefined ? undefined : this.#sessions.get(id);
    if (session !== undefined) session.seenAt = this.#clock.now();
  }
}

export function newId(prefix: string): string {
  return `${prefix}-${randomBytes(9).toString('hex')}`;
}

function unknown(
  kind: 'unknown_session' | 'unknown_model' | 'unknown_sampler',
  what: string,
  id: string,
  param: string,
): ApiError {
  return new ApiError(kind, `there is no ${what} ${JSON.stringify(id.slice(0, 80))}`, {
    hint: 'it ended, or the server was started anew; what was saved is still there',
    param,
  });
}
