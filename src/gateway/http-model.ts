/**
 * The model handle where the policy is in another process: base URL, key and `fetch`, and `generate` over Chat Completions. The policy
 * records the same turns as for its own handle. In words only: tokens stay where the policy is.
 *
 * A refusal of the gateway has the code it would have had in process, so that a rollout ends the same way.
 */

import { fetchInThread } from '../core/context.ts';
import type { ClientOptions, GenerateRequest, Generation, ModelHandle } from '../core/contracts.ts';
import { type ErrorCode, messageOf, TrainyardError } from '../core/errors.ts';
import { parsedJson } from '../core/json.ts';
import type { Message } from '../core/types.ts';
import { type ChatQuestion, chatAnswerIn, chatRequest } from './chat-completions.ts';
import { STATUS } from './wire-protocol.ts';

/** What a process must know to call the policy as one role. */
export interface HttpSeat {
  readonly role: string;
  /** For the client's `model` parameter. */
  readonly name: string;
  readonly baseURL: string;
  readonly apiKey: string;
}

/** The `fetch` of a thread; by default the global one, with the thread in a header where it is not the role's own. */
export type FetchIn = (thread: string) => typeof globalThis.fetch;

/** By the gateway's names for them. A cancelled call has the name of a sealed session, which says why it was cancelled. */
const CODES: ReadonlyMap<unknown, ErrorCode> = new Map(
  Object.entries(STATUS).flatMap(([code, row]) => (code === 'CANCELLED' ? [] : [[row.code, code as ErrorCode]])),
);

export function httpModel(seat: HttpSeat, fetchIn: FetchIn = inThread(seat.role), thread = seat.role): ModelHandle {
  const { role, name, baseURL, apiKey } = seat;
  const fetch = fetchIn(thread);
  // A client without a key would look for one in the environment.
  const options = (): ClientOptions => ({ baseURL, apiKey: apiKey || 'none', fetch, maxRetries: 0 });
  return {
    role,
    name,
    baseURL,
    apiKey,
    fetch,
    openai: options,
    // Its client adds /v1/messages by itself.
    anthropic: () => ({ ...options(), baseURL: baseURL.replace(/\/v1$/, '') }),
    generate: (request) => generateOverHttp({ name, baseURL, apiKey, fetch }, request),
    render: () => elsewhere('render'),
    decode: () => elsewhere('decode'),
    thread: (other) => httpModel(seat, fetchIn, other),
  };
}

function inThread(role: string): FetchIn {
  return (thread) => (thread === role ? globalThis.fetch : fetchInThread(globalThis.fetch, thread));
}

function elsewhere(what: string): never {
  throw new TrainyardError('REQUEST_INVALID', `${what} needs the policy's tokenizer, and the policy is in another process`, {
    hint: 'run the workflow in the process of the policy: without isolation, and not on a rollout server',
  });
}

export async function generateOverHttp(
  { name, baseURL, apiKey, fetch }: Pick<ModelHandle, 'name' | 'baseURL' | 'apiKey' | 'fetch'>,
  request: GenerateRequest,
): Promise<Generation> {
  const [url, init] = chatRequest({ name, baseURL, apiKey }, questionOf(request));
  try {
    const response = await fetch(url, init);
    const text = await response.text();
    if (!response.ok) throw refusalOf(response.status, text);
    return generationOf(text);
  } catch (thrown) {
    request.signal?.throwIfAborted();
    if (thrown instanceof TrainyardError) throw thrown;
    throw new TrainyardError('POLICY_UNREACHABLE', `the policy cannot be reached: ${messageOf(thrown)}`, { cause: thrown });
  }
}

function questionOf(request: GenerateRequest): ChatQuestion {
  if (request.messages !== undefined) return request;
  const found = request.promptIds === undefined ? 'no messages' : 'promptIds';
  throw new TrainyardError('REQUEST_INVALID', `generate was given ${found}; a policy in another process takes messages only`, {
    param: request.promptIds === undefined ? 'messages' : 'promptIds',
    hint: 'give messages, or run the workflow in the process of the policy',
  });
}

function generationOf(said: string): Generation {
  const answer = chatAnswerIn(said);
  if (answer === undefined) {
    throw new TrainyardError('POLICY_GARBLED', `the policy answered something that is no completion: ${said.slice(0, 200)}`);
  }
  const { id, content, toolCalls, reasoning, stopReason } = answer;
  const message: Message = {
    role: 'assistant',
    content,
    ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
    ...(reasoning === undefined ? {} : { reasoning }),
  };
  return { id, message, text: content ?? '', toolCalls, stopReason };
}

function refusalOf(status: number, text: string): TrainyardError {
  const { code, message, hint } = (parsedJson(text) as { error?: Record<string, unknown> } | undefined)?.error ?? {};
  const known = CODES.get(code);
  const said = typeof message === 'string' ? message : text.slice(0, 500);
  if (known === undefined) return new TrainyardError('POLICY_REFUSED', `the policy answered ${status}: ${said}`);
  // The hint stands behind the message on the wire.
  const own = typeof hint === 'string' ? said.replace(` (${hint})`, '') : said;
  return new TrainyardError(known, own, typeof hint === 'string' ? { hint } : {});
}
