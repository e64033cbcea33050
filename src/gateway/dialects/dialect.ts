/**
 * What every dialect does: reads its wire format into one `Question` and writes the answer back in its own words, as one body or
 * as events. Sampling, recording, retries and delivery know nothing of dialects, and dialects nothing of them.
 */
import { z } from 'zod';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { isObject } from '../../core/json.ts';
import { type Schema, schemaFault } from '../../core/json-schema.ts';
import type { DialectName, Message, SamplingSettings, Tool, Turn } from '../../core/types.ts';
import type { Failure } from '../../http/refusal.ts';
import type { EventEncoder } from '../event-stream.ts';
import { GATEWAY_LIMITS } from '../wire-protocol.ts';
import type { ResponsesMemory } from './responses-memory.ts';

/** What one model call asks, whatever its dialect. */
export interface Question {
  /** Empty where the prompt is given as ids. */
  readonly messages: readonly Message[];
  /** The prompt itself; in process only. */
  readonly promptIds?: Int32Array;
  readonly tools: readonly Tool[];
  /** Present where the answer must be a call. */
  readonly forced?: ForcedCall | undefined;
  readonly requested: Partial<SamplingSettings>;
  /** How many answers are wanted, each a turn. */
  readonly count: number;
  /** The answer ends before the first of these that it would say. */
  readonly stopTexts: readonly string[];
  readonly stream: boolean;
  /** Whether the writer wants each token with its log-probability. */
  readonly logprobs: boolean;
  /** Parameters that were given, change nothing that is sampled, and have no effect. */
  readonly ignored: readonly string[];
  /** What is wrong with a content, where the client asked for a format. */
  readonly formatErrorOf?: ((content: string) => string | undefined) | undefined;
}

/** What is known of an answer when its first token is. */
export interface AnswerHead {
  /** Unique in the rollout; the dialect puts its own prefix before it. Letters, digits, `-` and `_` only. */
  readonly id: string;
  readonly model: string;
  /** Milliseconds since the epoch. */
  readonly startedAt: number;
  readonly promptTokens: number;
  toolCallId(choice: number, index: number): string;
  /** Text of one token, for log-probabilities: bytes that are no character by themselves show as U+FFFD. */
  tokenText(id: number): string;
  /** Text of all ids of a turn, without the stop id. */
  text(sampledIds: Int32Array): string;
}

/** Writes the answer to one question. Its turns are in the order of the choices, as many as were asked for. */
export interface Writer {
  whole(turns: readonly Turn[], head: AnswerHead): object;
  events(head: AnswerHead): EventEncoder;
}

/** What a session keeps for its dialects from one call to the next. */
export interface DialectMemory {
  readonly responses: ResponsesMemory;
}

export interface Dialect {
  readonly name: DialectName;
  /** Throws REQUEST_INVALID naming the field, before anything is sampled. `body` is parsed JSON of any shape. */
  read(body: unknown, memory: DialectMemory): { readonly question: Question; readonly writer: Writer };
  /** The body of an error reply. */
  failure(failure: Failure): object;
}

// From parameters.ts: The three lists of a dialect's parameters. Honoured ones are for the dialect to read. Refused ones would change what is sampled,
// or what the client expects back, without being recorded; a value under which they do not is let through. Everything else is ignored:
// it has no effect, and its name is recorded with the turn and reported to the client.

export interface Parameters {
  readonly honoured: readonly string[];
  /** What stock clients are known to send. Names in no list are ignored too. */
  readonly ignored: readonly string[];
  /** With the test for a value that changes nothing. */
  readonly refused: Readonly<Record<string, (value: unknown) => boolean>>;
}

export const never = (): boolean => false;
export const is =
  (...values: readonly unknown[]) =>
  (value: unknown): boolean =>
    values.includes(value);
export const isEmpty = (value: unknown): boolean => typeof value === 'object' && Object.keys(value ?? {}).length === 0;

/** Names and values of what is said about one thing in a message to a person. */
const SHOWN = 80;

/** The names that have no effect. Throws REQUEST_INVALID for the first that is refused. `null` is as good as absent. */
export function ignoredIn(body: object, { honoured, refused }: Parameters): readonly string[] {
  const ignored: string[] = [];
  for (const [name, value] of Object.entries(body)) {
    if (value === null || value === undefined || honoured.includes(name)) continue;
    const harmless = Object.hasOwn(refused, name) ? refused[name] : undefined;
    if (harmless === undefined) ignored.push(name.slice(0, SHOWN));
    else if (!harmless(value)) throw refusal(name, value);
  }
  return ignored;
}

