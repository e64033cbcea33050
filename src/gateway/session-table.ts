/**
 * Which sessions are open, by the name of their rollout, and for a while which were. Sessions that nobody uses any more are sealed
 * and forgotten, so that what is abandoned does not pile up.
 *
 * A session that someone in this process holds has an owner with a deadline of its own: it counts as abandoned only beyond both
 * that and the idle time.
 */
import type { Clock, ModelHandle, SessionSpec } from '../core/contracts.ts';
import { refused } from './http-errors.ts';
import { GATEWAY_LIMITS } from './limits.ts';
import { LiveSession } from './sessions.ts';

/** Ended rollouts remembered, so that a straggler learns that its rollout ended rather than that there is none. */
const TOMBSTONES = 10_000;
const MOST_BETWEEN_SWEEPS_MS = 60_000;

export interface TableParts {
  readonly clock: Clock;
  readonly idleMs: number;
  handle(session: LiveSession, role: string): ModelHandle;
}

export class SessionTable {
  readonly #parts: TableParts;
  readonly #open = new Map<string, LiveSession>();
  readonly #ended = new Set<string>();
  #opened = 0;
  #remote = 0;
  #sweeping: NodeJS.Timeout | undefined;

  constructor(parts: TableParts) {
    this.#parts = parts;
  }

  get size(): number {
    return this.#open.size;
  }

  /** Oldest first. */
  all(): IterableIterator<LiveSession> {
    return this.#open.values();
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

  open(spec: SessionSpec, remote = false): LiveSession {
    const { rolloutId } = spec.identity;
    if (remote && this.#remote >= GATEWAY_LIMITS.openSessions) this.sweep();
    if (remote && this.#remote >= GATEWAY_LIMITS.openSessions) {
      throw refused('too_many_sessions', `${this.#remote} sessions are open`, { hint: 'seal those that are done' });
    }
    if (this.get(rolloutId) !== undefined) {
      throw refused('rollout_open', `a session of rollout ${JSON.stringify(rolloutId)} is open`, { hint: 'seal it first' });
    }
    const handles = new Map<string, ModelHandle>();
    const handle = (role: string): ModelHandle => {
      const known = handles.get(role);
      if (known !== undefined) return known;
      session.assertOpen();
      const made = this.#parts.handle(session, role);
      handles.set(role, made);
      return made;
    };
    const { clock } = this.#parts;
    const onSeal = (): void => this.#bury(session);
    const neighbour = (id: string): LiveSession | undefined => this.#open.get(id);
    const session = new LiveSession({ spec, number: this.#opened++, remote, clock, handle, neighbour, onSeal });
    this.#open.set(rolloutId, session);
    if (remote) this.#remote++;
    this.#sweeping ??= setInterval(() => this.sweep(), Math.min(this.#parts.idleMs, MOST_BETWEEN_SWEEPS_MS)).unref();
    return session;
  }

  /** Seals what is abandoned. */
  sweep(): void {
    for (const session of this.#open.values()) if (this.#isOver(session)) session.seal();
  }

  #isOver(session: LiveSession): boolean {
    const { deadlineMs } = session.spec.limits;
    const { clock, idleMs } = this.#parts;
    if (!session.remote) return session.idleMs > Math.max(idleMs, deadlineMs);
    return session.idleMs > idleMs || clock.now() - session.openedAt > deadlineMs;
  }

  #bury(session: LiveSession): void {
    this.#open.delete(session.rolloutId);
    if (session.remote) this.#remote--;
    this.#ended.delete(session.rolloutId);
    this.#ended.add(session.rolloutId);
    const [oldest] = this.#ended;
    if (this.#ended.size > TOMBSTONES && oldest !== undefined) this.#ended.delete(oldest);
    if (this.#open.size > 0) return;
    clearInterval(this.#sweeping);
    this.#sweeping = undefined;
  }
}
