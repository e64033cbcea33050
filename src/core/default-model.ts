/** Default models: what can play a role while it is not trained. Only the shape is looked at here; the gateway asks it. */
import { TrainyardError } from './errors.ts';
import type { Message, SamplingSettings, StopReason, Tool, ToolCall } from './types.ts';

/** A model that is not the policy. What it says is in the trajectory, never in a sample. */
export interface DefaultModel {
  readonly name: string;
  generate(request: DefaultModelRequest): Promise<DefaultModelAnswer>;
}

export interface DefaultModelRequest {
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
  /** The tool that it must call, or true where any will do. */
  readonly tool?: string | true;
  /** The answer ends before the first of these texts; what is said from there on is cut off in any case. */
  readonly stop?: readonly string[];
  readonly sampling: Partial<SamplingSettings>;
  readonly signal: AbortSignal;
}

export interface DefaultModelAnswer {
  readonly content: string | null;
  /** Ids are given by the gateway. */
  readonly toolCalls?: readonly ToolCall['function'][];
  readonly stopReason?: StopReason;
}

/** A default model, or what one can be made of: an OpenAI-compatible server, or a function from the conversation to an answer. */
export type DefaultModelLike =
  | DefaultModel
  | { readonly name: string; readonly baseURL: string; readonly apiKey?: string; readonly fetch?: typeof globalThis.fetch }
  | ((request: DefaultModelRequest) => string | DefaultModelAnswer | Promise<string | DefaultModelAnswer>);

/** `whose` begins the message of a mistake: `role "judge"`. */
export function checkDefaultModel(given: unknown, whose: string): asserts given is DefaultModelLike {
  if (typeof given === 'function') return;
  if (typeof given === 'object' && given !== null && 'name' in given && typeof given.name === 'string') {
    if ('baseURL' in given && typeof given.baseURL === 'string') return;
    if ('generate' in given && typeof given.generate === 'function') return;
  }
  throw new TrainyardError('WORKFLOW_INVALID', `${whose}: expected a default model, found ${described(given)}`, {
    hint: 'give { name, baseURL, apiKey } of an OpenAI-compatible server, or a function from { messages } to a text',
  });
}

/** Without its texts: a key may be among them. */
export function described(given: unknown): string {
  if (given === '') return "''";
  if (typeof given === 'string' || typeof given === 'function') return `a ${typeof given}`;
  if (typeof given !== 'object' || given === null) return String(given);
  return Array.isArray(given) ? 'a list' : `an object with ${Object.keys(given).join(', ') || 'nothing'}`;
}
