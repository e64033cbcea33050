/**
 * Reads a request to `generate` with the code and checks of a client's request, into the same `ModelRequest`. Everything is copied at the
 * time of the call, so later changes by the caller reach no turn. Errors use the caller's parameter names. Each call repeats the whole
 * conversation, so messages in the usual form are copied without a round trip through JSON, and parameters equal to the last call's are not
 * read again. Without this, reading took an eighth of a rollout's time.
 */
import type { GenerateRequest } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { defined, isPlain } from '../core/json.ts';
import type { Message, ToolCall } from '../core/types.ts';
import { parseJson } from '../http/message.ts';
import { areUsual, chat, readWithoutMessages, toMessage } from './dialects/chat.ts';
import { admitted, invalid, type ModelRequest } from './dialects/dialect.ts';
import { charactersIn } from './prompt.ts';
import type { LiveSession } from './sessions.ts';
import { GATEWAY_LIMITS } from './wire-protocol.ts';

/** Our parameter names → those of Chat Completions. */
const NAMES: Readonly<Record<string, string>> = {
  messages: 'messages',
  tools: 'tools',
  tool: 'tool_choice',
  temperature: 'temperature',
  topP: 'top_p',
  topK: 'top_k',
  maxTokens: 'max_tokens',
  stop: 'stop',
  format: 'response_format',
};
const WIRE_NAMES = Object.entries(NAMES);
const OTHERS = ['promptIds', 'signal'];
const NUMBERS = ['temperature', 'topP', 'topK', 'maxTokens'] as const;

interface ReadRequest {
  readonly request: ModelRequest;
  /** To be given back with the next call. Absent if they were not read apart from the messages. */
  readonly parameters?: LiveSession['parameters'];
  /** Approximately what a client would have sent. */
  readonly bytes: number;
}

/** `known`: what the last call gave. Throws REQUEST_INVALID naming the bad parameter. */
export function readRequest(given: GenerateRequest, known?: LiveSession['parameters']): ReadRequest {
  checkNames(given);
  const { promptIds, messages } = given;
  if (promptIds !== undefined && messages !== undefined) {
    throw invalid('promptIds', 'given together with `messages`', 'give one of them');
  }
  const wire = wireOf(given);
  try {
    const read = promptIds === undefined ? readMessages(wire, known) : readIds(wire, promptIds);
    return { ...read, request: admitted(read.request) };
  } catch (thrown) {
    throw inOurNames(thrown);
  }
}

function readIds(wire: Wire, promptIds: ArrayLike<number>): ReadRequest {
  const text = textOf(wire);
  const request = { messages: [], promptIds: idsOf(promptIds), ...readWithoutMessages(parseJson(text, GATEWAY_LIMITS)) };
  return { request, bytes: text.length + 4 * promptIds.length };
}

function readMessages(wire: Wire, known: LiveSession['parameters']): ReadRequest {
  const { messages } = wire;
  const usual = areUsual(messages) && messages.every(isPlain) ? messages : undefined;
  const text = textOf(usual ? { ...wire, messages: undefined } : wire);
  if (usual === undefined) return { request: chat.read(parseJson(text, GATEWAY_LIMITS), {}).request, bytes: text.length };
  const parameters = known?.text === text ? known : { text, read: readWithoutMessages(parseJson(text, GATEWAY_LIMITS)) };
  const request = { messages: usual.map((message, i) => withOwnCalls(toMessage(message, i))), ...parameters.read };
  return { request, parameters, bytes: request.messages.reduce((sum, one) => sum + charactersIn(one), text.length) };
}

const ownCall = (call: ToolCall): ToolCall => ({ ...call, function: { ...call.function } });

/** The dialect passes calls in their usual form through uncopied, and here they still belong to the caller. */
export const withOwnCalls = (message: Message): Message =>
  message.tool_calls === undefined ? message : { ...message, tool_calls: message.tool_calls.map(ownCall) };

function checkNames(given: GenerateRequest): void {
  if (typeof given !== 'object' || given === null) {
    throw invalid('request', `expected an object, found ${given === null ? 'null' : typeof given}`);
  }
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || Object.hasOwn(NAMES, name) || OTHERS.includes(name)) continue;
    throw invalid(name.slice(0, 80), 'no such parameter', `there are ${[...Object.keys(NAMES), ...OTHERS].join(', ')}`);
  }
  const { signal, tool, format } = given;
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw invalid('signal', 'expected an AbortSignal');
  if (format !== undefined && (typeof format !== 'object' || format === null)) throw invalid('format', 'expected { schema }');
  if (tool !== undefined && tool !== true && typeof tool !== 'string')
    throw invalid('tool', 'expected the name of a tool, or true for any');
  for (const name of NUMBERS) {
    // JSON would turn it into null, which counts as absent.
    if (typeof given[name] === 'number' && !Number.isFinite(given[name])) throw invalid(name, 'expected a finite number');
  }
}

type Wire = Readonly<Record<string, unknown>>;

function wireOf(given: GenerateRequest): Wire {
  const { tool, format } = given;
  const wire: Record<string, unknown> = {};
  for (const [name, theirs] of WIRE_NAMES) wire[theirs] = given[name as keyof GenerateRequest];
  const json = format?.schema === undefined ? { type: 'json_object' } : { type: 'json_schema', json_schema: format };
  wire['tool_choice'] = tool === true ? 'required' : tool && { type: 'function', function: { name: tool } };
  wire['response_format'] = format && json;
  return wire;
}

function textOf(wire: object): string {
  try {
    return JSON.stringify(wire);
  } catch (cause) {
    throw new TrainyardError('REQUEST_INVALID', `the request cannot be written as JSON: ${messageOf(cause)}`, { cause });
  }
}

function idsOf(given: ArrayLike<number>): Int32Array {
  const expected = 'expected a list of token ids';
  if (!Array.isArray(given) && !ArrayBuffer.isView(given)) throw invalid('promptIds', expected);
  if (!(given.length > 0)) throw invalid('promptIds', `${expected}, found an empty one`);
  const most = GATEWAY_LIMITS.bodyBytes / 4;
  if (given.length > most) throw invalid('promptIds', `${given.length} ids; at most ${most} are read`);
  const ids = new Int32Array(given.length);
  for (let i = 0; i < ids.length; i++) {
    const id: unknown = given[i];
    // Truncation to 32 bits would turn it into another id.
    if (typeof id !== 'number' || id !== (id | 0))
      throw invalid(`promptIds.${i}`, `expected a token id, found ${String(id).slice(0, 80)}`);
    ids[i] = id;
  }
  return ids;
}

/** Translates an error about a Chat Completions parameter to our name for it. */
export function inOurNames(thrown: unknown): unknown {
  if (!(thrown instanceof TrainyardError) || thrown.code !== 'REQUEST_INVALID' || thrown.param === undefined) return thrown;
  const [first = '', ...rest] = thrown.param.split('.');
  const ours = Object.keys(NAMES).find((name) => NAMES[name] === first);
  if (ours === undefined || ours === first) return thrown;
  const param = [ours, ...rest].join('.');
  const { hint, cause } = thrown;
  const message = thrown.message.replace(thrown.param, param);
  return new TrainyardError('REQUEST_INVALID', message, { param, cause, ...defined({ hint }) });
}
