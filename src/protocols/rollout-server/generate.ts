/** `model.generate` over Chat Completions: one call without a client. In words only: tokens stay where the policy is. */
import type { GenerateRequest, Generation, ModelHandle } from '../../core/contracts.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import type { Message } from '../../core/types.ts';

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
  const response = await fetch(`${baseURL}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(apiKey === '' ? {} : { authorization: `Bearer ${apiKey}` }) },
    body: JSON.stringify({ model: name, ...bodyOf(request) }),
    ...(request.signal === undefined ? {} : { signal: request.signal }),
  }).catch((thrown: unknown) => {
    request.signal?.throwIfAborted();
    throw new TrainyardError('POLICY_UNREACHABLE', `the policy cannot be reached: ${messageOf(thrown)}`, { cause: thrown });
  });
  const text = await response.text();
  if (!response.ok) throw new TrainyardError('POLICY_REFUSED', `the policy answered ${response.status}: ${text.slice(0, 500)}`);
  return generationOf(text);
}

function bodyOf({
  messages,
  promptIds,
  tools = [],
  tool,
  temperature,
  topP,
  topK,
  maxTokens,
  stop,
  format,
}: GenerateRequest): object {
  if (messages === undefined) {
    const found = promptIds === undefined ? 'no messages' : 'promptIds';
    throw new TrainyardError('REQUEST_INVALID', `generate was given ${found}; a policy in another process takes messages only`, {
      param: promptIds === undefined ? 'messages' : 'promptIds',
      hint: 'give messages, or run the workflow where the policy is',
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
    ...(stop === undefined ? {} : { stop }),
    ...(format === undefined ? {} : { response_format: formatOf(format) }),
  };
}

function formatOf({ schema }: NonNullable<GenerateRequest['format']>): object {
  return schema === undefined ? { type: 'json_object' } : { type: 'json_schema', json_schema: { name: 'answer', schema } };
}

function generationOf(text: string): Generation {
  let completion: Completion;
  try {
    completion = JSON.parse(text) as Completion;
  } catch {
    throw garbled(text);
  }
  const [choice] = completion.choices ?? [];
  if (choice?.message === undefined) throw garbled(text);
  const { content = null, tool_calls: toolCalls = [], reasoning, reasoning_content: thought } = choice.message;
  const thoughts = reasoning ?? thought;
  const message: Message = {
    role: 'assistant',
    content,
    ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
    ...(thoughts === undefined ? {} : { reasoning: thoughts }),
  };
  const stopReason = choice.finish_reason === 'length' ? 'length' : 'stop';
  return { id: completion.id ?? '', message, text: content ?? '', toolCalls, stopReason };
}

function garbled(text: string): TrainyardError {
  return new TrainyardError('POLICY_GARBLED', `the policy answered something that is no completion: ${text.slice(0, 200)}`);
}
