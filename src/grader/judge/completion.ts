/**
 * One call of a judge's server over Chat Completions: bounded in time and size, redirects refused. What can go wrong is a value.
 *
 * The key goes into one header of one request and nowhere else: what a server says about a wrong key is not repeated, and no message
 * leaves here with the key in it.
 */
import {
  type ChatQuestion,
  type ChatServer,
  chatAnswerIn,
  chatRequest,
  parsedJson,
  whyUnreachable,
  withoutKey,
} from '../../core/chat-completions.ts';
import { printable } from '../../core/describe.ts';
import { linkSignals } from '../../core/linked-signal.ts';

const REPLY_BYTES = 1024 * 1024;
const QUOTED = 200;
const AGAIN = [408, 409, 425, 429];

export interface Usage {
  readonly promptTokens: number;
  readonly completionTokens: number;
}

export type Completion =
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

export interface Call {
  readonly server: ChatServer;
  readonly question: Required<Pick<ChatQuestion, 'messages' | 'temperature' | 'maxTokens' | 'format'>>;
  /** Not to be sent. */
  readonly without: ReadonlySet<OptionalParameter>;
  readonly timeoutMs: number;
}

/** Throws only the signal's reason. */
export async function complete(call: Call, signal: AbortSignal): Promise<Completion> {
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

function sentOf({ question, without }: Call): ChatQuestion {
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
