/**
 * Asks a model server, for default models and judges: one answer to one question, however many tries it takes. What may pass is tried again,
 * after growing waits or when the server says: a busy, broken or unreachable server, a reply that was cut off. A busy server (429, 503, 529)
 * slows down all calls to it instead of failing them. Replies are bounded, redirects are not followed: they would take the conversation,
 * and possibly the key, to another server. The key goes into one header and never into a message.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Downtime, deadlineSignal, Semaphore } from '../core/async.ts';
import type { ModelServer } from '../core/contracts.ts';
import { printable } from '../core/describe.ts';
import { messageOf } from '../core/errors.ts';
import { retryAfterMs, textWithin } from '../http/message.ts';
import { type ChatAnswer, type ChatRequest, type ChatServer, chatAnswerIn, chatRequest, withoutKey } from './chat-client.ts';
import { messagesAnswerIn, messagesRequest } from './messages-client.ts';

const MOST_TRIES = 10;
/** At a busy server that answers others. */
const MOST_BUSY_TRIES = 50;
/** For what is probably a wrong address: a server that never answered, replies that are no completions. */
const FEW_TRIES = 3;
const BACKOFF_MS = 500;
const LONGEST_BACKOFF_MS = 30_000;
/** A server that asks for more is out of quota rather than busy. */
const LONGEST_PAUSE_MS = 120_000;
/** Decompressed. */
const REPLY_BYTES = 16 * 1024 * 1024;
const LONGEST_TIMEOUT_MS = 2 ** 31 - 1;
const QUOTED = 300;

export interface Question<T> {
  /** Called for each try. */
  request(): ChatRequest;
  /** A text says why the answer is of no use; the server is asked again. */
  read(answer: ChatAnswer): T | string;
  readonly signal: AbortSignal;
  /** Not counting those at a busy server. Default 10. */
  readonly tries?: number;
  /** Longest wait before the second try; doubles with each further one. */
  readonly backoffMs?: number;
  /** Per try. Default: none but the signal. */
  readonly timeoutMs?: number;
  /** The time in which the question waits here, between tries or because the server is busy; the rest is the server's. */
  readonly waits?: Downtime | undefined;
}

export interface Asked<T> {
  readonly value: T;
  readonly calls: number;
  /** Of all tries. */
  readonly promptTokens: number;
  readonly completionTokens: number;
}

/** The message begins with a verb whose subject is the server. It quotes refusals, but no answers. */
export class ServerFailure extends Error {
  readonly details: { readonly found: string | undefined; readonly tries: number; readonly seconds: number };

  constructor(message: string, details: ServerFailure['details']) {
    super(message);
    this.details = details;
  }
}

/** A deadline for one question, with room for waiting for a busy server. */
export const longestMs = ({ tries, timeoutMs }: Required<Pick<Question<unknown>, 'tries' | 'timeoutMs'>>): number =>
  tries * timeoutMs + (tries + MOST_TRIES) * LONGEST_BACKOFF_MS;

/** Throws ServerFailure, or the signal's reason. */
export async function askServer<T extends object>(server: ModelServer, question: Question<T>): Promise<Asked<T>> {
  const { signal, waits, tries: mostTries = MOST_TRIES, backoffMs = BACKOFF_MS } = question;
  const gate = gateOf(server);
  const without = new Set(gate.unsupported);
  const began = performance.now();
  const spent = { calls: 0, promptTokens: 0, completionTokens: 0 };
  let busy = 0;
  let inVain = 0;
  let other = 0;
  let era = 0;
  let answers = gate.answers;
  for (;;) {
    const reply = await gate.pass(signal, waits, () => {
      era = gate.era;
      return exchange(server, question, without, gate);
    });
    spent.calls++;
    if (typeof reply === 'string') {
      without.add(reply);
      continue;
    }
    let failure: Failure;
    if (!('answer' in reply)) failure = reply;
    else {
      gate.speedUp(without);
      spent.promptTokens += reply.answer.usage?.promptTokens ?? 0;
      spent.completionTokens += reply.answer.usage?.completionTokens ?? 0;
      const value = question.read(reply.answer);
      if (typeof value !== 'string') return { value, ...spent };
      failure = { why: value };
    }
    const { why, found, isBusy = false, most = MOST_TRIES, afterMs = 0 } = failure;
    // A busy server that answers others meanwhile will answer this question, too.
    inVain = answers === gate.answers ? inVain : 0;
    answers = gate.answers;
    const count = isBusy ? ++inVain : ++other;
    if (isBusy) busy++;
    if (count >= (isBusy ? MOST_TRIES : Math.min(mostTries, most)) || busy >= MOST_BUSY_TRIES) {
      throw new ServerFailure(why, { found, tries: busy + other, seconds: Math.round((performance.now() - began) / 1000) });
    }
    // Jitter over the whole wait: calls that failed together must not return together.
    const ownMs = Math.random() * Math.min(LONGEST_BACKOFF_MS, backoffMs * 2 ** (count - 1));
    const waitMs = isBusy ? Math.max(afterMs, ownMs) : afterMs || ownMs;
    if (isBusy) gate.slowDown(era, waitMs);
    else await waited(waits, pause(waitMs, signal));
  }
}

