/**
 * The content of Anthropic's messages ↔ ours: text, tool calls, tool results and thinking; everything else is refused by name, since
 * the policy could not read it.
 *
 * A string and one text block are the same. An assistant's blocks are one message, its texts joined as they were sampled. A user's
 * tool results are messages of their own, in the order given, and what texts stand between them too. Markers (`cache_control`,
 * `citations`, `is_error`, `signature`) are not looked at: where a client puts them changes from turn to turn.
 */
import { z } from 'zod';
import type { Message, ToolCall } from '../../core/types.ts';
import { invalid, refusal } from './parameters.ts';

const block = z.looseObject({ type: z.string() });
export const content = z.union([z.string(), z.array(block)]);

type Block = z.infer<typeof block>;
type Content = z.infer<typeof content>;

interface Conversation {
  readonly system?: Content | null | undefined;
  readonly messages: readonly { readonly role: 'user' | 'assistant' | 'system'; readonly content: Content }[];
}

export function messagesOf({ system, messages }: Conversation): readonly Message[] {
  const last = messages.length - 1;
  if (messages[last]?.role === 'assistant') {
    throw invalid(
      `messages.${last}.role`,
      'the conversation ends with the assistant',
      'an answer that was begun is not continued',
    );
  }
  const instructions = system == null ? '' : textOf(system, 'system');
  return [
    ...(instructions === '' ? [] : [{ role: 'system' as const, content: instructions }]),
    ...messages.flatMap(({ role, content: given }, i) => {
      const at = `messages.${i}.content`;
      if (role === 'user') return userMessages(given, at);
      return role === 'assistant' ? [assistantMessage(given, at)] : [{ role, content: textOf(given, at) }];
    }),
  ];
}

function userMessages(given: Content, at: string): readonly Message[] {
  const messages: Message[] = [];
  let texts: string[] = [];
  const endText = (): void => {
    if (texts.length > 0) messages.push({ role: 'user', content: texts.join('\n') });
    texts = [];
  };
  for (const [i, one] of blocksOf(given).entries()) {
    const place = `${at}.${i}`;
    if (one.type === 'text') texts.push(stringIn(one, 'text', place));
    else if (one.type === 'tool_result') {
      endText();
      messages.push(toolMessage(one, place));
    } else throw unreadable(one, place);
  }
  endText();
  return messages.length > 0 ? messages : [{ role: 'user', content: '' }];
}

function toolMessage(result: Block, at: string): Message {
  const given = content.nullish().safeParse(result.content);
  if (!given.success) throw invalid(`${at}.content`, 'expected a string or a list of blocks');
  return { role: 'tool', content: textOf(given.data ?? '', `${at}.content`), tool_call_id: stringIn(result, 'tool_use_id', at) };
}

function assistantMessage(given: Content, at: string): Message {
  let text = '';
  let reasoning = '';
  const calls: ToolCall[] = [];
  for (const [i, one] of blocksOf(given).entries()) {
    const place = `${at}.${i}`;
    if (one.type === 'text') text += stringIn(one, 'text', place);
    else if (one.type === 'thinking') reasoning += stringIn(one, 'thinking', place);
    else if (one.type === 'tool_use') calls.push(toolCall(one, place));
    else throw unreadable(one, place);
  }
  return {
    role: 'assistant',
    content: text === '' && calls.length > 0 ? null : text,
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
    ...(reasoning === '' ? {} : { reasoning }),
  };
}

function toolCall(use: Block, at: string): ToolCall {
  const { input = {} } = use;
  const said = { name: stringIn(use, 'name', at), arguments: JSON.stringify(input) };
  return { id: stringIn(use, 'id', at), type: 'function', function: said };
}

/** Text that nobody sampled; blocks are lines of it. */
function textOf(given: Content, at: string): string {
  if (typeof given === 'string') return given;
  return given
    .map((one, i) => {
      if (one.type !== 'text') throw unreadable(one, `${at}.${i}`);
      return stringIn(one, 'text', `${at}.${i}`);
    })
    .join('\n');
}

const blocksOf = (given: Content): readonly Block[] => (typeof given === 'string' ? [{ type: 'text', text: given }] : given);

function stringIn(one: Block, name: string, at: string): string {
  const value = one[name];
  if (typeof value === 'string') return value;
  throw invalid(`${at}.${name}`, `expected a string in a block of type ${JSON.stringify(one.type)}`);
}

function unreadable({ type }: Block, at: string): Error {
  return refusal(`${at}.type`, type, 'here the policy reads text, and tool calls and their results where they belong');
}
