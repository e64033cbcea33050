/**
 * Anthropic's Messages API. Reading is strict where silence would corrupt training; see `Parameters`. Content is text, tool calls, tool
 * results and thinking; anything else is refused, because the policy cannot read it. A string equals one text block. An assistant's blocks
 * are one message, its texts joined as sampled. A user's tool results, and the texts between them, are separate messages in the given
 * order. Markers (`cache_control`, `citations`, `is_error`, `signature`) are ignored, because clients move them from turn to turn.
 */
import { z } from 'zod';
import { TrainyardError } from '../../core/errors.ts';
import { tokensOf } from '../../core/turns.ts';
import type { Json, Message, Tool, ToolCall, Turn } from '../../core/types.ts';
import type { Failure } from '../../http/refusal.ts';
import type { Piece } from '../../tokens/response-stream.ts';
import type { EventEncoder } from '../event-stream.ts';
import { gatewayFailure } from '../wire-protocol.ts';
import {
  type AnswerHead,
  assistantMessage,
  commonFields,
  type Dialect,
  type ForcedCall,
  forcedCall,
  formatChecker,
  ignoredBeside,
  ignoredIn,
  invalid,
  isEmpty,
  type ModelRequest,
  type Parameters,
  parsed,
  refusal,
  requestedSampling,
  serverSentEvent,
  stopTexts,
  tokenLimit,
  toolOf,
} from './dialect.ts';

export const messagesParameters: Parameters = {
  honoured: [
    'messages',
    'model',
    'system',
    'tools',
    'tool_choice',
    'temperature',
    'top_p',
    'top_k',
    'max_tokens',
    'stop_sequences',
    'stream',
    'output_format',
    'output_config',
  ],
  ignored: [
    'betas',
    'cache_control',
    'compaction',
    'container',
    'context_management',
    'diagnostics',
    'fallback_credit_token',
    'fallbacks',
    'inference_geo',
    'metadata',
    'service_tier',
    'speed',
    'thinking',
    'user_profile_id',
    'workspace_id',
  ],
  refused: { mcp_servers: isEmpty, thread: refuseThread },
};

const block = z.looseObject({ type: z.string() });
const content = z.union([z.string(), z.array(block)]);
const tool = z.object({
  type: z.string().nullish(),
  name: z.string().min(1).nullish(),
  description: z.string().nullish(),
  input_schema: z.json().nullish(),
  defer_loading: z.boolean().nullish(),
});
const toolChoice = z.object({ type: z.string(), name: z.string().nullish(), disable_parallel_tool_use: z.boolean().nullish() });
const format = z.object({ type: z.string(), schema: z.json().optional() });
const body = z.object({
  messages: z.array(z.object({ role: z.enum(['user', 'assistant', 'system']), content })).min(1),
  ...commonFields,
  system: content.nullish(),
  tools: z.array(tool).nullish(),
  tool_choice: toolChoice.nullish(),
  max_tokens: tokenLimit,
  stop_sequences: stopTexts.nullish(),
  output_format: format.nullish(),
  output_config: z.looseObject({ format: format.nullish() }).nullish(),
});
type Wire = z.infer<typeof body>;

export const messages: Dialect = {
  name: 'messages',
  read(raw) {
    // Checked first: a request that continues a thread may have no messages at all.
    refuseThread((raw as { thread?: unknown } | null)?.thread);
    const wire = parsed(body, raw);
    const ignored = ignoredIn(raw as object, messagesParameters);
    const { tools, leftOut } = toolsOf(wire);
    const stops = wire.stop_sequences ?? [];
    const request: ModelRequest = {
      messages: messagesOf(wire),
      tools,
      forced: forcedOf(wire, tools),
      requested: requestedSampling(wire, wire.max_tokens),
      count: 1,
      stopTexts: stops,
      stream: wire.stream ?? false,
      logprobs: false,
      ignored: [...ignored, ...leftOut, ...ignoredWithin(wire)],
      formatErrorOf: formatOf(wire),
    };
    const whole = ([turn]: readonly Turn[], head: AnswerHead): object => messageBody(turn!, head, stops);
    return { request, writer: { whole, events: (head) => messageEvents(head, stops) } };
  },
  failure: anthropicError,
};

