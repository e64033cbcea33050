/**
 * Tells a controller how its rollout went: at most one completion and one grade, in this order, whatever happens in between, each tried until
 * it was taken or cannot be. A controller that cannot be told is a warning here, not a failure of the rollout.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { linkSignals } from '../core/async.ts';
import { messageOf } from '../core/errors.ts';
import type { Completion, Grading } from './execution.ts';
import { type Callbacks, completionBody, gradingBody } from './wire.ts';

export interface Patience {
  readonly attempts: number;
  /** Of the first pause; each later one is twice as long, up to `longestMs`. */
  readonly firstMs: number;
  readonly longestMs: number;
  /** For one attempt. */
  readonly timeoutMs: number;
}

export const PATIENCE: Patience = { attempts: 5, firstMs: 500, longestMs: 8000, timeoutMs: 10_000 };
/** With which a controller says: later. */
const TRY_AGAIN = new Set([429, 500, 502, 503, 504]);

export interface ReporterParts {
  readonly rolloutId: string;
  readonly callbacks: Callbacks;
  readonly fetch: typeof globalThis.fetch;
  readonly patience: Patience;
  /** Ends all trying. */
  readonly signal: AbortSignal;
  warn(text: string): void;
}

export class Reporter {
  readonly #parts: ReporterParts;
  #completed: Promise<void> | undefined;
  #graded: Promise<void> | undefined;

  constructor(parts: ReporterParts) {
    this.#parts = parts;
  }

  /** Only the first is sent. */
  completed(completion: Completion): Promise<void> {
    const { rolloutId, callbacks } = this.#parts;
    this.#completed ??= this.#deliver('completion', callbacks.completionUrl, completionBody(rolloutId, completion));
    return this.#completed;
  }

  /** Only the first is sent, after the completion. */
  graded(grading: Grading): Promise<void> {
    this.#graded ??= this.#grade(grading);
    return this.#graded;
  }

  /** The backend broke down: what was not told yet is a failure. */
  async crashed(): Promise<void> {
    const failure: Completion = { status: 'failure', errMessage: 'Internal server error', errCategory: 'agent_error' };
    await this.completed(failure);
    await this.graded({ ...failure, samples: {} });
  }

  async #grade(grading: Grading): Promise<void> {
    const { rolloutId, callbacks, warn } = this.#parts;
    if (callbacks.graderUrl === null) return;
    await this.completed({ status: 'success', errMessage: null, errCategory: null });
    const tell = (text: string): void => warn(`rollout ${rolloutId}: ${text}`);
    await this.#deliver('grader', callbacks.graderUrl, gradingBody(rolloutId, grading, tell));
  }

  async #deliver(what: string, url: string, body: object): Promise<void> {
    const { patience, signal, rolloutId, warn } = this.#parts;
    const text = JSON.stringify(body);
    let problem = '';
    for (let attempt = 0; attempt < patience.attempts && !signal.aborted; attempt++) {
      if (attempt > 0) await sleep(pauseMs(patience, attempt), undefined, { signal }).catch(() => undefined);
      if (signal.aborted) break;
      const { isOver, found } = await this.#attempt(url, text);
      if (found === undefined) return;
      problem = found;
      if (isOver) break;
    }
    warn(`rollout ${rolloutId}: the ${what} callback was not taken: ${problem || 'the server was closed'}`);
  }

  /** `found`: why it was not taken. */
  async #attempt(url: string, body: string): Promise<{ readonly isOver: boolean; readonly found?: string }> {
    const { fetch, callbacks, patience, signal } = this.#parts;
    const authorization = callbacks.apiKey === null ? {} : { authorization: `Bearer ${callbacks.apiKey}` };
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(new Error(`no answer within ${patience.timeoutMs} ms`)), patience.timeoutMs);
    const linked = linkSignals(signal, late.signal);
    try {
      const response = await fetch(url, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...authorization },
        body,
        signal: linked.signal,
      });
      await response.body?.cancel();
      if (response.ok) return { isOver: true };
      return { isOver: !TRY_AGAIN.has(response.status), found: `it answered ${response.status}` };
    } catch (thrown) {
      return { isOver: (thrown as Error).name === 'ForbiddenAddress', found: messageOf(thrown) };
    } finally {
      clearTimeout(timer);
      linked.release();
    }
  }
}

function pauseMs({ firstMs, longestMs }: Patience, attempt: number): number {
  return Math.min(firstMs * 2 ** (attempt - 1), longestMs);
}
