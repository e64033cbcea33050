/**
 * Sessions: the gateway's live lease for one rollout. A session knows its keys, its limits and its turns; it is never stored.
 *
 * Keys are random, one per role, and die at the seal. They are looked up by digest, so neither the table nor a comparison
 * reveals how much of a guess was right. A call in flight when the session is sealed is cancelled and never recorded.
 */
import { hash, randomBytes } from 'node:crypto';
import type { ModelHandle, Role, Session, SessionSpec } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { AbandonedCall, LimitName, SamplingSettings, Turn } from '../core/types.ts';
import { Answers } from './answers.ts';
import { ResponsesMemory } from './dialects/responses-memory.ts';

/**
 * How often each prompt, by digest, was asked: the n-th time draws from its own seed. A call that was cancelled gives its number
 * back, so that a seed does not depend on how many attempts were made; two calls never have the same one.
 */
export class Occurrences {
  readonly #taken = new Map<string, Set<number>>();

  /** The lowest number that no call of this prompt has. */
  take(prompt: string): number {
    const taken = this.#taken.get(prompt) ?? new Set();
    this.#taken.set(prompt, taken);
    let number = 0;
    while (taken.has(number)) number++;
    taken.add(number);
    return number;
  }

  giveBack(prompt: string, number: number): void {
    this.#taken.get(prompt)?.delete(number);
  }
}

/** Model calls of one rollout at the same time; more wait at the client. */
const MOST_AT_ONCE = 256;
/** Given-up calls kept of one rollout. */
const MOST_ABANDONED = 1000;

export interface Reservation {
  /** How many tokens each answer may sample. */
  readonly maxTokens: number;
  release(): void;
}

/** Sealed keys remembered, so that a straggler learns that its rollout ended rather than that its key is wrong. */
const TOMBSTONES = 10_000;

export class LiveSession implements Session {
  readonly spec: SessionSpec;
  readonly recorded: Turn[] = [];
  readonly occurrences = new Occurrences();
  readonly answers = new Answers<readonly Turn[]>();
  readonly abandoned: AbandonedCall[] = [];
  readonly responses = new ResponsesMemory();
  limitHit: LimitName | undefined;
  /** Aborts at the seal and when the rollout is cancelled. */
  readonly signal: AbortSignal;
  readonly #abort = new AbortController();
  readonly #handle: (role: string) => ModelHandle;
  readonly #onSeal: () => void;
  readonly #named = new Map<string, string>();
  #inFlight = 0;
  #sampledTokens = 0;
  #reservedTokens = 0;