/** Anthropic's client recognises these details: it repeats this request, and sends all later ones, without a thread. */
function refuseThread(thread: unknown): boolean {
  if (thread == null) return true;
  throw new TrainyardError('REQUEST_INVALID', 'thread: conversations are not kept here; send all messages', {
    param: 'thread',
    details: { error_code: 'thread_unsupported_request', unsupported: ['thread'] },
  });
}

/** The tools to show to the policy. `leftOut` names the others: those that Anthropic's servers run or define, and deferred ones. */
function toolsOf({ tools, tool_choice: choice }: Wire): { readonly tools: readonly Tool[]; readonly leftOut: readonly string[] } {
  const shown: Tool[] = [];
  const leftOut: string[] = [];
  for (const [i, { type, name, description, input_schema: parameters, defer_loading: deferred }] of (tools ?? []).entries()) {
    if ((type != null && type !== 'custom') || deferred) {
      leftOut.push(`tools:${name ?? type ?? i}`);
      continue;
    }
    if (name == null) throw invalid(`tools.${i}.name`, 'expected the name of the tool');
    if (parameters == null) throw invalid(`tools.${i}.input_schema`, 'expected a JSON Schema');
    shown.push(toolOf({ name, description, parameters }));
  }
  return { tools: choice?.type === 'none' ? [] : shown, leftOut };
}

function forcedOf({ tool_choice: choice }: Wire, tools: readonly Tool[]): ForcedCall | undefined {
  if (choice == null || choice.type === 'auto' || choice.type === 'none') return undefined;
  if (choice.type === 'any') return forcedCall(undefined, tools);
  if (choice.type === 'tool') return forcedCall(choice.name ?? null, tools);
  throw refusal('tool_choice', choice, 'use the type "auto", "none", "any" or "tool"');
}

function ignoredWithin({ tool_choice, output_config }: Wire): readonly string[] {
  const parallel = tool_choice?.disable_parallel_tool_use ? ['tool_choice.disable_parallel_tool_use'] : [];
  return [...parallel, ...ignoredBeside('output_config', output_config)];
}

function formatOf({ output_format, output_config }: Wire): ModelRequest['formatErrorOf'] {
  const param = output_format == null ? 'output_config.format' : 'output_format';
  const asked = output_format ?? output_config?.format;
  if (asked == null) return undefined;
  if (asked.type !== 'json_schema') throw refusal(param, asked, 'use the type "json_schema"');
  if (asked.schema === undefined) throw invalid(`${param}.schema`, 'expected a JSON Schema');
  return formatChecker(asked.schema, `${param}.schema`);
}

type Block = z.infer<typeof block>;
type Content = z.infer<typeof content>;

function messagesOf({ system, messages }: Wire): readonly Message[] {
  const last = messages.length - 1;
  if (messages[last]!.role === 'assistant') {
    const hint = 'an answer that was begun is not continued';
    throw invalid(`messages.${last}.role`, 'the conversation ends with the assistant', hint);
  }
  const instructions = system == null ? '' : textOf(system, 'system');
  return [
    ...(instructions === '' ? [] : [{ role: 'system' as const, content: instructions }]),
    ...messages.flatMap(({ role, content: given }, i) => {
      const at = `messages.${i}.content`;
      if (role === 'user') return userMessages(given, at);
      return role === 'assistant' ? [assistantOf(given, at)] : [{ role, content: textOf(given, at) }];
    }),
  ];
}

function userMessages(given: Content, at: string): readonly Message[] {
  const messages: Message[] = [];
  let texts: string[] = [];
  const endText = (): void => {
    if (texts.length > 0) messages.push({ role: 'user', content: texts.join('\n') });
    texts = [];
  };
  for (const [i, one] of blocksOf(given).entries()) {
    const place = `${at}.${i}`;
    if (one.type === 'text') texts.push(stringIn(one, 'text', place));
    else if (one.type === 'tool_result') {
      endText();
      messages.push(toolMessage(one, place));
    } else throw unreadable(one, place);
  }
  endText();
  return messages.length > 0 ? messages : [{ role: 'user', content: '' }];
}