export function refusal(param: string, value: unknown, hint?: string): TrainyardError {
  return new TrainyardError('REQUEST_INVALID', `${param}: ${JSON.stringify(value)?.slice(0, SHOWN)} is not supported`, {
    param,
    hint: hint ?? 'it would change what is sampled or returned without being recorded; leave it out',
  });
}

export function invalid(param: string, message: string, hint?: string): TrainyardError {
  return new TrainyardError('REQUEST_INVALID', `${param}: ${message}`, { param, ...(hint === undefined ? {} : { hint }) });
}

/** The body as the schema has it; throws REQUEST_INVALID naming the field. */
export function parsed<T extends z.ZodType>(schema: T, body: unknown): z.infer<T> {
  const result = schema.safeParse(body);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  throw invalid(issue?.path.join('.') || 'body', issue?.message ?? 'is malformed');
}

// From sampling-parameters.ts: How a client asks for tokens to be drawn: the same names and ranges in every dialect but for the limit, which has a name in each.

export const samplingFields = {
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.int().min(0).nullish(),
};
export const tokenLimit = z.int().min(1).nullish();

type Asked = { readonly [name in keyof typeof samplingFields]?: number | null | undefined };

/** What was asked for; whether it holds is for the session to say. */
export function requestedSampling(asked: Asked, maxTokens: number | null | undefined): Partial<SamplingSettings> {
  const { temperature, top_p: topP, top_k: topK } = asked;
  return {
    ...(temperature == null ? {} : { temperature }),
    ...(topP == null ? {} : { topP }),
    ...(topK == null ? {} : { topK }),
    ...(maxTokens == null ? {} : { maxTokens }),
  };
}

// From forced-call.ts: That the policy must call a tool, as every dialect's `tool_choice` may say. What it is given for that is the renderer's to know.

export interface ForcedCall {
  /** Undefined: any of the tools. */
  readonly name: string | undefined;
}

/** Throws REQUEST_INVALID where there is no such tool. */
export function forcedCall(name: unknown, tools: readonly Tool[]): ForcedCall {
  const names = tools.map((tool) => tool.function.name);
  if (names.length === 0) throw invalid('tool_choice', 'a call is demanded, but there are no tools', 'give the tools, too');
  if (name === undefined) return { name: names.length === 1 ? names[0] : undefined };
  if (typeof name !== 'string') throw invalid('tool_choice', 'expected the name of a tool');
  if (names.includes(name)) return { name };
  throw invalid(
    'tool_choice',
    `there is no tool ${JSON.stringify(name).slice(0, 80)}`,
    `there are: ${names.join(', ').slice(0, 500)}`,
  );
}

// From json-format.ts: `response_format` and its like: checks what the policy said against what the client asked for. Sampling is not constrained, since that
// would change the distribution; the answer is given as sampled, and what is wrong with it is marked on the turn.

/** What is wrong with a text, or undefined. Without a schema any JSON object will do. Throws REQUEST_INVALID for a bad schema. */
export function formatChecker(schema: unknown, param: string): (content: string) => string | undefined {
  const expected = schema === undefined ? { type: 'object' } : schemaOf(schema, param);
  return (content) => {
    let value: unknown;
    try {
      value = JSON.parse(content);
    } catch (thrown) {
      return `not JSON: ${messageOf(thrown)}`;
    }
    return schemaFault(expected, value);
  };
}

function schemaOf(schema: unknown, param: string): Schema {
  const isSchema = typeof schema === 'boolean' || isObject(schema);
  if (!isSchema) throw invalid(param, 'expected a JSON Schema: an object, true or false');
  return schema as Schema;
}

// From server-sent-event.ts: Not ends of a line to the standard, but to clients that split lines as Unicode has them.

const LINE_ENDS = /[\u0085\u2028\u2029]/g;

/** One event of a stream; its data is one line to every client. */
export function serverSentEvent(data: object, name?: string): string {
  const json = JSON.stringify(data).replace(LINE_ENDS, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, '0')}`);
  return `${name === undefined ? '' : `event: ${name}\n`}data: ${json}\n\n`;
}

/** Throws REQUEST_INVALID where a question, read and well-formed, is more than a request may hold. */
export function checkSize({ messages, tools, ignored }: Question): void {
  const counts = { messages: messages.length, tools: tools.length, ignored: ignored.length };
  for (const name of ['messages', 'tools', 'ignored'] as const) {
    if (counts[name] <= GATEWAY_LIMITS[name]) continue;
    const what = name === 'ignored' ? 'parameters without effect' : name;
    throw new TrainyardError('REQUEST_INVALID', `${counts[name]} ${what}; at most ${GATEWAY_LIMITS[name]} are read`, {
      ...(name === 'ignored' ? {} : { param: name }),
    });
  }
}