  constructor(spec: SessionSpec, handle: (role: string) => ModelHandle, onSeal: () => void) {
    this.spec = spec;
    this.signal = AbortSignal.any([this.#abort.signal, spec.signal]);
    this.#handle = handle;
    this.#onSeal = onSeal;
  }

  /** How the rollout is named in a URL. Compared as it stands: a path from outside is never decoded. */
  get pathSegment(): string {
    return encodeURIComponent(this.spec.identity.rolloutId);
  }

  get turns(): readonly Turn[] {
    return this.recorded;
  }

  model(role = 'default'): ModelHandle {
    return this.#handle(role);
  }

  role(name: string): Role {
    const { roles, trainable } = this.spec;
    if (trainable !== undefined) return { trainable: trainable.includes(name) };
    return (Object.hasOwn(roles, name) ? roles[name] : undefined) ?? { trainable: true };
  }

  /** Reserves turns and their tokens; throws LIMIT_REACHED when there are not enough left. */
  begin(count: number, wanted: number): Reservation {
    this.assertOpen();
    const { turns, tokens } = this.spec.limits;
    if (this.#inFlight + count > MOST_AT_ONCE) throw busy(`the rollout has ${this.#inFlight} model calls under way`);
    if (this.recorded.length + this.#inFlight + count > turns) this.refuse('turns', `${turns} model calls`);
    const left = tokens - this.#sampledTokens - this.#reservedTokens;
    if (left < count) this.refuse('tokens', `${tokens} sampled tokens`);
    const maxTokens = Math.min(wanted, Math.floor(left / count));
    this.#inFlight += count;
    this.#reservedTokens += count * maxTokens;
    const release = (): void => {
      this.#inFlight -= count;
      this.#reservedTokens -= count * maxTokens;
    };
    return { maxTokens, release };
  }

  /** All of them, one after the other. */
  record(turns: readonly Omit<Turn, 'index'>[]): readonly Turn[] {
    this.assertOpen();
    return turns.map((turn) => {
      const complete: Turn = { ...turn, index: this.recorded.length };
      this.recorded.push(complete);
      this.#sampledTokens += turn.sampledIds.length;
      return complete;
    });
  }

  /** Keeps that a call was given up; what was sampled of it is gone. */
  abandon(call: AbandonedCall): void {
    if (!this.#abort.signal.aborted && this.abandoned.length < MOST_ABANDONED) this.abandoned.push(call);
  }

  assertOpen(): void {
    if (this.#abort.signal.aborted) throw sealed(this.spec.identity.rolloutId);
  }

  seal(): readonly Turn[] {
    if (!this.#abort.signal.aborted) {
      this.#abort.abort(sealed(this.spec.identity.rolloutId));
      this.#setAsideUndelivered();
      this.#onSeal();
    }
    return this.recorded;
  }

  /** An answer that nobody got took no part in how the rollout ended. One that was continued was got after all. */
  #setAsideUndelivered(): void {
    const continued = new Set(this.recorded.map((turn) => turn.after));
    for (const turn of [...this.answers.missed()].flat()) {
      if (!continued.has(turn.index)) this.recorded[turn.index] = { ...turn, trainable: false, undelivered: true };
    }
  }

  /** Throws REQUEST_CONFLICT where this name was given to another request before. */
  claim(idempotencyKey: string, request: string): void {
    const known = this.#named.get(idempotencyKey) ?? request;
    if (known !== request) {
      throw new TrainyardError('REQUEST_CONFLICT', 'the Idempotency-Key was given to another request before', {
        hint: 'use a new key for each request, and the same key only to repeat one',
      });
    }
    this.#named.set(idempotencyKey, request);
  }

  private refuse(limit: LimitName, what: string): never {
    this.limitHit ??= limit;
    throw new TrainyardError('LIMIT_REACHED', `the rollout has used its ${what}`);
  }
}

/** Settings a call is sampled with: the run's for a trainable role, the agent's own otherwise. `maxTokens` is the smaller. */
export function effectiveSampling(session: LiveSession, role: Role, requested: Partial<SamplingSettings>): SamplingSettings {
  const run = session.spec.sampling;
  const maxTokens = Math.min(run.maxTokens, requested.maxTokens ?? run.maxTokens);
  return role.trainable ? { ...run, maxTokens } : { temperature: 1, topP: 1, topK: 0, ...requested, maxTokens };
}

/** Who is calling: as which role, in which conversation. */
export interface Seat {
  readonly session: LiveSession;
  readonly role: string;
  readonly thread: string;
}

export class SessionTable {
  readonly #seats = new Map<string, Seat>();
  readonly #sealed = new Set<string>();
  #open = 0;

  get openSessions(): number {
    return this.#open;
  }

  open(spec: SessionSpec, handleOf: (session: LiveSession, role: string, key: string) => ModelHandle): LiveSession {
    const handles = new Map<string, ModelHandle>();
    const digests: string[] = [];
    const handle = (role: string): ModelHandle => {
      const known = handles.get(role);
      if (known !== undefined) return known;
      session.assertOpen();
      const key = `ty-${randomBytes(32).toString('base64url')}`;
      digests.push(digest(key));
      this.#seats.set(digest(key), { session, role, thread: role });
      const made = handleOf(session, role, key);
      handles.set(role, made);
      return made;
    };
    const session = new LiveSession(spec, handle, () => this.#bury(digests));
    this.#open++;
    return session;
  }

  /** Who is calling, or SESSION_UNKNOWN / SESSION_SEALED. */
  find(key: string, pathSegment: string): Seat {
    const digested = digest(key);
    const seat = this.#seats.get(digested);
    if (seat?.session.pathSegment === pathSegment) return seat;
    if (this.#sealed.has(digested)) throw sealed(pathSegment);
    throw new TrainyardError('SESSION_UNKNOWN', `no open rollout ${JSON.stringify(pathSegment)} with this key`, {
      hint: 'use baseURL and apiKey of the same ctx.model(), and only while the rollout runs',
    });
  }

  #bury(digests: readonly string[]): void {
    this.#open--;
    for (const key of digests) {
      this.#seats.delete(key);
      this.#sealed.add(key);
    }
    for (const oldest of this.#sealed) {
      if (this.#sealed.size <= TOMBSTONES) break;
      this.#sealed.delete(oldest);
    }
  }
}

function digest(key: string): string {
  return hash('sha256', key, 'base64');
}

function sealed(rolloutId: string): TrainyardError {
  return new TrainyardError('SESSION_SEALED', `rollout ${rolloutId} has ended; its key is no longer valid`);
}

function busy(message: string): TrainyardError {
  return new TrainyardError('ENGINE_BUSY', message, { hint: 'wait for some of them, then try again' });
}
