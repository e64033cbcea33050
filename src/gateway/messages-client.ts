/**
 * The client side of Anthropic's Messages API, without an SDK, for model servers that speak it. Conversations are translated as Anthropic's
 * servers require: system messages go to the top, neighbouring messages of one side become one (parallel tool results belong together), and
 * empty texts are left out. An answer's thinking is not read: it could not be sent back without its signature.
 */
import { isObject, parsedJson } from '../core/json.ts';
import type { Message, Tool } from '../core/types.ts';
import { type ChatAnswer, type ChatRequest, type ChatServer, postOf, type Sparse, usageOf } from './chat-client.ts';

/** The API requires a limit. This is the largest one that every model accepts. */
const MAX_TOKENS = 4096;

export function messagesRequest(server: ChatServer, request: ChatRequest): [url: string, init: RequestInit] {
  const { messages, tools = [], tool, temperature, topP, topK, maxTokens = MAX_TOKENS, stop = [], format, signal } = request;
  const system = messages.flatMap(({ role, content }) => (role === 'system' && content ? [content] : []));
  const body = {
    model: server.name,
    system: system.length === 0 ? undefined : system.join('\n\n'),
    messages: sidesOf(messages),
    tools: tools.length === 0 ? undefined : tools.map(toolOf),
    tool_choice: tool === true ? { type: 'any' } : tool && { type: 'tool', name: tool },
    temperature,
    top_p: topP,
    top_k: topK,
    max_tokens: maxTokens,
    stop_sequences: stop.length === 0 ? undefined : stop,
    output_config: format?.schema === undefined ? undefined : { format: { type: 'json_schema', schema: format.schema } },
  };
  const headers = { 'anthropic-version': '2023-06-01', ...(server.apiKey ? { 'x-api-key': server.apiKey } : {}) };
  // The base URL of Anthropic's own client does not end in /v1, that of others does.
  return postOf(`${server.baseURL.replace(/\/+$/, '').replace(/\/v1$/, '')}/v1/messages`, headers, body, signal);
}

interface Side {
  readonly role: 'user' | 'assistant';
  readonly content: object[];
}

function sidesOf(messages: readonly Message[]): readonly Side[] {
  const sides: Side[] = [];
  for (const message of messages) {
    const blocks = blocksOf(message);
    if (blocks.length === 0) continue;
    const role = message.role === 'assistant' ? 'assistant' : 'user';
    const last = sides.at(-1);
    if (last?.role === role) last.content.push(...blocks);
    else sides.push({ role, content: blocks });
  }
  return sides;
}

function blocksOf({ role, content, tool_call_id: callId = '', tool_calls: calls = [] }: Message): object[] {
  if (role === 'system') return [];
  if (role === 'tool') return [{ type: 'tool_result', tool_use_id: idOf(callId), content: content ?? '' }];
  const uses = calls.map(({ id, function: { name, arguments: given } }) => {
    const input = parsedJson(given);
    // Arguments must be an object there. A model may have written something else, and must be shown what it was.
    return { type: 'tool_use', id: idOf(id), name, input: isObject(input) ? input : { arguments: given } };
  });
  return [...(content ? [{ type: 'text', text: content }] : []), ...uses];
}

/** Servers refuse other characters. */
const idOf = (id: string): string => id.replaceAll(/[^\w-]/g, '_');

function toolOf({ function: { name, description, parameters = { type: 'object' } } }: Tool): object {
  return { name, description, input_schema: parameters };
}

type Block = Sparse<{ type: string; text: string; id: string; name: string; input: unknown }>;
type Reply = Sparse<{
  id: string;
  content: readonly Block[];
  stop_reason: string;
  usage: Sparse<Record<'input_tokens' | 'cache_creation_input_tokens' | 'cache_read_input_tokens' | 'output_tokens', number>>;
}>;

/** Undefined if the text is not a message. */
export function messagesAnswerIn(text: string): ChatAnswer | undefined {
  const reply = parsedJson(text) as Reply | null | undefined;
  if (!Array.isArray(reply?.content) || reply.stop_reason === 'pause_turn') return undefined;
  const blocks: readonly Block[] = reply.content.filter(isObject);
  const texts = blocks.filter(({ type }) => type === 'text').map((block) => block.text ?? '');
  const uses = blocks.filter(({ type }) => type === 'tool_use');
  const { stop_reason: reason, usage } = reply;
  const prompt = [usage?.input_tokens, usage?.cache_creation_input_tokens, usage?.cache_read_input_tokens];
  return {
    id: reply.id ?? '',
    content: texts.length === 0 ? null : texts.join(''),
    toolCalls: uses.map(({ id, name, input }) => {
      return { id: id ?? '', type: 'function', function: { name: name ?? '', arguments: JSON.stringify(input ?? {}) } };
    }),
    reasoning: undefined,
    stopReason: reason === 'max_tokens' || reason === 'model_context_window_exceeded' ? 'length' : 'stop',
    withheld: reason === 'refusal',
    ...usageOf(usage && prompt.reduce<number>((sum, count) => sum + (count ?? 0), 0), usage?.output_tokens),
  };
}
