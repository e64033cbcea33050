/**
 * What every dialect does: reads its wire format into one `Question` and writes the answer back in its own words, as one body or
 * as events. Sampling, recording, retries and delivery know nothing of dialects, and dialects nothing of them.
 */
import type { DialectName, Message, SamplingSettings, Tool, Turn } from '../../core/types.ts';
import type { Failure } from '../../http/refusal.ts';
import type { EventEncoder } from '../event-stream.ts';
import type { ForcedCall } from './forced-call.ts';
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
