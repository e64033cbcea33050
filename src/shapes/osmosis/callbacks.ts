/**
 * Reports a rollout's outcome to its controller: at most one completion callback, then at most one grader callback. Each is retried until
 * the controller accepts it or retrying is pointless. An unreachable controller causes a warning, never a failed rollout.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { deadlineSignal } from '../../core/async.ts';
import { messageOf } from '../../core/errors.ts';
import { asJson } from '../../core/json.ts';
import type { Callbacks, Completion, GradedSample, Grading } from './execution.ts';
import { ForbiddenAddress } from './outbound.ts';

export interface Patience {
  readonly attempts: number;
  /** The first pause; each later one is twice as long, up to `longestMs`. */
  readonly firstMs: number;
  readonly longestMs: number;
  /** Limit for one attempt. */
  readonly timeoutMs: number;
}

export const PATIENCE: Patience = { attempts: 5, firstMs: 500, longestMs: 8000, timeoutMs: 10_000 };
const TRY_AGAIN = new Set([429, 500, 502, 503, 504]);
/** The most characters of JSON for one sample's messages or label. */
const MOST_JSON = 16 * 1024 * 1024;

type Warn = (text: string) => void;

export interface ReporterParts {
  readonly rolloutId: string;
  readonly callbacks: Callbacks;
  readonly fetch: typeof globalThis.fetch;
  readonly patience: Patience;
  /** Aborting it stops all retries. */
  readonly signal: AbortSignal;
  readonly warn: Warn;
}

export class Reporter {
  readonly #parts: ReporterParts;
  #completed: Promise<void> | undefined;
  #graded: Promise<void> | undefined;

  constructor(parts: ReporterParts) {
    this.#parts = parts;
  }

  completed(completion: Completion): Promise<void> {
    const body = { ...this.#ending(completion), extra_fields: null };
    this.#completed ??= this.#deliver('completion', this.#parts.callbacks.completionUrl, body);
    return this.#completed;
  }

  /** Sends the completion first, as a success if nothing else was reported. */
  graded(grading: Grading): Promise<void> {
    this.#graded ??= this.#grade(grading);
    return this.#graded;
  }

  /** Reports a failure for whatever was not reported before the backend crashed. */
  async crashed(): Promise<void> {
    const failure: Completion = { status: 'failure', errMessage: 'Internal server error', errCategory: 'agent_error' };
    await this.completed(failure);
    await this.graded({ ...failure, samples: {} });
  }

  async #grade({ samples, ...ending }: Grading): Promise<void> {
    const { graderUrl } = this.#parts.callbacks;
    if (graderUrl === null) return;
    await this.completed({ status: 'success', errMessage: null, errCategory: null });
    const isPaid = ending.status === 'success';
    const bodies = Object.entries(samples).map(([name, sample]) => [name, this.#sample(name, sample, isPaid)] as const);
    // `sample` serves controllers that expect one conversation per rollout.
    const sample = bodies.length === 1 ? bodies[0]![1] : null;
    await this.#deliver('grader', graderUrl, { ...this.#ending(ending), samples: Object.fromEntries(bodies), sample });
  }

  #ending({ status, errMessage, errCategory }: Completion): object {
    return { status, rollout_id: this.#parts.rolloutId, err_message: errMessage, err_category: errCategory };
  }

  #sample(name: string, { removed, ...sample }: GradedSample, isPaid: boolean): object {
    const messages = asJson(sample.messages, MOST_JSON);
    if (messages === undefined) {
      this.#warn(`sample ${name} without its messages: not JSON, or longer than ${MOST_JSON} characters`);
    }
    return {
      messages: messages ?? [],
      label: asJson(sample.label, MOST_JSON) ?? null,
      reward: isPaid && !removed && Number.isFinite(sample.reward) ? sample.reward : null,
      remove_sample: removed,
      metrics: jsonOnly(sample.metrics ?? {}, `metrics of sample ${name}`, this.#warn),
      extra_fields: jsonOnly(sample.extraFields ?? {}, `extra fields of sample ${name}`, this.#warn),
    };
  }

  async #deliver(what: string, url: string, body: object): Promise<void> {
    const { patience, signal } = this.#parts;
    const text = JSON.stringify(body);
    let found: string | undefined = 'the server was closed';
    for (let attempt = 0, pause = patience.firstMs; attempt < patience.attempts && !signal.aborted; attempt++) {
      let isOver: boolean;
      ({ isOver, found } = await this.#attempt(url, text));
      if (found === undefined) return;
      if (isOver || attempt + 1 === patience.attempts) break;
      await sleep(Math.min(pause, patience.longestMs), undefined, { signal }).catch(() => undefined);
      pause *= 2;
    }
    this.#warn(`the ${what} callback was not taken: ${found}`);
  }

  /** `found`: why the controller did not accept the callback; absent on success. `isOver`: do not retry. */
  async #attempt(url: string, body: string): Promise<{ readonly isOver: boolean; readonly found?: string }> {
    const { fetch, callbacks, patience } = this.#parts;
    const authorization = callbacks.apiKey === null ? {} : { authorization: `Bearer ${callbacks.apiKey}` };
    const late = (): Error => new Error(`no answer within ${patience.timeoutMs} ms`);
    using deadline = deadlineSignal(patience.timeoutMs, late, this.#parts.signal);
    try {
      const headers = { 'content-type': 'application/json', ...authorization };
      const response = await fetch(url, { method: 'POST', headers, body, signal: deadline.signal });
      await response.body?.cancel();
      if (response.ok) return { isOver: true };
      return { isOver: !TRY_AGAIN.has(response.status), found: `it answered ${response.status}` };
    } catch (thrown) {
      return { isOver: thrown instanceof ForbiddenAddress, found: messageOf(thrown) };
    }
  }

  readonly #warn = (text: string): void => this.#parts.warn(`rollout ${this.#parts.rolloutId}: ${text}`);
}

/** Keeps the fields that survive a JSON round trip and names all others in one warning. */
export function jsonOnly(given: object, called: string, warn: Warn): Readonly<Record<string, unknown>> {
  const dropped: string[] = [];
  const kept = Object.entries(given).flatMap(([name, value]: [string, unknown]) => {
    const json = name === '__proto__' ? undefined : asJson(value);
    if (json === undefined && value !== undefined) dropped.push(name);
    return json === undefined ? [] : [[name, json] as const];
  });
  if (dropped.length > 0) warn(`${called} without ${dropped.slice(0, 20).join(', ')}: not finite, or not JSON`);
  return Object.fromEntries(kept);
}
