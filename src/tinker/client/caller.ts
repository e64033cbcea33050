/**
 * Asks a server until it answers: a server that is away (refused, reset, silent), busy (429), unpaid (402) or broken (5xx) is asked
 * again within patience. Every other reply is the caller's to judge.
 *
 * A request that may have arrived is only sent again where that is harmless (`repeatable`): otherwise nobody can know whether it took
 * effect, and what it was meant for counts as lost.
 */
import { TrainyardError } from '../../core/errors.ts';
import { ExchangeFailure, type ExchangeRequest, type HttpClient, type HttpReply } from './http.ts';
import { Patience, retryAfterMs, type Trouble } from './patience.ts';
import { lost, type Refusals } from './refusals.ts';

const HEALTH_TIMEOUT_MS = 10_000;
const NOT_YET: HttpReply = { status: 408, contentType: '', retryAfter: undefined, body: Buffer.alloc(0) };

export interface AskOptions {
  readonly signal: AbortSignal;
  /** False where a second arrival would be a second effect. */
  readonly repeatable: boolean;
  /** For long polls, which some servers hold for minutes: no answer in time is status 408 as long as the server is alive. */
  readonly longPoll?: boolean;
  /** Status 500 is an answer. */
  readonly isTrial?: boolean | undefined;
}

interface CallerParts {
  readonly http: HttpClient;
  readonly refusals: Refusals;
  readonly trouble: Trouble;
  readonly patienceMs: number;
}

export class Caller {
  readonly #parts: CallerParts;

  constructor(parts: CallerParts) {
    this.#parts = parts;
  }

  async ask(request: ExchangeRequest, verb: string, options: AskOptions): Promise<HttpReply> {
    const patience = new Patience(this.#parts.patienceMs, options.signal);
    let reply: HttpReply | undefined;
    try {
      reply = await this.#askUntilAnswered(request, verb, options, patience);
      return reply;
    } finally {
      this.#parts.trouble.ends(patience, reply !== undefined);
    }
  }

  async #askUntilAnswered(request: ExchangeRequest, verb: string, options: AskOptions, patience: Patience): Promise<HttpReply> {
    for (;;) {
      const answer = await this.once(request, verb, options.signal);
      if (!(answer instanceof ExchangeFailure) && (isAnswer(answer) || (options.isTrial && answer.status === 500))) return answer;
      if (
        options.longPoll &&
        answer instanceof ExchangeFailure &&
        answer.kind === 'silent' &&
        (await this.#isAlive(request.timeoutMs, options))
      ) {
        return NOT_YET;
      }
      const found = this.#found(answer, verb);
      if (!options.repeatable && mayHaveArrived(answer)) {
        throw lost(`${found}; whether ${verb} took effect cannot be known, and this server may do it again if it is asked again`);
      }
      this.#parts.trouble.begins(patience, `${found}; trying again for up to ${Math.round(this.#parts.patienceMs / 1000)} s`);
      const after = answer instanceof ExchangeFailure ? 0 : retryAfterMs(answer.retryAfter);
      if (!(await patience.wait(after, this.#parts.trouble.silentSince))) throw this.#outOfPatience(answer, found, verb, after);
    }
  }

  /** One exchange. A failure of it is a value, but for a reply that is too large to be one. */
  async once(request: ExchangeRequest, verb: string, signal: AbortSignal): Promise<HttpReply | ExchangeFailure> {
    try {
      return await this.#parts.http.exchange(request, signal);
    } catch (thrown) {
      if (!(thrown instanceof ExchangeFailure)) throw thrown;
      if (thrown.kind !== 'oversized') return thrown;
      throw new TrainyardError('POLICY_GARBLED', `${verb} got ${thrown.message}`);
    }
  }

  async #isAlive(timeoutMs: number, { signal }: AskOptions): Promise<boolean> {
    const request = {
      method: 'GET',
      path: '/api/v1/healthz',
      pool: 'control',
      timeoutMs: Math.min(timeoutMs, HEALTH_TIMEOUT_MS),
    } as const;
    const answer = await this.once(request, 'healthz', signal);
    return !(answer instanceof ExchangeFailure) && isAnswer(answer);
  }

  #found(answer: HttpReply | ExchangeFailure, verb: string): string {
    if (!(answer instanceof ExchangeFailure)) return this.#parts.refusals.ofStatus(answer, verb).message;
    return `the server of the policy at ${this.#parts.http.address} did not answer ${verb}: ${answer.message}`;
  }

  #outOfPatience(answer: HttpReply | ExchangeFailure, found: string, verb: string, afterMs: number): TrainyardError {
    const { refusals, patienceMs } = this.#parts;
    if (!(answer instanceof ExchangeFailure) && answer.status === 402) return refusals.ofStatus(answer, verb);
    const [wanted, most] = [Math.round(afterMs / 1000), Math.round(patienceMs / 1000)];
    const why =
      afterMs > patienceMs ? `it wants to be asked again in ${wanted} s, longer than is waited` : `given up after ${most} s`;
    return new TrainyardError('POLICY_UNREACHABLE', `${found}; ${why}`, {
      hint: 'check that the server runs and that TINKER_BASE_URL is its address',
    });
  }
}

function isAnswer({ status }: HttpReply): boolean {
  return status !== 402 && status !== 429 && status < 500;
}

/** 402, 429 and 503 are said before anything is done. */
function mayHaveArrived(answer: HttpReply | ExchangeFailure): boolean {
  return answer instanceof ExchangeFailure ? answer.kind !== 'unsent' : answer.status >= 500 && answer.status !== 503;
}
