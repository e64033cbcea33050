/**
 * The contract of a dialect, and what dialects share. A dialect reads its wire format into a `ModelRequest` and writes the response in its
 * own format, as one body or as events. Dialects are independent of sampling, recording, retries and delivery.
 */
import { z } from 'zod';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { defined, isObject, sizeOfJson } from '../../core/json.ts';
import { type Schema, schemaFault } from '../../core/json-schema.ts';
import type { DialectName, Json, Message, SamplingSettings, Tool, ToolCall, Turn } from '../../core/types.ts';
import type { Failure } from '../../http/refusal.ts';
import { inCallOrder } from '../../tokens/tool-calls.ts';
import type { EventEncoder } from '../event-stream.ts';
import { GATEWAY_LIMITS } from '../wire-protocol.ts';

export interface ModelRequest {
  /** Empty if the prompt is given as ids. */
  readonly messages: readonly Message[];
  /** The prompt itself; only for calls in process. */
  readonly promptIds?: Int32Array;
  readonly tools: readonly Tool[];
  /** Present if the completion must be a tool call. */
  readonly forced?: ForcedCall | undefined;
  readonly requested: Partial<SamplingSettings>;
  /** Number of requested completions; each becomes a turn. */
  readonly count: number;
  /** The completion ends before the first of these texts. */
  readonly stopTexts: readonly string[];
  readonly stream: boolean;
  /** Whether the writer needs tokens with log-probabilities. */
  readonly logprobs: boolean;
  readonly ignored: readonly string[];
  /** As it was written, in Chat Completions: for a policy that is asked in its agent's words. */
  readonly chat?: Readonly<Record<string, unknown>> | undefined;
  /** Returns what is wrong with the content; present if the client requested a format. */
  readonly formatErrorOf?: FormatChecker | undefined;
}

interface FormatChecker {
  (content: string): string | undefined;
  /** As requested, for models that enforce it themselves. */
  readonly format: { readonly schema?: Json };
}

/** What is known at the first token. */
export interface AnswerHead {
  /** Unique in the rollout; the dialect adds its prefix. Letters, digits, `-` and `_` only. */
  readonly id: string;
  readonly model: string;
  /** Milliseconds since the epoch. */
  readonly startedAt: number;
  readonly promptTokens: number;
  toolCallId(choice: number, index: number): string;
  /** Text of one token, for log-probabilities. Bytes that are no complete character become U+FFFD. */
  tokenText(id: number): string;
  /** Text of a turn's ids, without the stop id. */
  text(sampledIds: Int32Array): string;
}

/** Writes the response to one request. The turns are in the order of the choices, one for each. */
export interface Writer {
  whole(turns: readonly Turn[], head: AnswerHead): object;
  events(head: AnswerHead): EventEncoder;
}

export interface Dialect {
  readonly name: DialectName;
  /** Throws REQUEST_INVALID naming the field, before sampling. `body`: any JSON. A dialect may keep state as long as `session` lives. */
  read(body: unknown, session: object): { readonly request: ModelRequest; readonly writer: Writer };
  failure(failure: Failure): object;
}

/** What is prompted with, compared and recorded: tool results are in the order of their calls. Throws REQUEST_INVALID if there is too much. */
export function admitted(request: ModelRequest): ModelRequest {
  const { messages, tools, ignored, forced, formatErrorOf } = request;
  const check = (count: number, what: string, most: number, param?: string): void => {
    if (count > most)
      throw new TrainyardError('REQUEST_INVALID', `${count} ${what}; at most ${most} are read`, defined({ param }));
  };
  check(messages.length, 'messages', GATEWAY_LIMITS.messages, 'messages');
  check(tools.length, 'tools', GATEWAY_LIMITS.tools, 'tools');
  check(ignored.length, 'parameters without effect', GATEWAY_LIMITS.ignored);
  const followed = forced ? tools.map((tool) => tool.function.parameters) : formatErrorOf?.format.schema;
  const values = followed === undefined ? 0 : sizeOfJson(JSON.stringify(followed)).values;
  check(values, 'values in the schema that the answer is to follow', GATEWAY_LIMITS.schemaValues, forced ? 'tools' : undefined);
  const hasResults = messages.some(({ role }) => role === 'tool');
  return hasResults ? { ...request, messages: inCallOrder(messages) } : request;
}

