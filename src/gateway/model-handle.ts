/**
 * The door to the policy as one seat of a rollout: what clients need to reach it, and one call without a client.
 *
 * `generate` records the same turn as a client's request would, without the cost of writing and reading JSON.
 */
import type { ClientOptions, Engine, GenerateRequest, Generation, ModelHandle } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { completionId } from '../core/turn-names.ts';
import type { Message, Tool, Turn } from '../core/types.ts';
import type { Question } from './dialects/dialect.ts';
import { checkSize } from './limits.ts';
import { answer, type SamplerParts } from './sampling.ts';
import type { Seat } from './sessions.ts';

export interface HandleParts extends SamplerParts {
  readonly engine: Engine;
  readonly name: string;
  readonly baseURL: string;
  readonly apiKey: string;
  readonly fetch: typeof globalThis.fetch;
}

export function modelHandle(parts: HandleParts, seat: Seat): ModelHandle {
  const { name, baseURL, apiKey } = parts;
  const { role, thread } = seat;
  const headers = thread === role ? undefined : { 'x-sample-id': thread };
  const fetch = headers === undefined ? parts.fetch : withHeaders(parts.fetch, headers);
  const options = (): ClientOptions => ({ baseURL, apiKey, fetch, maxRetries: 0 });
  return {
    role,
    name,
    baseURL,
    apiKey,
    fetch,
    openai: options,
    anthropic: options,
    generate: (request) => generate(parts, seat, request),
    render: (messages, options) => rendered(parts, messages, options),
    decode: (ids) => parts.renderer.text(Int32Array.from(ids)),
    thread: (other) => modelHandle(parts, { ...seat, thread: other }),
  };
}

async function generate(parts: SamplerParts, seat: Seat, request: GenerateRequest): Promise<Generation> {
  const { session } = seat;
  const question = questionOf(request);
  checkSize(question);
  const { signal, release } = session.join({ signal: request.signal });
  try {
    const [turn] = await answer(parts, seat, undefined, question, signal);
    return generationOf(seat, turn!);
  } finally {
    release();
  }
}

function questionOf({ messages, tools = [], temperature, topP, topK, maxTokens, stop = [] }: GenerateRequest): Question {
  if (messages === undefined) throw new TrainyardError('REQUEST_INVALID', 'expected messages', { param: 'messages' });
  return {
    messages,
    tools,
    requested: {
      ...(temperature === undefined ? {} : { temperature }),
      ...(topP === undefined ? {} : { topP }),
      ...(topK === undefined ? {} : { topK }),
      ...(maxTokens === undefined ? {} : { maxTokens }),
    },
    count: 1,
    stopTexts: stop,
    stream: false,
    logprobs: false,
    ignored: [],
  };
}

function generationOf({ session }: Seat, turn: Turn): Generation {
  const { response: message, stopReason } = turn;
  return {
    id: completionId(session.spec.identity, turn.sampling.seed),
    message,
    text: message.content ?? '',
    toolCalls: message.tool_calls ?? [],
    stopReason,
    turn,
  };
}

function rendered(
  { renderer }: SamplerParts,
  messages: readonly Message[],
  { tools = [], after }: { readonly tools?: readonly Tool[]; readonly after?: Turn } = {},
): Int32Array {
  const ids = after === undefined ? renderer.open(messages, tools) : renderer.extend(after, messages);
  if (ids !== undefined) return ids;
  throw new TrainyardError('REQUEST_INVALID', 'the chat template writes what came before in another way once these messages follow', {
    hint: 'render the whole conversation afresh',
  });
}

function withHeaders(fetch: typeof globalThis.fetch, extra: Readonly<Record<string, string>>): typeof globalThis.fetch {
  return (input, init) => {
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
    for (const [name, value] of Object.entries(extra)) headers.set(name, value);
    return fetch(input, { ...init, headers });
  };
}
