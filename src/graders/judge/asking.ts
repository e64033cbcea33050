/**
 * Asks a judge until it gives a verdict: again after what may pass (a busy or broken server, a silent one, a reply that is no verdict),
 * with longer and longer waits, a few times. A judge that gives none makes the rollout unscorable, never worth 0.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { linkSignals } from '../../core/async.ts';
import { unscorable } from '../../core/define.ts';
import { printable } from '../../core/describe.ts';
import { parsedJson } from '../../core/json.ts';
import {
  type ChatRequest,
  type ChatServer,
  chatAnswerIn,
  chatRequest,
  whyUnreachable,
  withoutKey,
} from '../../gateway/chat-client.ts';
import { type JudgedBy, questionOf, type Shown } from './question.ts';
import { type Verdict, verdictIn } from './verdict.ts';

/** However long a server asks to be left alone. */
export const MOST_WAIT_MS = 30_000;

export interface Patience {
  /** Of one call. */
  readonly timeoutMs: number;
  readonly tries: number;
  /** Before the second try; twice as long before each further one. */
  readonly backoffMs: number;
  readonly maxTokens: number;
}

export interface Asked extends Usage {
  readonly verdict: Verdict;
  readonly calls: number;
}

/**
 * `unsupported` is kept by the caller between questions: what a server does not take is found out once. Only what was left out of a question
 * that was answered counts: a refusal that merely names a parameter, because it repeats the question or this one is too long, is no reason
 * to ask all others differently.
 */
export async function askJudge(
  server: ChatServer,
  by: JudgedBy,
  shown: readonly Shown[],
  patience: Patience,
  unsupported: Set<OptionalParameter>,
  signal: AbortSignal,
): Promise<Asked> {
  const spent = { promptTokens: 0, completionTokens: 0, calls: 0 };
  const without = new Set(unsupported);
  let problem = '';
  for (let attempt = 1; attempt <= patience.tries; ) {
    // Anew each time: a judge that was led astray must not be asked with secrets it may have repeated.
    const { messages, schema, check } = questionOf(by, shown);
    const question = { messages, temperature: 0, maxTokens: patience.maxTokens, format: { schema } };
    const reply = await complete({ server, question, without, timeoutMs: patience.timeoutMs }, signal);
    spent.calls += 1;
    if (reply.kind === 'unsupported') {
      without.add(reply.parameter);
      continue;
    }
    let afterMs: number | undefined;
    if (reply.kind === 'answered') {
      for (const parameter of without) unsupported.add(parameter);
      spent.promptTokens += reply.usage.promptTokens;
      spent.completionTokens += reply.usage.completionTokens;
      const verdict = verdictIn(reply.content, by, check);
      if (typeof verdict !== 'string') return { ...spent, verdict };
      problem = verdict;
    } else {
      problem = `it ${reply.why}`;
      if (!reply.again) return gaveNone(server, attempt, problem);
      afterMs = reply.afterMs;
    }
    if (attempt < patience.tries) await pause(afterMs ?? backoff(patience.backoffMs, attempt), signal);
    attempt += 1;
  }
  return gaveNone(server, patience.tries, problem);
}

function gaveNone({ name }: ChatServer, tries: number, problem: string): never {
  return unscorable(`the judge ${name} gave no verdict in ${tries} ${tries === 1 ? 'try' : 'tries'}: ${problem}`);
}

/** Not all at the same moment: those that were refused together would be again. */
function backoff(firstMs: number, attempt: number): number {
  return firstMs * 2 ** (attempt - 1) * (0.5 + Math.random());
}

async function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  try {
    await sleep(Math.min(MOST_WAIT_MS, milliseconds), undefined, { signal });
  } catch {
    signal.throwIfAborted();
  }
}

// ── one call of a judge's server ────────────────────────────────────────────────────────────────────────────────────────

const REPLY_BYTES = 1024 * 1024;
const QUOTED = 200;
const AGAIN = [408, 409, 425, 429];

interface Usage {
  readonly promptTokens: number;
  readonly completionTokens: number;
}

type Completion =
  | { readonly kind: 'answered'; readonly content: string; readonly usage: Usage }
  /** `again`: whether asking again may help. `afterMs`: what the server asks to be waited. */
  | { readonly kind: 'failed'; readonly why: string; readonly again: boolean; readonly afterMs?: number | undefined }
  /** A parameter that this server does not take. */
  | { readonly kind: 'unsupported'; readonly parameter: OptionalParameter };