async function waited<W>(waits: Downtime | undefined, wait: Promise<W>): Promise<W> {
  waits?.begin();
  return await wait.finally(() => waits?.end());
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return sleep(milliseconds, undefined, { signal }).catch(() => signal.throwIfAborted());
}

// ── how many calls a server gets at once ─────────────────────────────────────────────────────────────────────────────────

/**
 * What is known of a model at a server in this process, and how many calls it gets at once: any number until it says that it is busy, then half of
 * those in flight, then one more for each round of answers (additive increase, multiplicative decrease).
 *
 * A rollout's deadline bounds what its agent and its models take, not how many others want the same server: so the time that a call waits
 * here does not count towards it (`Question.waits`). That cannot go on for ever: a call in flight does count, is cut off at its rollout's
 * deadline, and admits the next; and no call is turned away more than 50 times.
 */
class Gate {
  readonly unsupported = new Set<Adaptable>();
  hasAnswered = false;
  answers = 0;
  /** Begins anew when the limit is lowered. Calls of an earlier one were sent under another limit. */
  era = 0;
  readonly #places = new Semaphore(Infinity);
  #limit = Infinity;
  #round = 0;
  #opensAt = 0;

  async pass<R>(signal: AbortSignal, waits: Downtime | undefined, work: () => Promise<R>): Promise<R> {
    using _place = await waited(waits, this.#places.acquire(signal));
    // Whoever holds a place may be told to wait: then so do those behind it.
    for (let left = this.#left(); left > 0; left = this.#left()) await waited(waits, pause(left, signal));
    return await work();
  }

  slowDown(era: number, waitMs: number): void {
    this.#opensAt = Math.max(this.#opensAt, performance.now() + waitMs);
    // Of the calls that were refused together, only the first halves the limit.
    if (era !== this.era) return;
    this.era++;
    this.#setLimit(Math.max(1, Math.floor(Math.min(this.#limit, this.#places.held + 1) / 2)));
  }

  speedUp(without: ReadonlySet<Adaptable>): void {
    for (const name of without) this.unsupported.add(name);
    this.answers++;
    if (++this.#round >= this.#limit) this.#setLimit(this.#limit + 1);
  }

  #left(): number {
    return Math.ceil(this.#opensAt - performance.now());
  }

  #setLimit(limit: number): void {
    this.#round = 0;
    this.#limit = limit;
    this.#places.limit = limit;
  }
}

const gates = new Map<string, Gate>();

/** By origin and model: our own gateway has a base URL for each rollout, and servers limit each model by itself. */
function gateOf({ baseURL, name }: ChatServer): Gate {
  const key = `${URL.parse(baseURL)?.origin ?? baseURL} ${name}`;
  const gate = gates.get(key) ?? new Gate();
  gates.set(key, gate);
  return gate;
}

// ── one try ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

interface Failure {
  readonly why: string;
  /** The beginning of what was answered in place of a completion. */
  readonly found?: string;
  /** Of all tries that fail so. 1: trying again cannot help. */
  readonly most?: number;
  readonly isBusy?: boolean;
  /** The wait that the server asks for. */
  readonly afterMs?: number;
}

/**
 * Parameters that can be sent in another form or left out, and how servers name them when they refuse them. Newer models of OpenAI take
 * `max_completion_tokens` in place of `max_tokens`, and no temperature. A temperature out of range is not left out: the server tells that.
 * A parameter is remembered only once a request succeeds without it: a refusal may name one merely because it echoes the request.
 */
const ADAPTABLE = {
  format: unsupported('response_format|json_schema|structured output|guided|output_config'),
  temperature: unsupported('temperature'),
  maxTokens: /max_tokens/i,
};
type Adaptable = keyof typeof ADAPTABLE;

/** Names the parameter, and says that it is not taken at all. */
function unsupported(name: string): RegExp {
  const why = 'unsupported|not support|deprecated|unknown|unrecogni[sz]ed|not (?:permitted|allowed)|extra (?:inputs|fields)';
  return new RegExp(`^(?=.*(?:${name}))(?=.*(?:${why}))`, 'is');
}

function adapted(request: ChatRequest, without: ReadonlySet<Adaptable>): ChatRequest {
  const { format, temperature, maxTokens, ...rest } = request;
  return {
    ...rest,
    ...(without.has('format') || format === undefined ? {} : { format }),
    ...(without.has('temperature') || temperature === undefined ? {} : { temperature }),
    ...(maxTokens === undefined ? {} : { [without.has('maxTokens') ? 'maxCompletionTokens' : 'maxTokens']: maxTokens }),
  };
}

/** Returns a parameter's name if the server does not support it. Throws only the signal's reason. */
async function exchange(
  server: ModelServer,
  question: Question<unknown>,
  without: ReadonlySet<Adaptable>,
  gate: Gate,
): Promise<{ readonly answer: ChatAnswer } | Failure | Adaptable> {
  const { signal, timeoutMs = LONGEST_TIMEOUT_MS } = question;
  const { fetch = globalThis.fetch, api } = server;
  const late = new Error('late');
  using bounded = deadlineSignal(timeoutMs, () => late, signal);
  const request = question.request();
  try {
    const write = api === 'anthropic' ? messagesRequest : chatRequest;
    const [url, init] = write(server, { ...adapted(request, without), signal: bounded.signal });
    const response = await fetch(url, { ...init, redirect: 'manual' });
    gate.hasAnswered = true;
    const body = await bodyOf(response);
    if (body === undefined) return { why: `answered more than ${REPLY_BYTES} bytes`, most: 1 };
    const text = withoutKey(body, server);
    return response.ok
      ? answered(text, api)
      : refused(response, text, server, (name) => request[name] !== undefined && !without.has(name));
  } catch (thrown) {
    signal.throwIfAborted();
    if (thrown === late) return { why: `did not answer within ${timeoutMs} ms` };
    return { why: `cannot be reached: ${whyUnreachable(thrown, server)}`, ...(gate.hasAnswered ? {} : { most: FEW_TRIES }) };
  }
}

/** `fetch` reports only that it failed. The reason is in the cause, which may quote the request. */
function whyUnreachable(thrown: unknown, server: ChatServer): string {
  const cause = thrown instanceof Error && thrown.cause !== undefined ? thrown.cause : thrown;
  return withoutKey(messageOf(cause), server).slice(0, QUOTED) || 'the connection failed';
}

function answered(text: string, api: ModelServer['api']): { readonly answer: ChatAnswer } | Failure {
  const answer = api === 'anthropic' ? messagesAnswerIn(text) : chatAnswerIn(text);
  if (answer === undefined) return { why: 'answered something that is no completion', found: quoted(text), most: FEW_TRIES };
  if (answer.withheld) return { why: 'gave no whole answer: its content filter withheld it', most: 1 };
  return { answer };
}

function refused(
  { status, headers }: Response,
  text: string,
  server: ModelServer,
  isSent: (name: Adaptable) => boolean,
): Failure | Adaptable {
  if (status >= 300 && status < 400) {
    const target = withoutKey(URL.parse(headers.get('location') ?? '', server.baseURL)?.origin ?? 'nowhere', server);
    return { why: `answered ${status}, a redirect to ${target}: redirects are not followed`, most: 1 };
  }
  // Servers quote part of a wrong key.
  if (status === 401) return { why: `answered 401: it ${server.apiKey ? 'does not accept the key' : 'wants a key'}`, most: 1 };
  if (status === 400 || status === 422) {
    const names = (Object.keys(ADAPTABLE) as Adaptable[]).filter((name) => isSent(name) && ADAPTABLE[name].test(text));
    const named = names.find((name) => server.api !== 'anthropic' || name !== 'maxTokens');
    if (named !== undefined) return named;
  }
  const why = `answered ${status}: ${quoted(text)}`;
  const mayPass = [408, 409, 425, 429].includes(status) || (status >= 500 && status !== 501);
  if (!mayPass || headers.get('x-should-retry') === 'false' || text.includes('insufficient_quota')) return { why, most: 1 };
  const afterMs = waitAsked(headers);
  if (afterMs > LONGEST_PAUSE_MS) return { why: `${why} (it asks for a wait of ${Math.round(afterMs / 1000)} s)`, most: 1 };
  return { why, isBusy: [429, 503, 529].includes(status), afterMs };
}

const quoted = (text: string): string => printable(text.slice(0, QUOTED)).replaceAll('\n', ' ');

/** Undefined if larger than REPLY_BYTES. */
export const bodyOf = (response: Response): Promise<string | undefined> => textWithin(response, REPLY_BYTES);

/** Milliseconds; 0 if it asks for none. */
function waitAsked(headers: Headers): number {
  const precise = Number(headers.get('retry-after-ms') ?? Number.NaN);
  return Number.isFinite(precise) ? Math.max(0, precise) : retryAfterMs(headers.get('retry-after') ?? '');
}
