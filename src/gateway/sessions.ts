/**
 * A session is the gateway's live lease for one rollout, with its limits and turns; a journal may keep it until it ends. Sealing it cancels
 * calls in flight, which are then never recorded. The table seals abandoned sessions: a remote one that is idle or past its deadline, one
 * held in this process once it has been idle for longer than both, because its owner enforces a deadline.
 */
import { hash } from 'node:crypto';
import { abortWith, type LinkedSignal } from '../core/async.ts';
import type { Clock, ModelHandle, Role, SeatOptions, Session, SessionSpec } from '../core/contracts.ts';
import { checkDefaultModel } from '../core/define.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { LIMIT_NAMES, type LimitName, type SamplingSettings, type Turn, type UnansweredCall } from '../core/types.ts';
import type { HttpRequest } from '../http/message.ts';
import { sideCalls } from '../tokens/history.ts';
import { Answers, lostTurns } from './answers.ts';
import type { ModelRequest } from './dialects/dialect.ts';
import { GATEWAY_LIMITS, refused } from './wire-protocol.ts';

export interface Caller {
  readonly session: LiveSession;
  readonly role: string;
  readonly thread: string;
}

/** A model call in flight, with what is kept of it if it ends without a response. */
export type ModelCall = { -readonly [Field in keyof UnansweredCall]: UnansweredCall[Field] };

/** Unanswered calls kept per rollout. */
const MOST_UNANSWERED = 1000;
const LONGEST_MESSAGE = 2000;

interface Reservation {
  /** Tokens that each completion may sample. */
  readonly maxTokens: number;
  release(): void;
}

/** Keeps open sessions. Sessions that it was not told of, it may ignore. */
export interface SessionJournal {
  /** A session opened over HTTP is given out once this resolves. */
  opened(session: LiveSession): Promise<void>;
  /** An answer is complete once this resolves. May be told of an answer again. */
  answered(session: LiveSession, key: string, turns: readonly Turn[]): Promise<void>;
}

/** What an earlier process had of a session. */
export interface RestoredSession {
  readonly number: number;
  readonly turns: readonly Turn[];
  /** By request, the indexes of the turns that answered it. */
  readonly answers: readonly (readonly [key: string, indexes: readonly number[]])[];
}

interface SessionParts {
  readonly spec: SessionSpec;
  /** Unique in the gateway; successive sessions of one rollout have different numbers. */
  readonly number: number;
  /** Whether its owner is outside this process, so that only the table or an admin seals it. */
  readonly remote: boolean;
  readonly table: SessionTable;
}

export class LiveSession implements Session {
  readonly spec: SessionSpec;
  readonly rolloutId: string;
  readonly turns: Turn[] = [];
  readonly seeds: Seeds;
  readonly answers: Answers<readonly Turn[]>;
  readonly unanswered: UnansweredCall[] = [];
  /** All of the last call in process but its messages: as JSON, and as it was read. */
  parameters: { readonly text: string; readonly read: Omit<ModelRequest, 'messages'> } | undefined;
  /** Aborts when the session is sealed or the rollout is cancelled. */
  readonly signal: AbortSignal;
  readonly number: number;
  readonly remote: boolean;
  readonly openedAt: number;
  sampledTokens = 0;
  /** Number of completions being sampled. */
  openCalls = 0;
  /** Settles when the owner has stored what was sealed. */
  kept: Promise<void> | undefined;
  readonly #table: SessionTable;
  readonly #abort = new AbortController();
  readonly #unlink: () => void;
  /** Controllers of calls in progress, aborted with the session. */
  readonly #joined = new Set<AbortController>();
  #sealed = false;
  readonly #handles = new Map<string, ModelHandle>();
  readonly #idempotencyKeys = new Map<string, string>();
  readonly #roleOptions = new Map<string, SeatOptions>();
  /** By call or turn: how many calls had ended without a response when it began. */
  readonly #endingsBefore = new WeakMap<object, number>();
  /** By unanswered call: how many calls had ended without a response before it. */
  readonly #ended = new WeakMap<object, number>();
  #endings = 0;
  readonly #begunAt: number;
  #activeAt: number;
  #reservedTokens = 0;
  #bytes = 0;

