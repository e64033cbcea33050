/**
 * The caller's policy behind a gateway of its own, for one rollout. The gateway reads every dialect, knows retries and records each call for
 * the grader; the policy is asked for one streamed chat completion at a time, with the ids of rollout and conversation. What an agent asks in
 * Chat Completions goes on as the agent wrote it. Tokens are recorded on the policy's side, not here. A stream that is cut off is a failure,
 * never a short answer.
 */
import { sendThrough } from '../../core/context.ts';
import type { DefaultModelAnswer, DefaultModelRequest, ModelHandle, SeatOptions, SessionSpec } from '../../core/contracts.ts';
import type { ErrorCode } from '../../core/error-codes.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { defined, isObject, parsedJson } from '../../core/json.ts';
import type { Turn } from '../../core/types.ts';
import { chatAnswerIn, chatRequest, clientFields, refusalOf } from '../../gateway/chat-client.ts';
import { Gateway } from '../../gateway/gateway.ts';
import type { LiveSession } from '../../gateway/sessions.ts';
import { GATEWAY_LIMITS } from '../../gateway/wire-protocol.ts';
import { textWithin } from '../../http/message.ts';
import { Refusal } from '../../http/refusal.ts';

const POLICY_NAME = 'osmosis-rollout';

interface RemotePolicyParts {
  /** As received: with or without `/chat/completions`. */
  readonly url: string;
  readonly apiKey: string | null;
  readonly fetch: typeof globalThis.fetch;
}

export class RemotePolicy {
  readonly #parts: RemotePolicyParts;
  readonly #baseURL: string;
  readonly #session: LiveSession;

