/**
 * `generate`'s request, read as a client's would be: the same checks by the same code, the same question. What is asked is taken as it is
 * at the moment of the call: what the caller changes later, no turn has.
 *
 * Mistakes are told in the names that the caller used.
 */
import type { GenerateRequest } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { sizeOfJson } from '../core/json.ts';
import type { Json, Message, Tool } from '../core/types.ts';
import { parseJson } from '../http/message.ts';
import { chat, readWithoutMessages } from './dialects/chat.ts';
import { checkSize, type DialectMemory, invalid, type Question } from './dialects/dialect.ts';
import { GATEWAY_LIMITS } from './wire-protocol.ts';

/** Our names, and what a client calls them. */
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
  readonly question: Question;
  /** As many as a client would have sent. */
  readonly bytes: number;
  /** For the next question of the same conversation. */
  readonly heard?: Heard;
}

/** `heard`: what its conversation asked last. Throws REQUEST_INVALID with the name of what is wrong. */
export function readRequest(request: GenerateRequest, memory: DialectMemory, heard?: Heard): ReadRequest {
  checkNames(request);
  const { promptIds, messages } = request;
  if (promptIds !== undefined && messages !== undefined) {
    throw invalid('promptIds', 'given together with `messages`', 'give one of them');
  }
  const wire = wireOf(request);
  const goesOn = heard && readNew(wire, memory, heard);
  if (goesOn !== undefined) return goesOn;
  const text = textOf(wire);
  const raw = parseJson(text, GATEWAY_LIMITS);
  const bytes = Buffer.byteLength(text);
  return inOurWords(() => {
    if (promptIds !== undefined) {
      const question = { messages: [], promptIds: idsOf(promptIds), ...readWithoutMessages(raw) };
      checkSize(question);
      return { question, bytes: bytes + 4 * promptIds.length };
    }
    const { question } = chat.read(raw, memory);
    checkSize(question);
    return { question, bytes, heard: new Heard(question.messages, question.tools) };
  });
}

/**
 * The same question from what is new in it; undefined where it does not simply go on, and where something is wrong, which is then found
 * and named by reading all of it. Reading all of it every time cost an eighth of a rollout.
 */
function readNew(wire: Wire, memory: DialectMemory, heard: Heard): ReadRequest | undefined {
  const { messages, tools } = wire;
  if (!heard.isRepeatedBy(messages, tools)) return undefined;
  try {
    const added = textOf(messages.slice(heard.messages.length));
    const rest = textOf({ ...wire, messages: undefined, tools: heard.tools.length === 0 ? tools : undefined });
    const text = `{"messages":${added}${rest === '{}' ? '}' : `,${rest.slice(1)}`}`;
    const raw = parseJson(text, GATEWAY_LIMITS) as Wire;
    const before = heard.size;
    const values = before.values + sizeOfJson(text).values;
    if (values > GATEWAY_LIMITS.values) return undefined;
    const { question: read } = chat.read(heard.tools.length === 0 ? raw : { ...raw, tools: heard.tools }, memory);
    const question = { ...read, messages: [...heard.messages, ...read.messages], tools: heard.tools };
    checkSize(question);
    // One bracket is a comma in the whole list, the other is not there.
    const next = new Heard(question.messages, question.tools, { bytes: before.bytes + Buffer.byteLength(added) - 1, values });
    return { question, bytes: before.bytes + Buffer.byteLength(text), heard: next };
  } catch {
    return undefined;
  }
}

function checkNames(request: GenerateRequest): void {
  if (typeof request !== 'object' || request === null) {
    throw invalid('request', `expected an object, found ${request === null ? 'null' : typeof request}`);
  }
  for (const [name, value] of Object.entries(request)) {
    if (value === undefined || Object.hasOwn(NAMES, name) || OTHERS.includes(name)) continue;
    throw invalid(name.slice(0, 80), 'no such parameter', `there are ${[...Object.keys(NAMES), ...OTHERS].join(', ')}`);
  }
  const { signal, tool, format } = request;
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw invalid('signal', 'expected an AbortSignal');
  if (format !== undefined && (typeof format !== 'object' || format === null)) throw invalid('format', 'expected { schema }');
  if (tool !== undefined && tool !== true && typeof tool !== 'string')
    throw invalid('tool', 'expected the name of a tool, or true for any');
  for (const name of NUMBERS) {
    // As JSON it would be null, and so as good as absent.
    if (typeof request[name] === 'number' && !Number.isFinite(request[name])) throw invalid(name, 'expected a finite number');
  }
}

type Wire = Readonly<Record<string, unknown>>;

function wireOf(request: GenerateRequest): Wire {
  const { tool, format } = request;
  const wire: Record<string, unknown> = {};
  for (const [name, theirs] of WIRE_NAMES) wire[theirs] = request[name as keyof GenerateRequest];
  const choice = tool === true ? 'required' : tool && { type: 'function', function: { name: tool } };
  const json = format?.schema === undefined ? { type: 'json_object' } : { type: 'json_schema', json_schema: format };
  wire['tool_choice'] = choice;
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
    // 32 bits would make some other id of it.
    if (typeof id !== 'number' || id !== (id | 0))
      throw invalid(`promptIds.${i}`, `expected a token id, found ${String(id).slice(0, 80)}`);
    ids[i] = id;
  }
  return ids;
}

/** What is said of a client's parameter, said of ours. */
export function inOurWords<T>(read: () => T): T {
  try {
    return read();
  } catch (thrown) {
    throw renamed(thrown);
  }
}

export function renamed(thrown: unknown): unknown {
  if (!(thrown instanceof TrainyardError) || thrown.code !== 'REQUEST_INVALID' || thrown.param === undefined) return thrown;
  const [first = '', ...rest] = thrown.param.split('.');
  const ours = Object.keys(NAMES).find((name) => NAMES[name] === first);
  if (ours === undefined || ours === first) return thrown;
  const param = [ours, ...rest].join('.');
  const { hint, cause } = thrown;
  return new TrainyardError('REQUEST_INVALID', thrown.message.replace(thrown.param, param), {
    param,
    cause,
    ...(hint === undefined ? {} : { hint }),
  });
}

// From heard.ts: What a conversation asked last. A question says again all that was said before; what it repeats to the letter need not be written as
// JSON, read and checked again, and stays the same objects in every turn.
//
// Only ever a short cut: where there is any doubt it is not taken, and whoever reads the question whole finds what is wrong with it.

/** Of JSON text. */
export interface TextSize {
  readonly bytes: number;
  readonly values: number;
}

export class Heard {
  /** As they were read. */
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
  #size: TextSize | undefined;

  constructor(messages: readonly Message[], tools: readonly Tool[], size?: TextSize) {
    this.messages = messages;
    this.tools = tools;
    this.#size = size;
  }

  /** How many bytes a request has more with these messages before its own, and these tools. */
  get size(): TextSize {
    const tools = this.tools.length === 0 ? [] : [`,"tools":${JSON.stringify(this.tools)}`];
    // Where the list would begin stands the comma after it.
    this.#size ??= sizeOf(JSON.stringify(this.messages).slice(1), ...tools);
    return this.#size;
  }

  /** Whether these are all of the same messages, then others, and the same tools. */
  isRepeatedBy(messages: unknown, tools: unknown): messages is readonly unknown[] {
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
 * Whether `JSON.stringify` writes it as this JSON, in whatever order. Not so for this very JSON: what is the caller's to change must be
 * copied.
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