  constructor({ spec, number, remote, table }: SessionParts) {
    this.#table = table;
    const { journal } = table;
    this.answers = new Answers(journal && ((key, turns) => journal.answered(this, key, turns)));
    this.spec = spec;
    this.rolloutId = spec.identity.rolloutId;
    this.seeds = new Seeds(spec);
    this.number = number;
    this.remote = remote;
    this.openedAt = table.clock.now();
    this.#activeAt = this.#begunAt = table.elapsed();
    this.signal = this.#abort.signal;
    this.#unlink = abortWith(this.#abort, spec.signal);
    this.signal.addEventListener('abort', () => {
      for (const joined of this.#joined) joined.abort(this.signal.reason);
    });
  }

  /** Takes over what an earlier process had: the next call continues from it, and draws the seeds that come after. */
  restore({ turns, answers }: RestoredSession): void {
    for (const turn of turns) {
      this.turns.push(turn);
      this.sampledTokens += turn.model === undefined ? turn.sampledIds.length : (turn.usage?.completionTokens ?? 0);
      const { messages, tools } = turn.request;
      this.seeds.draw(turn, turn.model === undefined ? turn.promptIds : JSON.stringify([messages, tools]));
    }
    for (const [key, indexes] of answers)
      this.answers.recall(
        key,
        indexes.map((index) => this.turns[index]!),
      );
  }

  /** Milliseconds since the last activity; 0 while a call is in flight. */
  get idleMs(): number {
    return this.openCalls > 0 ? 0 : this.#table.elapsed() - this.#activeAt;
  }

  get ageMs(): number {
    return this.#table.elapsed() - this.#begunAt;
  }

  /** The open session of another rollout of the same gateway. */
  neighbour(rolloutId: string): LiveSession | undefined {
    return rolloutId === this.rolloutId ? undefined : this.#table.find(rolloutId);
  }

  model(role = 'default', options?: SeatOptions): ModelHandle {
    if (options?.default !== undefined) checkDefaultModel(options.default, `role ${JSON.stringify(role)}`);
    if (options !== undefined) this.#roleOptions.set(role, options);
    const known = this.#handles.get(role);
    if (known !== undefined) return known;
    this.assertOpen();
    const made = this.#table.handle(this, role);
    this.#handles.set(role, made);
    return made;
  }

  role(name: string): Role {
    const { roles, trainable, othersTrainable = true } = this.spec;
    const declared: Role = (Object.hasOwn(roles, name) ? roles[name] : undefined) ?? { trainable: othersTrainable };
    const options = this.#roleOptions.get(name);
    const model = options?.default ?? declared.default;
    const isTrained = trainable?.includes(name) ?? options?.trainable?.() ?? declared.trainable;
    return { trainable: isTrained, ...(model === undefined ? {} : { default: model }) };
  }

  /** Counts a request's bytes. Throws LIMIT_REACHED if the rollout's requests are too large in total. */
  receive(bytes: number): void {
    this.#activeAt = this.#table.elapsed();
    this.#bytes += bytes;
    const { rolloutBytes } = GATEWAY_LIMITS;
    if (this.#bytes > rolloutBytes) throw limitReached('bytes', `${rolloutBytes} bytes of requests`);
  }

  /** Reserves turns and their tokens; throws LIMIT_REACHED if too few are left. With `wanted` 0, no tokens are sampled. */
  begin(count: number, wanted: number): Reservation {
    this.assertOpen();
    const { turns, tokens } = this.spec.limits;
    if (this.openCalls + count > GATEWAY_LIMITS.callsAtOnce) {
      throw new TrainyardError(
        'ENGINE_BUSY',
        `the rollout has ${this.openCalls} model calls under way`,
        'wait for some of them, then try again',
      );
    }
    if (this.turns.length + this.openCalls + count > turns) throw limitReached('turns', `${turns} model calls`);
    const left = tokens - this.sampledTokens - this.#reservedTokens;
    if (wanted > 0 && left < count) throw limitReached('tokens', `${tokens} sampled tokens`);
    const maxTokens = Math.min(wanted, Math.floor(left / count));
    this.openCalls += count;
    this.#reservedTokens += count * maxTokens;
    const release = (): void => {
      this.openCalls -= count;
      this.#reservedTokens -= count * maxTokens;
      this.#activeAt = this.#table.elapsed();
    };
    return { maxTokens, release };
  }

  /** Runs a model call. If `run` throws, the call is kept as unanswered, whether or not its client reports the error. */
  async calling<T>({ thread, role }: Caller, signal: AbortSignal | undefined, run: (call: ModelCall) => Promise<T>): Promise<T> {
    const now = this.#table.clock.now();
    const call = { thread, role, promptTokens: 0, sampledTokens: 0, turnsBefore: 0, startedAt: now, endedAt: now };
    this.#endingsBefore.set(call, this.#endings);
    try {
      return await run(call);
    } catch (thrown) {
      this.keepUnanswered(call, thrown, signal);
      throw thrown;
    }
  }

  join({ signal, controller }: Pick<HttpRequest, 'signal' | 'controller'>): Omit<LinkedSignal, typeof Symbol.dispose> {
    const joined = controller ?? new AbortController();
    if (this.signal.aborted) joined.abort(this.signal.reason);
    const unlink = controller === undefined && signal ? abortWith(joined, signal) : undefined;
    // A set of its own instead of a link to the session's signal: this happens for every call.
    this.#joined.add(joined);
    const release = (): void => {
      this.#joined.delete(joined);
      unlink?.();
    };
    return { signal: joined.signal, release };
  }

  /** Throws REQUEST_CONFLICT if the key already belongs to another request. */
  claim(idempotencyKey: string, request: string): void {
    const known = this.#idempotencyKeys.get(idempotencyKey) ?? request;
    if (known !== request) {
      throw new TrainyardError(
        'REQUEST_CONFLICT',
        'the Idempotency-Key was given to another request before',
        'use a new key for each request, and the same key only to repeat one',
      );
    }
    this.#idempotencyKeys.set(idempotencyKey, request);
  }

  record(turns: readonly Omit<Turn, 'index'>[], call: ModelCall): readonly Turn[] {
    this.assertOpen();
    return turns.map((turn) => {
      const complete: Turn = { ...turn, index: this.turns.length };
      this.turns.push(complete);
      this.#endingsBefore.set(complete, this.#endingsBefore.get(call) ?? 0);
      this.sampledTokens += turn.sampledIds.length;
      this.spec.observer?.recorded?.(this.spec.identity, complete);
      return complete;
    });
  }

  /** Whether the turn's call began after the other call had ended, not concurrently. Clocks are too coarse for this. */
  isAfter(turn: Turn, call: UnansweredCall): boolean {
    return (this.#endingsBefore.get(turn) ?? 0) > (this.#ended.get(call) ?? Infinity);
  }

  /** Keeps each call once, as failed unless its client or the rollout was gone first. Calls cut off by the seal do not count. */
  keepUnanswered(call: ModelCall, thrown: unknown, signal: AbortSignal | undefined): void {
    if (this.#sealed || this.unanswered.includes(call)) return;
    call.turnsBefore = this.turns.length;
    call.endedAt = this.#table.clock.now();
    if (!this.signal.aborted && !signal?.aborted) call.failure = failureIn(thrown);
    this.unanswered.push(call);
    this.#ended.set(call, this.#endings++);
    if (this.unanswered.length > MOST_UNANSWERED) this.unanswered.splice(this.#mostForgettable(), 1);
  }

  /** The oldest call that is not the last of its conversation; the last one shows how the conversation ended. */
  #mostForgettable(): number {
    const hasLater = ({ role, thread }: UnansweredCall, i: number): boolean =>
      this.unanswered.some((later, j) => j > i && later.role === role && later.thread === thread);
    return Math.max(0, this.unanswered.findIndex(hasLater));
  }

  assertOpen(): void {
    if (this.#sealed) throw sealed(this.rolloutId);
  }

  seal(): readonly Turn[] {
    if (!this.#sealed) {
      this.#sealed = true;
      this.#unlink();
      this.#abort.abort(sealed(this.rolloutId));
      // A completion that no client received had no part in how the rollout ended.
      const missed = [...this.answers.missed()].flat();
      for (const turn of lostTurns(this.turns, missed)) {
        this.turns[turn.index] = { ...turn, trainable: false, undelivered: true };
      }
      this.#setSideCallsAside();
      this.#table.remove(this);
      this.kept = this.spec.observer?.sealed?.(this.spec.identity, this) ?? undefined;
    }
    return this.turns;
  }

  /** Which calls were side calls is known only once it is known which conversation went on. */
  #setSideCallsAside(): void {
    // A side call is beside another conversation.
    if (this.turns.length < 2) return;
    const found = sideCalls(this.turns);
    for (const [i, { fork, ...turn }] of this.turns.entries()) {
      const from = found.get(i);
      if (from !== undefined) this.turns[i] = { ...turn, trainable: false, fork: { cause: 'side_call', from } };
      else if (fork?.cause === 'new_conversation' && found.has(fork.from)) this.turns[i] = turn;
    }
  }
}

export interface Draw {
  readonly seed: number;
  /** Call if nothing was recorded, so that the next attempt gets the same seed. */
  giveBack(): void;
}

/**
 * The seeds of one session. A seed depends on the prompt and how often it was asked, never on timing or retries: the n-th call of a prompt
 * has its own seed, and a call that fails returns its number.
 */
export class Seeds {
  readonly #session: string;
  readonly #taken = new Map<string, Set<number>>();

  constructor({ seed, identity }: Pick<SessionSpec, 'seed' | 'identity'>) {
    this.#session = `${seed}\n${identity.rolloutId}`;
  }

  /** `asked`: the prompt ids, or a default model's request as JSON. */
  draw({ role, thread }: Pick<Turn, 'role' | 'thread'>, asked: Int32Array | string): Draw {
    const bytes = typeof asked === 'string' ? Buffer.from(asked) : Buffer.from(asked.buffer, asked.byteOffset, asked.byteLength);
    const who = thread === role ? role : `${role}\n${thread}`;
    const prompt = hash('sha256', Buffer.concat([Buffer.from(`${this.#session}\n${who}\n`), bytes]), 'base64');
    const taken = this.#taken.get(prompt) ?? new Set();
    this.#taken.set(prompt, taken);
    let number = 0;
    while (taken.has(number)) number++;
    taken.add(number);
    const giveBack = (): void => {
      taken.delete(number);
      if (taken.size === 0) this.#taken.delete(prompt);
    };
    return { seed: hash('sha256', `${prompt}\n${number}`, 'buffer').readUIntBE(0, 6), giveBack };
  }
}

/** The run's settings for a trainable role, otherwise the agent's own. `maxTokens` is the smaller of both. */
export function effectiveSampling(
  run: SamplingSettings,
  isTrainable: boolean,
  requested: Partial<SamplingSettings>,
): SamplingSettings {
  const maxTokens = Math.min(run.maxTokens, requested.maxTokens ?? run.maxTokens);
  return isTrainable ? { ...run, maxTokens } : { temperature: 1, topP: 1, topK: 0, ...requested, maxTokens };
}

/** Without a stack: every rollout ends with one of these, and capturing a stack costs more than the rest of sealing. */
export function sealed(rolloutId: string): TrainyardError {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  try {
    return new TrainyardError('SESSION_SEALED', `rollout ${rolloutId} has ended; its key is no longer valid`);
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
}

function limitReached(limit: LimitName, what: string): TrainyardError {
  return new TrainyardError('LIMIT_REACHED', `the rollout has used its ${what}`, { cause: limit });
}

function failureIn(thrown: unknown): NonNullable<UnansweredCall['failure']> {
  const { code, cause } = thrown instanceof TrainyardError ? thrown : { code: 'ENGINE_FAILED' };
  const limit = code === 'CONTEXT_OVERFLOW' ? 'context' : LIMIT_NAMES.find((name) => name === cause);
  return { code, message: messageOf(thrown).slice(0, LONGEST_MESSAGE), ...(limit && { limit }) };
}

/** Ended rollouts to remember, so that a late call learns that its rollout ended rather than that it is unknown. */
const TOMBSTONES = 10_000;
const MOST_BETWEEN_SWEEPS_MS = 60_000;

interface TableParts {
  readonly clock: Clock;
  readonly idleMs: number;
  readonly journal?: SessionJournal | undefined;
  handle(session: LiveSession, role: string): ModelHandle;
}

export class SessionTable {
  readonly clock: Clock;
  /** For idleness and deadlines, which must outlive a change of the system's clock. */
  readonly elapsed: () => number;
  readonly handle: TableParts['handle'];
  readonly journal: TableParts['journal'];
  readonly #idleMs: number;
  readonly #open = new Map<string, LiveSession>();
  readonly #ended = new Set<string>();
  #opened: number;
  #remote = 0;
  #sweeping: NodeJS.Timeout | undefined;

  constructor({ clock, idleMs, handle, journal }: TableParts) {
    this.journal = journal;
    // Keys may outlive the process: no later session may have the number of an earlier one.
    this.#opened = journal === undefined ? 0 : Date.now() * 1000;
    this.clock = clock;
    this.elapsed = clock.elapsed ?? clock.now;
    this.handle = handle;
    this.#idleMs = idleMs;
  }

  get size(): number {
    return this.#open.size;
  }

  all(): IterableIterator<LiveSession> {
    return this.#open.values();
  }

  /** Like `get`, but returns abandoned sessions too. */
  find(rolloutId: string): LiveSession | undefined {
    return this.#open.get(rolloutId);
  }

  get(rolloutId: string): LiveSession | undefined {
    const session = this.#open.get(rolloutId);
    if (session === undefined || !this.#isOver(session)) return session;
    session.seal();
    return undefined;
  }

  hasEnded(rolloutId: string): boolean {
    return this.#ended.has(rolloutId);
  }

  open(spec: SessionSpec, remote = false, restored?: RestoredSession): LiveSession {
    const { rolloutId } = spec.identity;
    if (remote && this.#remote >= GATEWAY_LIMITS.openSessions) this.#sweep();
    if (remote && this.#remote >= GATEWAY_LIMITS.openSessions) {
      throw refused('too_many_sessions', `${this.#remote} sessions are open`, { hint: 'seal those that are done' });
    }
    if (this.get(rolloutId) !== undefined) {
      throw refused('rollout_open', `a session of rollout ${JSON.stringify(rolloutId)} is open`, { hint: 'seal it first' });
    }
    const session = new LiveSession({ spec, number: restored?.number ?? this.#opened++, remote, table: this });
    if (restored !== undefined) session.restore(restored);
    this.#open.set(rolloutId, session);
    if (remote) this.#remote++;
    this.#sweeping ??= setInterval(() => this.#sweep(), Math.min(this.#idleMs, MOST_BETWEEN_SWEEPS_MS)).unref();
    return session;
  }

  #sweep(): void {
    for (const session of this.#open.values()) if (this.#isOver(session)) session.seal();
  }

  #isOver({ spec, remote, idleMs, ageMs }: LiveSession): boolean {
    const { deadlineMs } = spec.limits;
    if (!remote) return idleMs > Math.max(this.#idleMs, deadlineMs);
    return idleMs > this.#idleMs || ageMs > deadlineMs;
  }

  remove({ rolloutId, remote }: LiveSession): void {
    this.#open.delete(rolloutId);
    if (remote) this.#remote--;
    this.#ended.delete(rolloutId);
    this.#ended.add(rolloutId);
    if (this.#ended.size > TOMBSTONES) this.#ended.delete(this.#ended.values().next().value!);
    if (this.#open.size > 0) return;
    clearInterval(this.#sweeping);
    this.#sweeping = undefined;
  }
}
