/**
 * Asks a Tinker server until it answers.
 *
 * A server that is away (refused, reset, silent), busy (429), unpaid (402) or broken (5xx) is asked again: after longer and longer waits of
 * at most half a minute, and not for ever. Every other reply is the caller's to judge. A request that may have arrived is only sent again
 * where that is harmless (`repeatable`): otherwise nobody can know whether it took effect, and what it was meant for counts as lost.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Downtime } from '../../core/async.ts';
import { TrainyardError } from '../../core/errors.ts';
import {
  ExchangeFailure,
  type ExchangeRequest,
  type HttpClient,
  lost,
  orCancelled,
  type ReplyErrors,
  type ServerReply,
} from './exchange.ts';

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 30_000;
const HEALTH_TIMEOUT_MS = 10_000;
const NOT_YET: ServerReply = { status: 408, contentType: '', retryAfter: undefined, body: Buffer.alloc(0) };

export interface AskOptions {
  readonly signal: AbortSignal;
  /** False where a second arrival would be a second effect. */
  readonly repeatable: boolean;
  /** Less than the caller's own. */
  readonly patienceMs?: number | undefined;
  /** For long polls, which some servers hold for minutes: no answer in time is status 408 as long as the server is alive. */
  readonly longPoll?: boolean;
  /** Status 500 is an answer. */
  readonly isTrial?: boolean | undefined;
}

interface CallerParts {
  readonly http: HttpClient;
  readonly errors: ReplyErrors;
  /** How long an unreachable or busy server is waited for. */
  readonly patienceMs: number;
  /** Called once when trouble begins and once when it is over, however many requests are in it. */
  readonly onTrouble: (message: string) => void;
  /** Runs as long as trouble lasts. */
  readonly downtime?: Downtime | undefined;
}

export class Caller {
  readonly #parts: CallerParts;
  /** Requests that failed and have not been answered since. */
  readonly #troubled = new Set<ExchangeRequest>();
  #troubledSince = 0;
  /** The first failure since the server last answered anything. */
  #silentSince: number | undefined;

  constructor(parts: CallerParts) {
    this.#parts = parts;
  }

  async ask(request: ExchangeRequest, verb: string, options: AskOptions): Promise<ServerReply> {
    let reply: ServerReply | undefined;
    try {
      reply = await this.#askUntilAnswered(request, verb, options);
      return reply;
    } finally {
      this.#endTrouble(request, reply !== undefined);
    }
  }

  /** One exchange. A failure of it is a value, but for a reply that is too large to be one. */
  async once(request: ExchangeRequest, verb: string, signal: AbortSignal): Promise<ServerReply | ExchangeFailure> {
    try {
      return await this.#parts.http.exchange(request, signal);
    } catch (thrown) {
      if (!(thrown instanceof ExchangeFailure)) throw thrown;
      if (thrown.kind !== 'oversized') return thrown;
      throw new TrainyardError('POLICY_GARBLED', `${verb} got ${thrown.message}`);
    }
  }

  async #askUntilAnswered(request: ExchangeRequest, verb: string, options: AskOptions): Promise<ServerReply> {
    const patienceMs = options.patienceMs ?? this.#parts.patienceMs;
    let until: number | undefined;
    for (let tries = 0; ; tries++) {
      const answer = await this.once(request, verb, options.signal);
      if (isAnswer(answer) || (options.isTrial && 'status' in answer && answer.status === 500)) return answer as ServerReply;
      const isSilent = answer instanceof ExchangeFailure && answer.kind === 'silent';
      if (options.longPoll && isSilent && (await this.#isAlive(request.timeoutMs, options.signal))) return NOT_YET;
      const found = this.#describe(answer, verb);
      if (!options.repeatable && mayHaveArrived(answer)) {
        throw lost(`${found}; whether ${verb} took effect cannot be known, and this server may do it again if it is asked again`);
      }
      this.#beginTrouble(request, `${found}; trying again for up to ${Math.round(patienceMs / 1000)} s`);
      // From when the server was last heard of by anyone: a request that takes the place of one that was given up does not begin anew.
      until ??= this.#silentSince! + patienceMs;
      const left = until - performance.now();
      const retryAfter = answer instanceof ExchangeFailure ? 0 : retryAfterMs(answer.retryAfter);
      if (left <= 0 || retryAfter > left) throw this.#givenUp(answer, found, verb, retryAfter, patienceMs);
      const backoff = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** tries) * (0.5 + Math.random() / 2);
      await pause(Math.min(Math.max(backoff, retryAfter), left), options.signal);
    }
  }

