/**
 * One model call without a client, over Chat Completions: `generate` where the policy is in another process. In words only: tokens stay
 * where the policy is.
 *
 * A refusal of the gateway has the code it would have had in process, so that a rollout ends the same way.
 */
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

interface Completion {
  readonly id?: string;
  readonly choices?: readonly {
    readonly finish_reason?: string;
    readonly message?: Message & { readonly reasoning_content?: string };
  }[];
}

export async function generateOverHttp(
  { name, baseURL, apiKey, fetch }: Pick<ModelHandle, 'name' | 'baseURL' | 'apiKey' | 'fetch'>,
  request: GenerateRequest,
): Promise<Generation> {
  const body = JSON.stringify({ model: name, ...bodyOf(request) });
  const headers = { 'content-type': 'application/json', ...(apiKey === '' ? {} : { authorization: `Bearer ${apiKey}` }) };
  const given = request.signal === undefined ? {} : { signal: request.signal };
  try {
    const response = await fetch(`${baseURL}/chat/completions`, { method: 'POST', headers, body, ...given });
    const text = await response.text();
    if (!response.ok) throw refusalOf(response.status, text);
    return generationOf(text);
  } catch (thrown) {
    request.signal?.throwIfAborted();
    if (thrown instanceof TrainyardError) throw thrown;
    throw new TrainyardError('POLICY_UNREACHABLE', `the policy cannot be reached: ${messageOf(thrown)}`, { cause: thrown });
  }
}

function bodyOf({ messages, promptIds, tools = [], tool, temperature, topP, topK, maxTokens, stop }: GenerateRequest): object {
  if (messages === undefined) {
    const found = promptIds === undefined ? 'no messages' : 'promptIds';
    throw new TrainyardError('REQUEST_INVALID', `generate was given ${found}; a policy in another process takes messages only`, {
      param: promptIds === undefined ? 'messages' : 'promptIds',
      hint: 'give messages, or run the workflow in the process of the policy',
    });
  }
  return {
    messages,
    ...(tools.length === 0 ? {} : { tools }),
    ...(tool === undefined ? {} : { tool_choice: { type: 'function', function: { name: tool } } }),
    ...(temperature === undefined ? {} : { temperature }),
    ...(topP === undefined ? {} : { top_p: topP }),
    ...(topK === undefined ? {} : { top_k: topK }),
    ...(maxTokens === undefined ? {} : { max_tokens: maxTokens }),
    ...(stop === undefined || stop.length === 0 ? {} : { stop }),
  };
}

function generationOf(text: string): Generation {
  const completion = parsed(text) as Completion | undefined;
  const [choice] = completion?.choices ?? [];
  if (completion === undefined || choice?.message === undefined) {
    throw new TrainyardError('POLICY_GARBLED', `the policy answered something that is no completion: ${text.slice(0, 200)}`);
  }
  const { content = null, tool_calls: toolCalls = [], reasoning, reasoning_content: thought } = choice.message;
  const thoughts = reasoning ?? thought;
  const message: Message = {
    role: 'assistant',
    content,
    ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
    ...(thoughts == null ? {} : { reasoning: thoughts }),
  };
  const stopReason = choice.finish_reason === 'length' ? 'length' : 'stop';
  return { id: completion.id ?? '', message, text: content ?? '', toolCalls, stopReason };
}

function refusalOf(status: number, text: string): TrainyardError {
  const { code, message, hint } = (parsed(text) as { error?: Record<string, unknown> } | undefined)?.error ?? {};
  const known = typeof code === 'string' && Object.hasOwn(CODES, code) ? CODES[code] : undefined;
  const said = typeof message === 'string' ? message : text.slice(0, 500);
  if (known === undefined) return new TrainyardError('POLICY_REFUSED', `the policy answered ${status}: ${said}`);
  // The hint stands behind the message on the wire.
  const own = typeof hint === 'string' ? said.replace(` (${hint})`, '') : said;
  return new TrainyardError(known, own, typeof hint === 'string' ? { hint } : {});
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}
