/**
 * `ctx.model(role)` in the gateway's own process: what clients need to reach the policy as one role of a rollout, and one call without a client.
 *
 * `generate` records the same turn as a client's request would. One call of it is one turn: nobody retries it.
 */
import { fetchInThread } from '../core/context.ts';
import type { ClientOptions, GenerateRequest, Generation, ModelHandle } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { deepCopy } from '../core/json.ts';
import { completionId } from '../core/turns.ts';
import type { Message, Tool, Turn } from '../core/types.ts';
import { inOurNames, readRequest } from './generate-request.ts';
import { checkRollout, checkThread } from './identity.ts';
import { answer, type SamplerParts } from './sampling.ts';
import type { Caller } from './sessions.ts';

export interface GenerateParts extends SamplerParts {
  /** Throws where the engine cannot be asked yet. */
  checkReady(): void;
}

/** In the gateway's own process the turn is always there. */
export type Generated = Generation & { readonly turn: Turn };

export interface HandleParts extends GenerateParts {
  readonly name: string;
  readonly baseURL: string;
  readonly apiKey: string;
  readonly fetch: typeof globalThis.fetch;
}

export function modelHandle(parts: HandleParts, caller: Caller): ModelHandle {
  const { name, baseURL, apiKey } = parts;
  const { role, thread } = caller;
  const fetch = thread === role ? parts.fetch : fetchInThread(parts.fetch, thread);
  const options = (): ClientOptions => ({ baseURL, apiKey, fetch, maxRetries: 0 });
  return {
    role,
    name,
    baseURL,
    apiKey,
    fetch,
    openai: options,
    anthropic: options,
    generate: (request) => generate(parts, caller, request),
    render: (messages, options) => rendered(parts, messages, options),
    decode: (ids) => parts.renderer.text(Int32Array.from(ids)),
    thread: (other) => {
      checkThread(caller.session, role, other);
      return modelHandle(parts, { ...caller, thread: other });
    },
  };
}

/** One call; throws what a client would be told. */
export async function generate(parts: GenerateParts, caller: Caller, given: GenerateRequest): Promise<Generated> {
  const { session, role, thread } = caller;
  session.assertOpen();
  checkRollout(caller);
  checkThread(session, role, thread);
  parts.checkReady();
  return await session.calling(caller, given?.signal, async (call) => {
    const { request, bytes, cache } = readRequest(given, session, session.messageCaches.get(thread));
    if (cache !== undefined) session.messageCaches.set(thread, cache);
    session.receive(bytes);
    const { signal, release } = session.join({ signal: given.signal });
    try {
      const [turn] = await answer(parts, { caller, request, signal, call });
      return generationOf(caller, turn!);
    } catch (thrown) {
      throw inOurNames(thrown);
    } finally {
      release();
    }
  });
}

/** A copy for the caller, whose changes must not reach what was recorded. */
function generationOf({ session }: Caller, recorded: Turn): Generated {
  const message = deepCopy(recorded.response);
  let turn: Turn | undefined;
  return {
    id: completionId(session.spec.identity, recorded.sampling.seed),
    message,
    text: message.content ?? '',
    toolCalls: message.tool_calls ?? [],
    stopReason: recorded.stopReason,
    // Few callers look at tokens, and copying them costs more than the rest of the answer.
    get turn() {
      turn ??= copyOf(recorded);
      return turn;
    },
  };
}

function copyOf(turn: Turn): Turn {
  const { promptIds, sampledIds, logprobs, ...words } = turn;
  return {
    ...deepCopy(words),
    promptIds: promptIds.slice(),
    sampledIds: sampledIds.slice(),
    logprobs: logprobs.slice(),
  };
}

function rendered(
  { renderer }: SamplerParts,
  messages: readonly Message[],
  { tools = [], after }: { readonly tools?: readonly Tool[]; readonly after?: Turn } = {},
): Int32Array {
  const ids = after === undefined ? renderer.open(messages, tools) : renderer.extend(after, messages);
  if (ids !== undefined) return ids;
  throw new TrainyardError(
    'REQUEST_INVALID',
    'the chat template writes what came before in another way once these messages follow',
    {
      hint: 'render the whole conversation afresh',
    },
  );
}
