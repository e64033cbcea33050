/**
 * The controller's policy as a model handle over HTTP, for one rollout. Every call carries the ids of its rollout and conversation, and its
 * messages are recorded for the grader. Tokens are recorded on the policy's side, not here. A controller of Osmosis only streams, so chat
 * calls always ask for a stream, and agents that asked for none get its sum. A stream that is cut off is a failure, never a short answer.
 */
import { linkSignals } from '../../core/async.ts';
import type { ModelHandle, SeatOptions } from '../../core/contracts.ts';
import { TrainyardError, tried } from '../../core/errors.ts';
import { defined, isObject, parsedJson } from '../../core/json.ts';
import type { Message, StopReason, ToolCall } from '../../core/types.ts';
import { httpModel } from '../../gateway/chat-client.ts';
import { DIALECTS } from '../../gateway/gateway.ts';
import { GATEWAY_LIMITS } from '../../gateway/wire-protocol.ts';

const POLICY_NAME = 'osmosis-rollout';
const HEADER_VALUE = /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/;

interface RemotePolicyParts {
  /** As received: with or without `/chat/completions`. */
  readonly url: string;
  readonly apiKey: string | null;
  readonly rolloutId: string;
  readonly fetch: typeof globalThis.fetch;
  readonly signal: AbortSignal;
}

export interface ThreadCall extends RecordedCall {
  readonly role: string;
  readonly thread: string;
}

export class RemotePolicy {
  readonly #parts: RemotePolicyParts;
  readonly #baseURL: string;
  readonly #calls: ThreadCall[] = [];
  readonly #end = new AbortController();

  constructor(parts: RemotePolicyParts) {
    this.#parts = parts;
    this.#baseURL = parts.url.replace(/\/+$/, '').replace(/\/chat\/completions$/, '');
  }

  /** Completed calls, in the order of their responses. */
  get calls(): readonly ThreadCall[] {
    return this.#calls;
  }

  /** Ends the rollout: refuses further calls with SESSION_SEALED; aborts calls in flight and does not record them. */
  seal(): void {
    this.#end.abort(new TrainyardError('SESSION_SEALED', `rollout ${this.#parts.rolloutId} has ended`));
  }

  readonly model = (role = 'default', options?: SeatOptions): ModelHandle => {
    if (options?.default !== undefined && options.trainable?.() === false) throw noDefaultModels(role);
    return this.#handle(role, role);
  };

