/**
 * One model call without a client, over Chat Completions: `generate` where the policy is in another process. In words only: tokens stay
 * where the policy is.
 *
 * A refusal of the gateway has the code it would have had in process, so that a rollout ends the same way.
 */
import { type ChatQuestion, chatAnswerIn, chatRequest, parsedJson } from '../core/chat-completions.ts';
import type { GenerateRequest, Generation, ModelHandle } from '../core/contracts.ts';
import { type ErrorCode, messageOf, TrainyardError } from '../core/errors.ts';
import type { Message } from '../core/types.ts';

/** What the gateway calls them on the wire; see `gateway/http-errors.ts`. */
export const CODES: Readonly<Record<string, ErrorCode>> = {
  invalid_request: 'REQUEST_INVALID',
  idempotency_conflict: 'REQUEST_CONFLICT',
  context_length_exceeded: 'CONTEXT_OVERFLOW',
  rollout_limit_reached: 'LIMIT_REACHED',
  forbidden: 'CAPABILITY_MISSING',
  invalid_api_key: 'SESSION_UNKNOWN',
  rollout_ended: 'SESSION_SEALED',
  too_many_calls: 'ENGINE_BUSY',
  engine_failed: 'ENGINE_FAILED',
  default_model_failed: 'DEFAULT_MODEL_FAILED',
};

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
  const known = typeof code === 'string' && Object.hasOwn(CODES, code) ? CODES[code] : undefined;
  const said = typeof message === 'string' ? message : text.slice(0, 500);
  if (known === undefined) return new TrainyardError('POLICY_REFUSED', `the policy answered ${status}: ${said}`);
  // The hint stands behind the message on the wire.
  const own = typeof hint === 'string' ? said.replace(` (${hint})`, '') : said;
  return new TrainyardError(known, own, typeof hint === 'string' ? { hint } : {});
}