/** Parameters without which the question is still the same, and what servers call them when they refuse them. */
const OPTIONAL = {
  response_format: /response_format|json_schema|structured output|guided/i,
  temperature: /temperature/i,
  max_tokens: /max_tokens/i,
} as const;
export type OptionalParameter = keyof typeof OPTIONAL;

interface Call {
  readonly server: ChatServer;
  readonly question: Required<Pick<ChatRequest, 'messages' | 'temperature' | 'maxTokens' | 'format'>>;
  /** Not to be sent. */
  readonly without: ReadonlySet<OptionalParameter>;
  readonly timeoutMs: number;
}

/**
 * Over Chat Completions: bounded in time and size, redirects refused. What can go wrong is a value; throws only the signal's reason.
 *
 * The key goes into one header of one request and nowhere else: what a server says about a wrong key is not repeated, and no message
 * leaves here with the key in it.
 */
async function complete(call: Call, signal: AbortSignal): Promise<Completion> {
  signal.throwIfAborted();
  const { server, timeoutMs } = call;
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), timeoutMs);
  const linked = linkSignals(signal, late.signal);
  try {
    const [url, init] = chatRequest(server, sentOf(call));
    const response = await fetch(url, { ...init, redirect: 'manual', signal: linked.signal });
    const body = await bodyOf(response);
    if (body === undefined) return failed(`answered more than ${REPLY_BYTES} bytes`, true);
    return response.ok ? answered(body) : refused(response, withoutKey(body, server), call.without);
  } catch (thrown) {
    signal.throwIfAborted();
    if (late.signal.aborted) return failed(`did not answer within ${timeoutMs} ms`, true);
    return failed(`cannot be reached: ${whyUnreachable(thrown, server)}`, true);
  } finally {
    clearTimeout(timer);
    linked.release();
  }
}

function sentOf({ question, without }: Call): ChatRequest {
  const { messages, temperature, maxTokens, format } = question;
  return {
    messages,
    ...(without.has('temperature') ? {} : { temperature }),
    ...(without.has('max_tokens') ? {} : { maxTokens }),
    ...(without.has('response_format') ? {} : { format }),
  };
}

function answered(body: string): Completion {
  const answer = chatAnswerIn(body);
  if (answer === undefined) return failed('answered something that is no completion', true);
  const { usage } = parsedJson(body) as { readonly usage?: { prompt_tokens?: unknown; completion_tokens?: unknown } | null };
  const content = typeof answer.content === 'string' ? answer.content : '';
  return {
    kind: 'answered',
    content,
    usage: { promptTokens: countIn(usage?.prompt_tokens), completionTokens: countIn(usage?.completion_tokens) },
  };
}

function refused(response: Response, body: string, without: Call['without']): Completion {
  const { status, headers } = response;
  if (status >= 300 && status < 400) return failed(`answered ${status}: redirects are not followed`, false);
  if (status === 401 || status === 403) return failed(`answered ${status}: it does not accept the key`, false);
  if (status === 400 || status === 422) {
    const named = (Object.keys(OPTIONAL) as OptionalParameter[]).find((name) => !without.has(name) && OPTIONAL[name].test(body));
    if (named !== undefined) return { kind: 'unsupported', parameter: named };
  }
  const again = AGAIN.includes(status) || status >= 500;
  const said = printable(body).replaceAll('\n', ' ').slice(0, QUOTED);
  return { ...failed(`answered ${status}: ${said}`, again), afterMs: waitAsked(headers.get('retry-after')) };
}

function failed(why: string, again: boolean): Extract<Completion, { kind: 'failed' }> {
  return { kind: 'failed', why, again };
}

/** Undefined where it is too large; the rest is not read then. */
async function bodyOf(response: Response): Promise<string | undefined> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of response.body ?? []) {
    bytes += chunk.byteLength;
    // Leaving the loop cancels the body.
    if (bytes > REPLY_BYTES) return undefined;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

/** Seconds, or a date. */
function waitAsked(header: string | null): number | undefined {
  if (header === null || header.trim() === '') return undefined;
  const seconds = Number(header);
  const milliseconds = Number.isFinite(seconds) ? seconds * 1000 : Date.parse(header) - Date.now();
  return Number.isFinite(milliseconds) ? Math.max(0, milliseconds) : undefined;
}

function countIn(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) && value >= 0 ? value : 0;
}