  #handle(role: string, thread: string): ModelHandle {
    if (!HEADER_VALUE.test(thread) || thread.length > GATEWAY_LIMITS.sampleIdLength) {
      const found = `thread ${JSON.stringify(thread.slice(0, 100))} cannot be sent as x-sample-id`;
      throw new TrainyardError('REQUEST_INVALID', found, {
        hint: `give it a name of 1 to ${GATEWAY_LIMITS.sampleIdLength} printable ASCII characters`,
      });
    }
    const address = { role, name: POLICY_NAME, baseURL: this.#baseURL, apiKey: this.#parts.apiKey ?? '' };
    const model = httpModel(address, (own) => this.#fetchAs(role, own), thread);
    return { ...model, thread: (name) => this.#handle(role, name) };
  }

  #fetchAs(role: string, thread: string): typeof globalThis.fetch {
    const { origin } = new URL(this.#baseURL);
    const { rolloutId, fetch } = this.#parts;
    return async (input, init) => {
      const request = new Request(input, init);
      const url = new URL(request.url);
      if (url.origin !== origin) return await fetch(request);
      request.headers.set('x-rollout-id', rolloutId);
      request.headers.set('x-sample-id', thread);
      const route = request.method === 'POST' ? ROUTE.exec(url.pathname)?.[1] : undefined;
      const body = route === undefined ? '' : await request.clone().text();
      const { signal, release } = linkSignals(request.signal, this.#parts.signal, this.#end.signal);
      try {
        signal.throwIfAborted();
        const streaming = route === 'chat/completions' ? askingForStream(body) : undefined;
        const answer = await fetch(new Request(request, streaming === undefined ? { signal } : { signal, body: streaming }));
        if (route === undefined || !answer.ok || answer.body === null) return answer;
        const response = streaming !== undefined && isEvents(answer) ? await summed(answer) : answer;
        return copied(response, (text, isStream) => {
          const call = recordedCall(route, body, text, isStream);
          if (call !== undefined && !signal.aborted) this.#calls.push({ ...call, role, thread });
        });
      } catch (thrown) {
        release();
        throw thrown;
      }
    };
  }
}

/** The request's body with `stream: true`; undefined if it asks for a stream itself or is no JSON object. */
function askingForStream(body: string): string | undefined {
  const asked = parsedJson(body);
  if (!isObject(asked) || asked['stream'] === true) return undefined;
  return JSON.stringify({ ...asked, stream: true, stream_options: { include_usage: true } });
}

const isEvents = ({ headers }: Response): boolean => headers.get('content-type')?.startsWith('text/event-stream') ?? false;

/** One chat completion from a stream of it. Throws POLICY_REFUSED for an error in the stream, POLICY_GARBLED for a part of an answer. */
async function summed(response: Response): Promise<Response> {
  const decoder = new TextDecoder();
  let text = '';
  for await (const chunk of response.body!) {
    text += decoder.decode(chunk, { stream: true });
    if (text.length > GATEWAY_LIMITS.bodyBytes) throw garbled(`more than ${GATEWAY_LIMITS.bodyBytes} characters`);
  }
  const events = tried(() => eventsOf(text)) ?? [];
  const failed = /^event: ?error/m.test(text) ? (events.at(-1) ?? {}) : events.find((event) => 'error' in event);
  if (failed !== undefined)
    throw new TrainyardError('POLICY_REFUSED', `the policy answered ${JSON.stringify(failed).slice(0, 500)}`);
  const numbers = new Set(events.flatMap((event) => list(event['choices']).map((choice) => (choice as Fields)['index'] ?? 0)));
  const choices = [...numbers].map((index): Fields => ({ index, ...chatChoice(events, index) }));
  if (choices.length === 0 || choices.some((choice) => choice['finish_reason'] === undefined)) throw garbled(CUT_OFF);
  const usage = events.findLast((event) => isObject(event['usage']))?.['usage'];
  const { choices: _, ...about } = events[0]!;
  const whole = { ...about, object: 'chat.completion', choices, ...defined({ usage }) };
  return Response.json(whole, { status: response.status });
}

const CUT_OFF = 'a stream that ended before the answer did';
const garbled = (found: string): TrainyardError => new TrainyardError('POLICY_GARBLED', `the policy answered with ${found}`);

/** Returns the same response; calls `read` with its text once the client has received all of it. A stream without its end fails. */
function copied(response: Response, read: (text: string, isStream: boolean) => void): Response {
  const isStream = isEvents(response);
  const decoder = new TextDecoder();
  let text = '';
  let isRead = false;
  const end = (): void => {
    if (!isRead) read(text, isStream);
    isRead = true;
  };
  const copy = new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>({
    transform: (chunk, controller) => {
      if (text.length < GATEWAY_LIMITS.bodyBytes) text += decoder.decode(chunk, { stream: true });
      // Some clients stop reading at the last event.
      if (isStream && (LAST_EVENT.test(text.slice(-4096)) || LAST_EVENT.test(text))) end();
      controller.enqueue(chunk);
    },
    flush: () => {
      if (isStream && !isRead && !FINISHED.test(text)) throw garbled(CUT_OFF);
      end();
    },
  });
  const { status, statusText, headers } = response;
  return new Response(response.body!.pipeThrough(copy), { status, statusText, headers });
}

export function noDefaultModels(role: string): TrainyardError {
  const found = `role ${JSON.stringify(role)} is played by a default model, and on a rollout server every role is played by the controller's policy`;
  return new TrainyardError('WORKFLOW_INVALID', found, { hint: 'train the role, or let the workflow call that model by itself' });
}

// Records a call from its request and its response (one body or events) in each API dialect. A response is parsed by appending it to its
// own request, as the agent will do in its next call, and letting the gateway's reader parse the result.

interface RecordedCall {
  readonly messages: readonly Message[];
  readonly response: Message;
  readonly stopReason: StopReason;
}

type Fields = Readonly<Record<string, unknown>>;

interface DialectReader {
  /** The request's conversation fields, with `entries` appended. */
  conversation(request: Fields, entries: readonly unknown[]): Fields;
  /** The response as the client will send it back, and why it ended. */
  reply(body: Fields): { readonly entries: readonly unknown[]; readonly reason: unknown };
  /** Assembles the events of a stream into one body. */
  assembled(events: readonly Fields[]): Fields;
}

const ROUTE = /\/(chat\/completions|responses|messages)$/;
/** The last event in each dialect. Model text cannot match: inside JSON it starts no line, and its quotes are escaped. */
const LAST_EVENT = /(?<=\n)data: ?\[DONE\]|"type": ?"(?:response\.(?:completed|incomplete)|message_stop)"/;
const FINISHED = /"finish_reason": ?"/;
const CUT_SHORT: readonly unknown[] = ['length', 'max_tokens', 'incomplete'];

/** Undefined if a text cannot be parsed in the route's dialect. */
function recordedCall(route: string, request: string, reply: string, isStream: boolean): RecordedCall | undefined {
  try {
    const reader = READERS[route]!;
    const asked = JSON.parse(request) as Fields;
    const { entries, reason } = reader.reply(isStream ? reader.assembled(eventsOf(reply)) : (JSON.parse(reply) as Fields));
    const before = messagesIn(route, reader.conversation(asked, []));
    const whole = messagesIn(route, reader.conversation(asked, entries));
    const response = whole.findLast(({ role }) => role === 'assistant');
    if (response === undefined || whole.length <= before.length) return undefined;
    return { messages: before, response, stopReason: CUT_SHORT.includes(reason) ? 'length' : 'stop' };
  } catch {
    return undefined;
  }
}

/** Passes only the conversation, because it is up to the policy to judge parameters that the gateway would refuse. */
function messagesIn(route: string, conversation: Fields): readonly Message[] {
  const body = defined({ model: 'policy', ...conversation });
  return DIALECTS[route]!.read(body, {}).request.messages;
}

const READERS: Readonly<Record<string, DialectReader>> = {
  'chat/completions': {
    conversation: ({ messages }, entries) => ({ messages: [...list(messages), ...entries] }),
    reply: ({ choices }) => {
      const [choice] = list(choices) as readonly Fields[];
      return { entries: [choice?.['message']], reason: choice?.['finish_reason'] };
    },
    assembled: (events) => ({ choices: [chatChoice(events, 0)] }),
  },
  messages: {
    conversation: ({ messages, system }, entries) => ({ messages: [...list(messages), ...entries], system, max_tokens: 1 }),
    // This dialect does not allow the assistant's message to be the last.
    reply: ({ content, stop_reason: reason }) => ({
      entries: [
        { role: 'assistant', content },
        { role: 'user', content: '' },
      ],
      reason,
    }),
    assembled: anthropicMessage,
  },
  responses: {
    conversation: ({ input, instructions }, entries) => {
      const before = typeof input === 'string' ? [{ role: 'user', content: input }] : list(input);
      return { input: [...before, ...entries], instructions };
    },
    reply: ({ output, status: reason }) => ({ entries: list(output), reason }),
    assembled: (events) => (events.at(-1)?.['response'] ?? {}) as Fields,
  },
};

const list = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);

function eventsOf(text: string): readonly Fields[] {
  const data = text.split('\n').filter((line) => line.startsWith('data:') && !/^data: ?\[DONE\]/.test(line));
  return data.map((line) => JSON.parse(line.slice(5)) as Fields);
}

type ToolCallPart = { readonly index: number; readonly id?: string; readonly function?: Partial<ToolCall['function']> };

function chatChoice(events: readonly Fields[], index: unknown): Fields {
  let content: string | null = null;
  let reasoning = '';
  let finish: unknown;
  const logprobs: unknown[] = [];
  const calls: { id: string; type: 'function'; function: { name: string; arguments: string } }[] = [];
  for (const choice of events.flatMap((event) => list(event['choices']) as readonly Fields[])) {
    if ((choice['index'] ?? 0) !== index) continue;
    finish = choice['finish_reason'] ?? finish;
    const delta = (choice['delta'] ?? choice['message'] ?? {}) as Fields;
    logprobs.push(...list((choice['logprobs'] as Fields | null | undefined)?.['content']));
    if (typeof delta['content'] === 'string') content = (content ?? '') + delta['content'];
    const thought = delta['reasoning'] ?? delta['reasoning_content'];
    if (typeof thought === 'string') reasoning += thought;
    for (const part of list(delta['tool_calls']) as readonly ToolCallPart[]) {
      calls[part.index] ??= { id: '', type: 'function', function: { name: '', arguments: '' } };
      const call = calls[part.index]!;
      call.id ||= part.id ?? '';
      call.function.name += part.function?.name ?? '';
      call.function.arguments += part.function?.arguments ?? '';
    }
  }
  const more = defined({ reasoning: reasoning || undefined, tool_calls: calls.length === 0 ? undefined : calls });
  const scored = logprobs.length === 0 ? undefined : { content: logprobs };
  return { message: { role: 'assistant', content, ...more }, finish_reason: finish, ...defined({ logprobs: scored }) };
}

function anthropicMessage(events: readonly Fields[]): Fields {
  const content: Record<string, unknown>[] = [];
  let reason: unknown;
  for (const event of events) {
    if (event['type'] === 'content_block_start') content[event['index'] as number] = { ...(event['content_block'] as Fields) };
    const delta = (event['delta'] ?? {}) as Fields;
    if (event['type'] === 'message_delta') reason = delta['stop_reason'];
    const block = event['type'] === 'content_block_delta' ? content[event['index'] as number] : undefined;
    if (block === undefined) continue;
    for (const [name, part] of Object.entries(delta)) {
      if (name !== 'type') block[name] = `${(block[name] as string | undefined) ?? ''}${part as string}`;
    }
  }
  const blocks = content.map(({ partial_json: json, ...block }) =>
    json === undefined ? block : { ...block, input: JSON.parse(String(json)) as unknown },
  );
  return { content: blocks, stop_reason: reason };
}
