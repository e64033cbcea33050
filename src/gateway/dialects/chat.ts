/**
 * OpenAI Chat Completions, decoded into our nouns and encoded back.
 *
 * Decoding is strict where silence would corrupt training: a parameter that changes the sampled distribution and is not
 * recorded is refused by name. Parameters that change nothing we sample are ignored. No I/O, no session state.
 */
import { z } from 'zod';
import { TrainyardError } from '../../core/errors.ts';
import type { Message, SamplingSettings, Tool, Turn } from '../../core/types.ts';

export interface ChatRequest {
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
  readonly requested: Partial<SamplingSettings>;
  /** Undefined where the answer is to come as one JSON body. */
  readonly stream: { readonly includeUsage: boolean } | undefined;
}

const textPart = z.object({ type: z.literal('text'), text: z.string() });
const content = z.union([z.string(), z.array(textPart).transform((parts) => parts.map((part) => part.text).join(''))]).nullish();
const toolCall = z.object({
  id: z.string().default(''),
  type: z.literal('function').default('function'),
  function: z.object({ name: z.string(), arguments: z.string() }),
});
const message = z.discriminatedUnion('role', [
  z.object({ role: z.literal('system'), content, name: z.string().optional() }),
  z.object({ role: z.literal('developer'), content, name: z.string().optional() }),
  z.object({ role: z.literal('user'), content, name: z.string().optional() }),
  z.object({ role: z.literal('assistant'), content, tool_calls: z.array(toolCall).nullish(), name: z.string().optional() }),
  z.object({ role: z.literal('tool'), content, tool_call_id: z.string().optional() }),
]);
const tool = z.object({
  type: z.literal('function'),
  function: z.object({ name: z.string(), description: z.string().optional(), parameters: z.json().optional() }),
});
const body = z.object({
  messages: z.array(message).min(1),
  tools: z.array(tool).nullish(),
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.int().min(0).nullish(),
  max_tokens: z.int().min(1).nullish(),
  max_completion_tokens: z.int().min(1).nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.object({ include_usage: z.boolean().nullish() }).nullish(),
});

/** Parameters that would change what is sampled or what the client expects back, and the values under which they do not. */
const REFUSED: Readonly<Record<string, (value: unknown) => boolean>> = {
  n: (value) => value === 1,
  stop: (value) => Array.isArray(value) && value.length === 0,
  logit_bias: (value) => typeof value === 'object' && Object.keys(value ?? {}).length === 0,
  presence_penalty: (value) => value === 0,
  frequency_penalty: (value) => value === 0,
  tool_choice: (value) => value === 'auto',
  response_format: (value) => typeof value === 'object' && (value as { type?: unknown }).type === 'text',
  logprobs: (value) => value === false,
  min_p: (value) => value === 0,
  repetition_penalty: (value) => value === 1,
  min_tokens: (value) => value === 0,
  best_of: (value) => value === 1,
  stop_token_ids: (value) => Array.isArray(value) && value.length === 0,
  top_logprobs: () => false,
  function_call: (value) => value === 'auto',
  functions: () => false,
  audio: () => false,
  prediction: () => false,
};

/** Throws REQUEST_INVALID naming the field. */
export function decodeChat(raw: unknown): ChatRequest {
  const parsed = body.safeParse(raw);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    throw new TrainyardError(
      'REQUEST_INVALID',
      `${issue?.path.join('.') || 'body'}: ${issue?.message ?? 'not a Chat Completions request'}`,
    );
  }
  for (const [name, harmless] of Object.entries(REFUSED)) {
    const value = (raw as Record<string, unknown>)[name];
    if (value !== undefined && value !== null && !harmless(value)) {
      throw new TrainyardError('REQUEST_INVALID', `${name}: ${JSON.stringify(value).slice(0, 80)} is not supported`, {
        hint: 'it would change what is sampled or returned without being recorded; leave it out',
      });
    }
  }
  const { messages, tools, temperature, top_p, top_k, max_tokens, max_completion_tokens, stream, stream_options } = parsed.data;
  if (stream_options && !stream) {
    throw new TrainyardError('REQUEST_INVALID', 'stream_options: only allowed where `stream` is true');
  }
  const maxTokens = max_completion_tokens ?? max_tokens;
  return {
    messages: messages.map(toMessage),
    tools: (tools ?? []) as readonly Tool[],
    requested: {
      ...(temperature == null ? {} : { temperature }),
      ...(top_p == null ? {} : { topP: top_p }),
      ...(top_k == null ? {} : { topK: top_k }),
      ...(maxTokens == null ? {} : { maxTokens }),
    },
    stream: stream ? { includeUsage: stream_options?.include_usage ?? false } : undefined,
  };
}

function toMessage(wire: z.infer<typeof message>): Message {
  const text = wire.content ?? null;
  if (wire.role === 'assistant') {
    const calls = wire.tool_calls ?? [];
    return { role: 'assistant', content: text, ...(calls.length > 0 ? { tool_calls: calls } : {}) };
  }
  if (wire.role === 'tool')
    return { role: 'tool', content: text, ...(wire.tool_call_id ? { tool_call_id: wire.tool_call_id } : {}) };
  return { role: wire.role === 'developer' ? 'system' : wire.role, content: text, ...(wire.name ? { name: wire.name } : {}) };
}

/** The response body. `id` must be unique per response: some clients replace messages by it. */
export function encodeChat(turn: Turn, id: string, model: string): object {
  const { content, tool_calls: calls = [] } = turn.response;
  return {
    id,
    object: 'chat.completion',
    created: Math.floor(turn.endedAt / 1000),
    model,
    choices: [
      {
        index: 0,
        message: { role: 'assistant', content, refusal: null, ...(calls.length > 0 ? { tool_calls: calls } : {}) },
        logprobs: null,
        finish_reason: finishReason(turn),
      },
    ],
    usage: usageOf(turn),
  };
}

export function finishReason({ stopReason, response }: Turn): 'length' | 'tool_calls' | 'stop' {
  if (stopReason === 'length') return 'length';
  return (response.tool_calls ?? []).length > 0 ? 'tool_calls' : 'stop';
}

export function usageOf({ promptIds, sampledIds }: Turn): object {
  return {
    prompt_tokens: promptIds.length,
    completion_tokens: sampledIds.length,
    total_tokens: promptIds.length + sampledIds.length,
  };
}
