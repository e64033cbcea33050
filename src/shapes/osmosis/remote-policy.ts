/**
 * The caller's policy behind a gateway of its own, for one rollout. The gateway reads every dialect, knows retries and records each call for
 * the grader; the policy is asked for one streamed chat completion at a time, with the ids of rollout and conversation. What an agent asks in
 * Chat Completions goes on as the agent wrote it. Tokens are recorded on the policy's side, not here. A stream that is cut off is a failure,
 * never a short answer.
 */
import { z } from 'zod';
import { sendThrough } from '../../core/context.ts';
import type { DefaultModelAnswer, DefaultModelRequest, ModelHandle, SeatOptions, SessionSpec } from '../../core/contracts.ts';
import type { ErrorCode } from '../../core/error-codes.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { defined, parsedJson } from '../../core/json.ts';
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
  readonly calls: LiveSession;

  constructor(parts: RemotePolicyParts, spec: SessionSpec) {
    this.#parts = parts;
    this.#baseURL = parts.url.replace(/\/+$/, '').replace(/\/chat\/completions$/, '');
    const model = { name: POLICY_NAME, generate: (request: DefaultModelRequest) => this.#ask(request) };
    this.calls = new Gateway({ modelName: POLICY_NAME, model, asAsked: true }).open(spec);
  }

  seal(): void {
    this.calls.seal();
  }

  readonly model = (role = 'default', options?: SeatOptions): ModelHandle => {
    if (options?.default !== undefined && options.trainable?.() === false) throw noDefaultModels(role);
    return this.#handle(this.calls.model(role));
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
    const ids = { 'x-rollout-id': this.calls.rolloutId, 'x-sample-id': thread };
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
  if (!answer || answer.withheld) throw garbled(`something that is no whole completion: ${text.slice(0, 200)}`);
  const { content, reasoning, stopReason, usage } = answer;
  const toolCalls = answer.toolCalls.map(({ id, function: call }) => ({ id, ...call }));
  return { content, toolCalls, stopReason, ...defined({ reasoning, usage }) };
}

type Fields = Readonly<Record<string, unknown>>;

const TEXT = z.string().nullish();
const CALL = z.object({
  // Bounded, because it is the length of the list that is made.
  index: z.int().min(0).max(999),
  id: TEXT,
  function: z.object({ name: TEXT, arguments: TEXT }).nullish(),
});
const DELTA = z.object({
  content: TEXT,
  refusal: TEXT,
  reasoning: TEXT,
  reasoning_content: TEXT,
  tool_calls: z.array(CALL).nullish(),
});
const CHOICE = z.object({ index: z.int().nullish(), finish_reason: TEXT, delta: DELTA });
const EVENT = z.object({ choices: z.array(CHOICE).nullish(), usage: z.unknown().optional(), error: z.unknown().optional() });

/** One chat completion, as JSON, from a stream of it. Throws if the stream ended before the answer did. */
async function summed(response: Response, tell: DefaultModelRequest['tell']): Promise<string> {
  const said = { reasoning: '', text: '' };
  const calls: { id: string; function: { name: string; arguments: string } }[] = [];
  let finish: unknown;
  let usage: unknown;
  const hear = (kind: keyof typeof said, text: z.infer<typeof TEXT>): void => {
    if (!text) return;
    said[kind] += text;
    tell?.({ kind, text });
  };
  for await (const event of eventsIn(response)) {
    usage = event.usage ?? usage;
    for (const { delta, ...choice } of event.choices ?? []) {
      if (choice.index) continue;
      finish = choice.finish_reason || finish;
      hear('reasoning', delta.reasoning ?? delta.reasoning_content);
      hear('text', delta.content || delta.refusal);
      for (const { index, id, function: part } of delta.tool_calls ?? []) {
        calls[index] ??= { id: '', function: { name: '', arguments: '' } };
        const call = calls[index];
        call.id ||= id ?? '';
        call.function.name += part?.name ?? '';
        call.function.arguments += part?.arguments ?? '';
      }
    }
  }
  if (!finish) throw garbled(CUT_OFF);
  const message = { content: said.text, reasoning: said.reasoning, tool_calls: calls };
  return JSON.stringify({ choices: [{ finish_reason: finish, message }], usage });
}

/** Up to the stream's end mark. */
async function* eventsIn(response: Response): AsyncGenerator<z.infer<typeof EVENT>> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let isError = false;
  for (let size = 0; ; ) {
    const { value = '\n', done } = await reader.read();
    size += value.length;
    if (size > GATEWAY_LIMITS.bodyBytes) throw garbled(TOO_LONG);
    const lines = (rest + value).split('\n');
    rest = lines.pop()!;
    for (const line of lines) {
      isError ||= /^event: ?error/.test(line);
      if (!line.startsWith('data:')) continue;
      const text = line.slice('data:'.length).trim();
      if (text === '[DONE]') {
        // Read to its end, the connection can be used again.
        void reader
          .read()
          .then((next) => (next.done ? undefined : reader.cancel()))
          .catch(() => undefined);
        return;
      }
      const { data: event } = EVENT.safeParse(parsedJson(text));
      if (!event) throw garbled(`an event of another form: ${text.slice(0, 200)}`);
      if (isError || event.error) throw failed('POLICY_REFUSED', `the policy answered ${text.slice(0, 500)}`);
      yield event;
    }
    if (done) return;
  }
}