/**
 * A dialect's parameters. The dialect reads honoured ones. Refused ones would change what is sampled or returned without being recorded;
 * values that change nothing pass. All others have no effect; their names are recorded with the turn and reported to the client.
 */
export interface Parameters {
  readonly honoured: readonly string[];
  /** What stock clients are known to send. Unlisted names are ignored too. */
  readonly ignored: readonly string[];
  /** Each with a test for values that change nothing. */
  readonly refused: Readonly<Record<string, (value: unknown) => boolean>>;
}

export const never = (): boolean => false;
export const is =
  (...values: readonly unknown[]) =>
  (value: unknown): boolean =>
    values.includes(value);
export const isEmpty = (value: unknown): boolean => typeof value === 'object' && Object.keys(value ?? {}).length === 0;

/** Characters of a name or value in an error message. */
export const SHOWN = 80;

/** Returns the names without effect. Throws REQUEST_INVALID for the first refused one. `null` counts as absent. */
export function ignoredIn(body: object, { honoured, refused }: Parameters): readonly string[] {
  const ignored: string[] = [];
  for (const [name, value] of Object.entries(body)) {
    if (value == null || honoured.includes(name)) continue;
    const harmless = Object.hasOwn(refused, name) ? refused[name] : undefined;
    // Told apart from `true`, which changes nothing.
    const said = name === 'parallel_tool_calls' && value === false ? `${name}:false` : name;
    if (harmless === undefined) ignored.push(said.slice(0, SHOWN));
    else if (!harmless(value)) throw refusal(name, value);
  }
  return ignored;
}

/** The fields of an honoured parameter that have no effect: all except its format. */
export function ignoredBeside(parameter: string, fields: object | null | undefined): readonly string[] {
  const others = Object.entries(fields ?? {}).filter(([name, value]) => name !== 'format' && value != null);
  return others.map(([name]) => `${parameter}.${name}`);
}

export function refusal(param: string, value: unknown, hint?: string): TrainyardError {
  return new TrainyardError('REQUEST_INVALID', `${param}: ${JSON.stringify(value)?.slice(0, SHOWN)} is not supported`, {
    param,
    hint: hint ?? 'it would change what is sampled or returned without being recorded; leave it out',
  });
}

export function invalid(param: string, message: string, hint?: string): TrainyardError {
  return new TrainyardError('REQUEST_INVALID', `${param}: ${message}`, defined({ param, hint }));
}

/** Throws REQUEST_INVALID naming the field. `at`: the value's path in the body. */
export function parsed<T extends z.ZodType>(schema: T, value: unknown, at?: string): z.infer<T> {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  const path = [...(at === undefined ? [] : [at]), ...(issue?.path ?? [])].join('.');
  throw invalid(path || 'body', issue?.message ?? 'is malformed');
}

/** Only the fields that were given; `null` counts as absent. */
export function given<T extends object>(fields: T): { [K in keyof T]?: NonNullable<T[K]> } {
  const entries = Object.entries(fields).filter(([, value]) => value != null);
  return Object.fromEntries(entries) as { [K in keyof T]?: NonNullable<T[K]> };
}

/** Names and ranges are the same in every dialect; only the token limit has different names. */
export const samplingFields = {
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.int().min(0).nullish(),
};
export const tokenLimit = z.int().min(1).nullish();
export const commonFields = { model: z.string().max(256).nullish(), stream: z.boolean().nullish(), ...samplingFields };
export const stopTexts = z.array(z.string().min(1)).max(16);

type SamplingFields = { readonly [name in keyof typeof samplingFields]?: number | null | undefined };

/** The requested settings; the session decides which are used. */
export function requestedSampling(wire: SamplingFields, maxTokens: number | null | undefined): Partial<SamplingSettings> {
  const { temperature, top_p: topP, top_k: topK } = wire;
  return given({ temperature, topP, topK, maxTokens });
}

export function assistantMessage(content: string | null, calls: readonly ToolCall[], reasoning?: string | null): Message {
  const called = calls.length > 0 ? { tool_calls: calls } : {};
  return { role: 'assistant', content, ...called, ...(reasoning ? { reasoning } : {}) };
}