  constructor(parts: RemotePolicyParts, spec: SessionSpec) {
    this.#parts = parts;
    this.#baseURL = parts.url.replace(/\/+$/, '').replace(/\/chat\/completions$/, '');
    const model = { name: POLICY_NAME, generate: (request: DefaultModelRequest) => this.#ask(request) };
    this.#session = new Gateway({ modelName: POLICY_NAME, model, asAsked: true }).open(spec);
  }

  get turns(): readonly Turn[] {
    return this.#session.turns;
  }

  seal(): void {
    this.#session.seal();
  }

  readonly model = (role = 'default', options?: SeatOptions): ModelHandle => {
    if (options?.default !== undefined && options.trainable?.() === false) throw noDefaultModels(role);
    return this.#handle(this.#session.model(role));
  };

  /** At the caller's own address, for clients that are given nothing else; what goes through `fetch` goes through the gateway. */
  #handle(own: ModelHandle): ModelHandle {
    const address = { role: own.role, name: own.name, baseURL: this.#baseURL, apiKey: this.#parts.apiKey ?? '' };
    const policy = new URL(`${this.#baseURL}/`).href;
    const fetch: typeof globalThis.fetch = (input, init) => {
      const { href } = new URL(input instanceof Request ? input.url : input);
      return href.startsWith(policy) ? sendThrough(own, input, init) : this.#parts.fetch(input, init);
    };
    return { ...own, ...clientFields(address, fetch), thread: (name) => this.#handle(own.thread(name)) };
  }

  async #ask({ chat, thread = 'default', tell, sampling, ...asked }: DefaultModelRequest): Promise<DefaultModelAnswer> {
    const { signal } = asked;
    const server = { name: POLICY_NAME, baseURL: this.#baseURL, apiKey: this.#parts.apiKey ?? '' };
    const [url, init] = chatRequest(server, { ...asked, ...sampling });
    const { n: _, ...wanted } = chat ?? (JSON.parse(init.body as string) as Fields);
    const body = JSON.stringify({ ...wanted, stream: true, stream_options: { include_usage: true } });
    const ids = { 'x-rollout-id': this.#session.rolloutId, 'x-sample-id': thread };
    try {
      const response = await this.#parts.fetch(url, { ...init, headers: { ...init.headers, ...ids }, body });
      return await answerOf(response, tell);
    } catch (thrown) {
      signal.throwIfAborted();
      throw thrown instanceof Refusal
        ? thrown
        : failed('POLICY_UNREACHABLE', `the policy cannot be reached: ${messageOf(thrown)}`);
    }
  }
}

export function noDefaultModels(role: string): TrainyardError {
  const found = `role ${JSON.stringify(role)} is played by a default model, and on a rollout server every role is played by the controller's policy`;
  return new TrainyardError('WORKFLOW_INVALID', found, 'train the role, or let the workflow call that model by itself');
}

interface FailedCall {
  readonly response?: Pick<Response, 'status' | 'headers'>;
  /** As agents get it. */
  readonly wireCode?: unknown;
  readonly hint?: string | undefined;
}

const NO_RESPONSE = { status: 502, headers: new Headers() };
const PASSED_ON = ['retry-after', 'retry-after-ms', 'x-should-retry'];

/** The agent gets the policy's own status, and what it says about trying again. */
function failed(code: ErrorCode, message: string, { response = NO_RESPONSE, wireCode, hint }: FailedCall = {}): Refusal {
  const status = response.status < 400 ? 502 : response.status;
  const passedOn = [...response.headers].filter(([name]) => PASSED_ON.includes(name));
  // Clients try these again, and the gateway would tell them not to.
  const mayPass = status === 409 || status >= 500 ? { 'x-should-retry': 'true' } : {};
  const row = { status, code: typeof wireCode === 'string' ? wireCode : 'policy_failed' };
  return new Refusal(row, message, { code, hint, headers: { ...mayPass, ...Object.fromEntries(passedOn) } });
}

const CUT_OFF = 'a stream that ended before the answer did';
const garbled = (found: string): Refusal => failed('POLICY_GARBLED', `the policy answered with ${found}`);
const TOO_LONG = `more than ${GATEWAY_LIMITS.bodyBytes} characters`;

async function answerOf(response: Response, tell: DefaultModelRequest['tell']): Promise<DefaultModelAnswer> {
  if (!response.ok) {
    const text = (await textWithin(response, GATEWAY_LIMITS.bodyBytes)) ?? '';
    const { code, message, hint } = refusalOf(response.status, text);
    throw failed(code, message, {
      response,
      hint,
      wireCode: (parsedJson(text) as { error?: Fields } | undefined)?.error?.['code'],
    });
  }
  const isStream = response.headers.get('content-type')?.startsWith('text/event-stream');
  const text = isStream ? await summed(response, tell) : await textWithin(response, GATEWAY_LIMITS.bodyBytes);
  if (text === undefined) throw garbled(TOO_LONG);
  const answer = chatAnswerIn(text);
  if (answer === undefined) throw garbled(`something that is no completion: ${text.slice(0, 200)}`);
  const { content, reasoning, stopReason, usage } = answer;
  const toolCalls = answer.toolCalls.map(({ id, function: call }) => ({ id, ...call }));
  return { content, toolCalls, stopReason, ...defined({ reasoning, usage }) };
}

/** One chat completion, as JSON, from a stream of it. */
async function summed(response: Response, tell: DefaultModelRequest['tell']): Promise<string> {
  const sum = new StreamSum(tell);
  const decoder = new TextDecoder();
  const reader = response.body!.getReader();
  let rest = '';
  for (let size = 0; !sum.isEnded; ) {
    const { value, done } = await reader.read();
    const lines = (rest + decoder.decode(value, { stream: !done })).split('\n');
    rest = done ? '' : lines.pop()!;
    for (const line of lines) sum.take(line);
    if (done) break;
    size += value.length;
    if (size > GATEWAY_LIMITS.bodyBytes) throw garbled(TOO_LONG);
  }
  // Read to its end, the connection can be used again.
  void reader
    .read()
    .then(({ done }) => (done ? undefined : reader.cancel()))
    .catch(() => undefined);
  return sum.whole();
}

type Fields = Readonly<Record<string, unknown>>;
type CallPart = {
  readonly index: number;
  readonly id?: string;
  readonly function?: { readonly name?: string; readonly arguments?: string };
};

const list = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);

class StreamSum {
  isEnded = false;
  readonly #tell: DefaultModelRequest['tell'];
  readonly #calls: { id: string; type: 'function'; function: { name: string; arguments: string } }[] = [];
  #content: string | null = null;
  #reasoning = '';
  #finish: unknown;
  #usage: unknown;
  #isError = false;

  constructor(tell: DefaultModelRequest['tell']) {
    this.#tell = tell;
  }

  take(line: string): void {
    if (this.isEnded) return;
    if (/^event: ?error/.test(line)) this.#isError = true;
    if (!line.startsWith('data:')) return;
    const data = line.slice('data:'.length).trim();
    if (data === '[DONE]') {
      this.isEnded = true;
      return;
    }
    const event = parsedJson(data);
    if (!isObject(event)) throw garbled('an event that is no JSON');
    if (this.#isError || 'error' in event)
      throw failed('POLICY_REFUSED', `the policy answered ${JSON.stringify(event).slice(0, 500)}`);
    if (isObject(event['usage'])) this.#usage = event['usage'];
    for (const choice of list(event['choices']) as readonly Fields[]) if ((choice['index'] ?? 0) === 0) this.#add(choice);
  }

  #add(choice: Fields): void {
    this.#finish = choice['finish_reason'] ?? this.#finish;
    const delta = (choice['delta'] ?? choice['message'] ?? {}) as Fields;
    const { content, reasoning = delta['reasoning_content'] } = delta;
    if (typeof reasoning === 'string' && reasoning !== '') {
      this.#reasoning += reasoning;
      this.#tell?.({ kind: 'reasoning', text: reasoning });
    }
    if (typeof content === 'string') {
      this.#content = (this.#content ?? '') + content;
      if (content !== '') this.#tell?.({ kind: 'text', text: content });
    }
    for (const part of list(delta['tool_calls']) as readonly CallPart[]) {
      this.#calls[part.index] ??= { id: '', type: 'function', function: { name: '', arguments: '' } };
      const call = this.#calls[part.index]!;
      call.id ||= part.id ?? '';
      call.function.name += part.function?.name ?? '';
      call.function.arguments += part.function?.arguments ?? '';
    }
  }

  /** Throws if the stream ended before the answer did. */
  whole(): string {
    const hasSaid = this.#content !== null || this.#calls.length > 0;
    if (this.#finish === undefined && !(this.isEnded && hasSaid)) throw garbled(CUT_OFF);
    const message = { role: 'assistant', content: this.#content, reasoning: this.#reasoning || null, tool_calls: this.#calls };
    return JSON.stringify({ choices: [{ index: 0, finish_reason: this.#finish, message }], usage: this.#usage });
  }
}
