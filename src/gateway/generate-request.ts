/**
 * `generate`'s request, read as a client's would be: the same checks by the same code, into the same `ModelRequest`. Everything is copied at the
 * moment of the call, so later changes by the caller reach no turn. Mistakes are told in the names that the caller used.
 *
 * A conversation repeats with each call all that was said before. The message cache keeps what its last call said: messages that are repeated
 * to the letter are not written as JSON, read and checked again, and stay the same objects in every turn. It is only a short cut: where there is
 * any doubt the request is read whole, and that finds what is wrong with it. Without the cache, reading cost an eighth of a rollout.
 */
import type { GenerateRequest } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { defined, sizeOfJson } from '../core/json.ts';
import type { Json, Message, Tool } from '../core/types.ts';
import { parseJson } from '../http/message.ts';
import { chat, readWithoutMessages } from './dialects/chat.ts';
import { checkSize, invalid, type ModelRequest } from './dialects/dialect.ts';
import { GATEWAY_LIMITS } from './wire-protocol.ts';

/** Our names, and those of Chat Completions. */
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

export interface ReadRequest {
  readonly request: ModelRequest;
  /** As many as a client would have sent. */
  readonly bytes: number;
  /** For the next call of the same conversation. */
  readonly cache?: MessageCache;
}

/** `cache`: of the last call of its conversation. Throws REQUEST_INVALID with the name of what is wrong. */
export function readRequest(given: GenerateRequest, session: object, cache?: MessageCache): ReadRequest {
  checkNames(given);
  const { promptIds, messages } = given;
  if (promptIds !== undefined && messages !== undefined) {
    throw invalid('promptIds', 'given together with `messages`', 'give one of them');
  }
  const wire = wireOf(given);
  const continued = cache && readNew(wire, session, cache);
  if (continued !== undefined) return continued;
  const text = textOf(wire);
  const raw = parseJson(text, GATEWAY_LIMITS);
  const bytes = Buffer.byteLength(text);
  try {
    if (promptIds !== undefined) {
      const request = { messages: [], promptIds: idsOf(promptIds), ...readWithoutMessages(raw) };
      checkSize(request);
      return { request, bytes: bytes + 4 * promptIds.length };
    }
    const { request } = chat.read(raw, session);
    checkSize(request);
    return { request, bytes, cache: new MessageCache(request.messages, request.tools) };
  } catch (thrown) {
    throw inOurNames(thrown);
  }
}

/** The same request read from what is new in it; undefined where it does not simply go on, or something is wrong. */
function readNew(wire: Wire, session: object, cache: MessageCache): ReadRequest | undefined {
  const { messages, tools } = wire;
  if (!cache.isPrefixOf(messages, tools)) return undefined;
  try {
    const added = textOf(messages.slice(cache.messages.length));
    const rest = textOf({ ...wire, messages: undefined, tools: cache.tools.length === 0 ? tools : undefined });
    const text = `{"messages":${added}${rest === '{}' ? '}' : `,${rest.slice(1)}`}`;
    const raw = parseJson(text, GATEWAY_LIMITS) as Wire;
    const before = cache.size;
    const values = before.values + sizeOfJson(text).values;
    if (values > GATEWAY_LIMITS.values) return undefined;
    const { request: read } = chat.read(cache.tools.length === 0 ? raw : { ...raw, tools: cache.tools }, session);
    const request = { ...read, messages: [...cache.messages, ...read.messages], tools: cache.tools };
    checkSize(request);
    // Appended to the cached list, the added one gives a comma for its opening bracket, and nothing for its closing one.
    const size = { bytes: before.bytes + Buffer.byteLength(added) - 1, values };
    const next = new MessageCache(request.messages, request.tools, size);
    return { request, bytes: before.bytes + Buffer.byteLength(text), cache: next };
  } catch {
    return undefined;
  }
}

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
    // As JSON it would be null, and so as good as absent.
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
    // 32 bits would make another id of it.
    if (typeof id !== 'number' || id !== (id | 0))
      throw invalid(`promptIds.${i}`, `expected a token id, found ${String(id).slice(0, 80)}`);
    ids[i] = id;
  }
  return ids;
}

/** An error about a parameter of Chat Completions, in our name for it. */
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

// ── the message cache ────────────────────────────────────────────────────────────────────────────────────────────────────

/** Of JSON text. */
interface TextSize {
  readonly bytes: number;
  readonly values: number;
}

export class MessageCache {
  /** As they were read. */
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
  #size: TextSize | undefined;

  constructor(messages: readonly Message[], tools: readonly Tool[], size?: TextSize) {
    this.messages = messages;
    this.tools = tools;
    this.#size = size;
  }

  /** By how much these messages and tools make the text of a request longer that has other messages, too. */
  get size(): TextSize {
    const tools = this.tools.length === 0 ? [] : [`,"tools":${JSON.stringify(this.tools)}`];
    // Without its opening bracket, since the request's own list has one; the closing one stands for the comma between the two lists.
    this.#size ??= sizeOf(JSON.stringify(this.messages).slice(1), ...tools);
    return this.#size;
  }

  /** Whether the given messages are the cached ones and then others, with the same tools. */
  isPrefixOf(messages: unknown, tools: unknown): messages is readonly unknown[] {
    if (!Array.isArray(messages) || messages.length <= this.messages.length || 'toJSON' in messages) return false;
    if (!isWrittenAs(tools ?? [], this.tools as unknown as Json)) return false;
    return this.messages.every((message, i) => isWrittenAs(messages[i], message as unknown as Json));
  }
}

function sizeOf(...texts: readonly string[]): TextSize {
  const sizes = texts.map((text) => ({ bytes: Buffer.byteLength(text), values: sizeOfJson(text).values }));
  return sizes.reduce((sum, { bytes, values }) => ({ bytes: sum.bytes + bytes, values: sum.values + values }));
}

/**
 * Whether `JSON.stringify` writes the value as this JSON, in whatever order. False for the very same object: what the caller may still change
 * must be copied.
 */
export function isWrittenAs(value: unknown, json: Json): boolean {
  if (typeof json !== 'object' || json === null) return value === json;
  if (typeof value !== 'object' || value === null || value === json || 'toJSON' in value) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  if (Array.isArray(json)) {
    if (prototype !== Array.prototype || (value as readonly unknown[]).length !== json.length) return false;
    return json.every((item, i) => isWrittenAs((value as readonly unknown[])[i], item));
  }
  if (prototype !== Object.prototype) return false;
  const given = value as Readonly<Record<string, unknown>>;
  const known = json as Readonly<Record<string, Json>>;
  let same = 0;
  for (const key of Object.keys(value)) {
    if (given[key] === undefined) continue;
    if (!Object.hasOwn(known, key) || !isWrittenAs(given[key], known[key]!)) return false;
    same++;
  }
  return same === Object.keys(known).length;
}
