/**
 * Messages of LangChain ↔ ours, such that what the policy said comes back as it was recorded: its thoughts are kept with the message, and
 * calls whose arguments are no JSON stay calls.
 */
import { AIMessage, type BaseMessage, ToolMessage } from '@langchain/core/messages';
import type { Generation } from '../core/contracts.ts';
import type { Message, ToolCall } from '../core/types.ts';
import { argumentsText, isJsonObject, notText, tokensOf, unsupported } from './request.ts';

/** Where other chat models of LangChain keep thoughts too. */
const THOUGHTS = 'reasoning_content';
/** In which order calls were made, where LangChain keeps some of them apart. */
const ORDER = 'trainyard_call_ids';
/** Parts that repeat what the message holds elsewhere. */
const REPEATED: readonly string[] = ['tool_use', 'tool_call', 'reasoning', 'reasoning_content', 'thinking'];

const ROLES: Readonly<Record<string, 'system' | 'user'>> = { system: 'system', developer: 'system', human: 'user' };

/** Throws REQUEST_INVALID naming the part that is no text. */
export function messagesOf(messages: readonly BaseMessage[]): readonly Message[] {
  return messages.map((message, place): Message => {
    const at = `messages[${place}]`;
    if (AIMessage.isInstance(message)) return spoken(message, at);
    const name = message.name ? { name: message.name } : {};
    const content = textOf(message, at, '\n');
    if (ToolMessage.isInstance(message)) return { role: 'tool', content, tool_call_id: message.tool_call_id, ...name };
    const role = ROLES[message.type];
    if (role === undefined) throw unsupported(`${at}: a message`, `of type ${JSON.stringify(message.type)}`);
    return { role, content, ...name };
  });
}

function spoken(message: AIMessage, at: string): Message {
  const { tool_calls = [], invalid_tool_calls = [], additional_kwargs } = message;
  const calls = [...tool_calls, ...invalid_tool_calls].map(({ id = '', name = '', args }): ToolCall => {
    return { id, type: 'function', function: { name, arguments: argumentsText(args) } };
  });
  const order = additional_kwargs[ORDER];
  if (Array.isArray(order)) calls.sort((a, b) => order.indexOf(a.id) - order.indexOf(b.id));
  const thoughts = additional_kwargs[THOUGHTS];
  return {
    role: 'assistant',
    content: textOf(message, at, ''),
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
    ...(typeof thoughts === 'string' && thoughts !== '' ? { reasoning: thoughts } : {}),
  };
}

function textOf({ content }: BaseMessage, at: string, separator: string): string {
  if (typeof content === 'string') return content;
  const texts = content.flatMap((part) => {
    if (part.type === 'text' && 'text' in part) return [String(part.text)];
    if (REPEATED.includes(part.type)) return [];
    throw notText(`${at}: a part`, part.type);
  });
  return texts.join(separator);
}

/** Its id is the completion's: LangGraph takes messages with the same id for one. */
export function answerOf(generation: Generation): AIMessage {
  const { id, message, text, toolCalls, stopReason } = generation;
  const [valid, invalid] = [true, false].map((wanted) =>
    toolCalls.filter(({ function: { arguments: given } }) => isJsonObject(given) === wanted),
  );
  const tokens = tokensOf(generation);
  const said = new AIMessage({
    id,
    content: text,
    tool_calls: valid!.map(({ id: callId, function: { name, arguments: given } }) => ({
      id: callId,
      name,
      args: JSON.parse(given) as Record<string, unknown>,
      type: 'tool_call',
    })),
    invalid_tool_calls: invalid!.map(({ id: callId, function: { name, arguments: given } }) => ({
      id: callId,
      name,
      args: given,
      error: 'not a JSON object',
      type: 'invalid_tool_call',
    })),
    additional_kwargs: {
      ...(message.reasoning ? { [THOUGHTS]: message.reasoning } : {}),
      ...(invalid!.length > 0 && valid!.length > 0 ? { [ORDER]: toolCalls.map((call) => call.id) } : {}),
    },
    response_metadata: { finish_reason: stopReason === 'length' ? 'length' : toolCalls.length > 0 ? 'tool_calls' : 'stop' },
  });
  // The package's own type for this field comes out as `undefined` for messages without a declared structure.
  if (tokens) said.usage_metadata = usageOf(tokens.prompt, tokens.sampled) as never;
  return said;
}

const usageOf = (input: number, output: number) => ({
  input_tokens: input,
  output_tokens: output,
  total_tokens: input + output,
});