  #beginTrouble(request: ExchangeRequest, message: string): void {
    this.#silentSince ??= performance.now();
    if (this.#troubled.size === 0) {
      this.#troubledSince = performance.now();
      this.#parts.downtime?.begin();
      this.#parts.onTrouble(message);
    }
    this.#troubled.add(request);
  }

  /** The request was answered, or has given up. Trouble is over when no request is in it any more. */
  #endTrouble(request: ExchangeRequest, answered: boolean): void {
    if (answered) this.#silentSince = undefined;
    if (!this.#troubled.delete(request) || this.#troubled.size > 0) return;
    this.#parts.downtime?.end();
    const seconds = Math.round((performance.now() - this.#troubledSince) / 1000);
    if (answered) this.#parts.onTrouble(`the server answers again, after ${seconds} s`);
  }

  async #isAlive(mostMs: number, signal: AbortSignal): Promise<boolean> {
    const timeoutMs = Math.min(mostMs, HEALTH_TIMEOUT_MS);
    return isAnswer(await this.once({ method: 'GET', path: '/api/v1/healthz', pool: 'control', timeoutMs }, 'healthz', signal));
  }

  #describe(answer: ServerReply | ExchangeFailure, verb: string): string {
    if (!(answer instanceof ExchangeFailure)) return this.#parts.errors.ofStatus(answer, verb).message;
    return `the server of the policy at ${this.#parts.http.address} did not answer ${verb}: ${answer.message}`;
  }

  #givenUp(
    answer: ServerReply | ExchangeFailure,
    found: string,
    verb: string,
    afterMs: number,
    patienceMs: number,
  ): TrainyardError {
    if (!(answer instanceof ExchangeFailure) && answer.status === 402) return this.#parts.errors.ofStatus(answer, verb);
    const [wanted, most] = [Math.round(afterMs / 1000), Math.round(patienceMs / 1000)];
    const why =
      afterMs > patienceMs ? `it wants to be asked again in ${wanted} s, longer than is waited` : `given up after ${most} s`;
    return new TrainyardError('POLICY_UNREACHABLE', `${found}; ${why}`, {
      hint: 'check that the server runs and that TINKER_BASE_URL is its address',
    });
  }
}

function isAnswer(answer: ServerReply | ExchangeFailure): boolean {
  return 'status' in answer && answer.status !== 402 && answer.status !== 429 && answer.status < 500;
}

/** 402, 429 and 503 are said before anything is done. */
function mayHaveArrived(answer: ServerReply | ExchangeFailure): boolean {
  return answer instanceof ExchangeFailure ? answer.kind !== 'unsent' : answer.status >= 500 && answer.status !== 503;
}

/** Rejects with CANCELLED as soon as the signal aborts. */
export async function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  await orCancelled(signal, sleep(milliseconds, undefined, { signal }));
}

/** Milliseconds that a Retry-After header asks for: seconds, or a date. */
function retryAfterMs(header: string | undefined): number {
  if (header === undefined) return 0;
  const seconds = Number(header);
  const wait = Number.isFinite(seconds) ? seconds * 1000 : Date.parse(header) - Date.now();
  return Number.isFinite(wait) ? Math.max(0, wait) : 0;
}