interface WireFunction {
  readonly name: string;
  readonly description?: string | null | undefined;
  readonly parameters?: unknown;
}

export function toolOf({ name, description, parameters }: WireFunction): Tool {
  return { type: 'function', function: given({ name, description, parameters }) as Tool['function'] };
}

export interface ForcedCall {
  /** Undefined if any tool will do. */
  readonly name: string | undefined;
}

/** Throws REQUEST_INVALID if there is no such tool. */
export function forcedCall(name: unknown, tools: readonly Tool[]): ForcedCall {
  const names = tools.map((tool) => tool.function.name);
  if (names.length === 0) throw invalid('tool_choice', 'a call is demanded, but there are no tools', 'give the tools, too');
  if (name === undefined) return { name: names.length === 1 ? names[0] : undefined };
  if (typeof name !== 'string') throw invalid('tool_choice', 'expected the name of a tool');
  if (names.includes(name)) return { name };
  const found = `there is no tool ${JSON.stringify(name).slice(0, SHOWN)}`;
  throw invalid('tool_choice', found, `there are: ${names.join(', ').slice(0, 500)}`);
}

/** OpenAI's `tool_choice`. The two APIs put the tool's name in different places. */
export function openAIToolChoice(choice: unknown, tools: readonly Tool[], api: 'chat' | 'responses'): ForcedCall | undefined {
  if (choice == null || choice === 'auto' || choice === 'none') return undefined;
  if (choice === 'required') return forcedCall(undefined, tools);
  const named = choice as { readonly type?: unknown; readonly name?: unknown; readonly function?: { readonly name?: unknown } };
  if (named.type === 'function') return forcedCall((api === 'chat' ? named.function?.name : named.name) ?? null, tools);
  const example = `{ type: "function", ${api === 'chat' ? 'function: { name }' : 'name'} }`;
  throw refusal('tool_choice', choice, `use "auto", "none", "required" or ${example}`);
}

/** OpenAI's response formats. `path`: where the schema is within the parameter `param`. */
export function openAIFormat(format: unknown, param: string, ...path: readonly string[]): FormatChecker | undefined {
  if (format == null) return undefined;
  const { type } = format as { type?: unknown };
  if (type === 'text') return undefined;
  if (type === 'json_object') return formatChecker(undefined, param);
  if (type !== 'json_schema') throw refusal(param, format, 'use "text", "json_object" or "json_schema"');
  const schema = path.reduce<unknown>((at, name) => (at as Readonly<Record<string, unknown>> | undefined)?.[name], format);
  return formatChecker(schema, [param, ...path].join('.'));
}

/**
 * Checks a completion's format. Where sampling cannot be constrained to it, the client gets the text as sampled, and the turn records what
 * is wrong with it. Without a schema, any JSON object passes. Throws REQUEST_INVALID for a bad schema.
 */
export function formatChecker(schema: unknown, param: string): FormatChecker {
  if (schema !== undefined && typeof schema !== 'boolean' && !isObject(schema)) {
    throw invalid(param, 'expected a JSON Schema: an object, true or false');
  }
  const expected = (schema ?? { type: 'object' }) as Schema;
  const check = (content: string): string | undefined => {
    let value: unknown;
    try {
      value = JSON.parse(content);
    } catch (thrown) {
      return `not JSON: ${messageOf(thrown)}`;
    }
    return schemaFault(expected, value);
  };
  return Object.assign(check, { format: schema === undefined ? {} : { schema: schema as Json } });
}

/** Not line ends in the standard, but clients that split lines by Unicode's rules break at them. */
const LINE_ENDS = /[\u0085\u2028\u2029]/g;

/** One server-sent event, whose data is a single line for every client. */
export function serverSentEvent(data: object, name?: string): string {
  const json = JSON.stringify(data).replace(LINE_ENDS, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, '0')}`);
  return `${name === undefined ? '' : `event: ${name}\n`}data: ${json}\n\n`;
}

export function logprobsOf(ids: Int32Array, logprobs: Float32Array, { tokenText }: Pick<AnswerHead, 'tokenText'>): object[] {
  return Array.from(ids, (id, i) => {
    const token = tokenText(id);
    return { token, logprob: logprobs[i], bytes: [...Buffer.from(token)], top_logprobs: [] };
  });
}
