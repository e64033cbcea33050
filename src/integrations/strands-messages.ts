/**
 * Messages of Strands Agents → ours, such that what the policy said comes back as it was recorded.
 *
 * Types are our own, and the SDK's fit them. Cache points and guard content say nothing to the policy; images, documents and their like
 * are refused.
 */
import type { Message, ToolCall } from '../core/types.ts';
import { argumentsText, notText } from './request.ts';

/** A block of any kind; which fields it has depends on its type. */
export interface AnyBlock {
  readonly type: string;
  readonly text?: unknown;
  readonly name?: string;
  readonly toolUseId?: string;
  readonly input?: unknown;
  readonly status?: string;
  readonly content?: unknown;
  readonly json?: unknown;
}
export interface StrandsMessage {
  readonly role: string;
  readonly content: readonly AnyBlock[];
}

const SILENT: readonly string[] = ['cachePointBlock', 'guardContentBlock'];

/** Throws REQUEST_INVALID naming the block that is no text. */
export function messagesOf(
  system: string | readonly AnyBlock[] | undefined,
  messages: readonly StrandsMessage[],
): readonly Message[] {
  const instructions = typeof system === 'string' ? system : textsIn(system ?? [], 'systemPrompt').join('');
  return [
    ...(instructions.trim() === '' ? [] : [{ role: 'system' as const, content: instructions }]),
    ...messages.flatMap(({ role, content }, place) => (role === 'assistant' ? spoken(content, place) : heard(content, place))),
  ];
}

/** Results come first: they answer the calls of the message before. */
function heard(blocks: readonly AnyBlock[], place: number): readonly Message[] {
  const at = `messages[${place}]`;
  const results = blocks.filter(({ type }) => type === 'toolResultBlock');
  const texts = textsIn(
    blocks.filter(({ type }) => type !== 'toolResultBlock'),
    at,
  );
  return [
    ...results.map((block) => resultOf(block, at)),
    ...(texts.length > 0 ? [{ role: 'user' as const, content: texts.join('\n') }] : []),
  ];
}

function spoken(blocks: readonly AnyBlock[], place: number): readonly Message[] {
  const calls = blocks.filter(({ type }) => type === 'toolUseBlock').map(callOf);
  const reasoning = blocks.filter(({ type }) => type === 'reasoningBlock').map(({ text }) => String(text ?? ''));
  const others = blocks.filter(({ type }) => type !== 'toolUseBlock' && type !== 'reasoningBlock');
  const content = textsIn(others, `messages[${place}]`).join('');
  return [
    {
      role: 'assistant',
      content: content === '' && calls.length > 0 ? null : content,
      ...(calls.length > 0 ? { tool_calls: calls } : {}),
      ...(reasoning.join('') === '' ? {} : { reasoning: reasoning.join('') }),
    },
  ];
}

const callOf = ({ toolUseId, name, input }: AnyBlock): ToolCall => ({
  id: toolUseId ?? '',
  type: 'function',
  function: { name: name ?? '', arguments: argumentsText(input) },
});

function resultOf({ toolUseId, status, content }: AnyBlock, at: string): Message {
  const blocks = Array.isArray(content) ? (content as readonly AnyBlock[]) : [];
  const text = textsIn(blocks, `${at}: the result of ${toolUseId}`).join('');
  return { role: 'tool', content: status === 'error' ? `[ERROR] ${text}` : text, tool_call_id: toolUseId ?? '' };
}

function textsIn(blocks: readonly AnyBlock[], at: string): readonly string[] {
  return blocks.flatMap((block) => {
    if (block.type === 'textBlock') return [String(block.text ?? '')];
    if (block.type === 'jsonBlock') return [JSON.stringify(block.json) ?? ''];
    if (SILENT.includes(block.type)) return [];
    throw notText(`${at}: a block`, block.type);
  });
}