function toolMessage(result: Block, at: string): Message {
  const given = content.nullish().safeParse(result.content);
  if (!given.success) throw invalid(`${at}.content`, 'expected a string or a list of blocks');
  return { role: 'tool', content: textOf(given.data ?? '', `${at}.content`), tool_call_id: stringIn(result, 'tool_use_id', at) };
}

function assistantOf(given: Content, at: string): Message {
  let text = '';
  let reasoning = '';
  const calls: ToolCall[] = [];
  for (const [i, one] of blocksOf(given).entries()) {
    const place = `${at}.${i}`;
    if (one.type === 'text') text += stringIn(one, 'text', place);
    else if (one.type === 'thinking') reasoning += stringIn(one, 'thinking', place);
    else if (one.type === 'tool_use') calls.push(toolCall(one, place));
    else throw unreadable(one, place);
  }
  return assistantMessage(text === '' && calls.length > 0 ? null : text, calls, reasoning);
}

function toolCall(use: Block, at: string): ToolCall {
  const { input = {} } = use;
  const said = { name: stringIn(use, 'name', at), arguments: JSON.stringify(input) };
  return { id: stringIn(use, 'id', at), type: 'function', function: said };
}

/** Text that was not sampled; each block is a line. */
function textOf(given: Content, at: string): string {
  if (typeof given === 'string') return given;
  return given
    .map((one, i) => {
      if (one.type !== 'text') throw unreadable(one, `${at}.${i}`);
      return stringIn(one, 'text', `${at}.${i}`);
    })
    .join('\n');
}

const blocksOf = (given: Content): readonly Block[] => (typeof given === 'string' ? [{ type: 'text', text: given }] : given);

function stringIn(one: Block, name: string, at: string): string {
  const value = one[name];
  if (typeof value === 'string') return value;
  throw invalid(`${at}.${name}`, `expected a string in a block of type ${JSON.stringify(one.type)}`);
}

function unreadable({ type }: Block, at: string): Error {
  return refusal(`${at}.type`, type, 'here the policy reads text, and tool calls and their results where they belong');
}

/** Clients send thinking back only if it is signed. The gateway never checks the signature. */
const SIGNATURE = 'trainyard';

export function messageBody(turn: Turn, head: AnswerHead, stopTexts: readonly string[]): object {
  const { content, reasoning, tool_calls: calls = [] } = turn.response;
  const blocks = [
    ...(reasoning ? [{ type: 'thinking', thinking: reasoning, signature: SIGNATURE }] : []),
    ...(content ? [{ type: 'text', text: content }] : []),
    ...calls.map(({ id, function: { name, arguments: given } }) => ({ type: 'tool_use', id, name, input: inputOf(given) })),
  ];
  return { ...messageHead(head), content: blocks, ...endOf(turn, head, stopTexts), usage: usageOf(tokensOf(turn)) };
}

const messageHead = ({ id, model }: AnswerHead): object => ({ id: `msg_${id}`, type: 'message', role: 'assistant', model });

function usageOf({ promptTokens, sampledTokens }: ReturnType<typeof tokensOf>): object {
  return {
    input_tokens: promptTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: 0,
    output_tokens: sampledTokens,
  };
}

/** Clients must run the calls that were made, even if a stop sequence ended the completion after them. */
function endOf(turn: Turn, head: AnswerHead, stopTexts: readonly string[]): object {
  if (turn.stopReason === 'length') return { stop_reason: 'max_tokens', stop_sequence: null };
  if ((turn.response.tool_calls ?? []).length > 0) return { stop_reason: 'tool_use', stop_sequence: null };
  const stop = firstIn(stopTexts.length === 0 || turn.model !== undefined ? '' : head.text(turn.sampledIds), stopTexts);
  return { stop_reason: stop === undefined ? 'end_turn' : 'stop_sequence', stop_sequence: stop ?? null };
}

function firstIn(text: string, stopTexts: readonly string[]): string | undefined {
  const endOf = (stop: string): number => text.indexOf(stop) + stop.length;
  return stopTexts.filter((stop) => text.includes(stop)).toSorted((a, b) => endOf(a) - endOf(b))[0];
}

/** The parsed arguments, so that the client sends back what was sampled. Arguments that are not JSON become a string. */
function inputOf(given: string): Json {
  try {
    return JSON.parse(given);
  } catch {
    return given;
  }
}

/**
 * `message_start`; start, deltas and stop of each block; `message_delta` with the stop reason; `message_stop`. A failure after the start is
 * an `error` event, which ends the stream. Text after a tool call is a separate block; read back, the texts join to the turn's content.
 */
export function messageEvents(head: AnswerHead, stopTexts: readonly string[]): EventEncoder {
  const blocks = new Blocks(head);
  return {
    start: () => {
      const beginning = { content: [], stop_reason: null, stop_sequence: null, usage: usageOf({ ...head, sampledTokens: 0 }) };
      return event('message_start', { message: { ...messageHead(head), ...beginning } });
    },
    pieces: (pieces) => pieces.map(({ piece }) => (piece.kind === 'tokens' ? '' : blocks.write(piece))).join(''),
    end: ([turn]) => {
      const usage = usageOf(tokensOf(turn!));
      return `${blocks.close()}${event('message_delta', { delta: endOf(turn!, head, stopTexts), usage })}${event('message_stop', {})}`;
    },
    failure: (thrown) => event('error', anthropicError(gatewayFailure(thrown))),
  };
}

class Blocks {
  readonly #head: AnswerHead;
  #index = -1;
  #open: 'thinking' | 'text' | undefined;

  constructor(head: AnswerHead) {
    this.#head = head;
  }

  write(piece: Piece): string {
    if (piece.kind === 'call') return this.#call(piece);
    const kind = piece.kind === 'reasoning' ? 'thinking' : 'text';
    const opening = this.#open === kind ? '' : this.close() + this.#start(EMPTY[kind]);
    this.#open = kind;
    return opening + this.#delta({ type: `${kind}_delta`, [kind]: piece.text });
  }

  close(): string {
    if (this.#open === undefined) return '';
    const signature = this.#open === 'thinking' ? this.#delta({ type: 'signature_delta', signature: SIGNATURE }) : '';
    this.#open = undefined;
    return signature + this.#stop();
  }

  #call({ index, call }: Extract<Piece, { kind: 'call' }>): string {
    const use = { type: 'tool_use', id: call.id ?? this.#head.toolCallId(0, index), name: call.name, input: {} };
    // The sampled text itself if it is JSON, so that streaming clients parse the same input as others.
    const given = inputOf(call.arguments);
    const json = given === call.arguments ? JSON.stringify(given) : call.arguments;
    return this.close() + this.#start(use) + this.#delta({ type: 'input_json_delta', partial_json: json }) + this.#stop();
  }

  #start(block: object): string {
    return event('content_block_start', { index: ++this.#index, content_block: block });
  }

  #delta(delta: object): string {
    return event('content_block_delta', { index: this.#index, delta });
  }

  #stop(): string {
    return event('content_block_stop', { index: this.#index });
  }
}

const EMPTY = {
  thinking: { type: 'thinking', thinking: '', signature: '' },
  text: { type: 'text', text: '' },
} as const;

function event(type: string, data: object): string {
  return serverSentEvent({ type, ...data }, type);
}

const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  529: 'overloaded_error',
};

/** Anthropic's error body. The type follows from the status. It carries our code, field and hint, or the failure's details. */
function anthropicError({ status, code, message, hint, param, details }: Failure): object {
  const type = TYPES[status] ?? (status >= 500 ? 'api_error' : 'invalid_request_error');
  // Agents recognise an overflow by these words.
  const said = code === 'context_length_exceeded' ? `prompt is too long: ${message}` : message;
  const whole = hint === undefined ? said : `${said} (${hint})`;
  const own = { code, param: param ?? null, ...(hint === undefined ? {} : { hint }) };
  return { type: 'error', error: { type, message: whole, ...(details === undefined ? own : { details }) } };
}
