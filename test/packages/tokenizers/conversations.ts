/**
 * Conversations from a seed, for templates: short, and full of what goes wrong. The same seed gives the same conversation.
 */
import type { Message, Tool, ToolCall } from '../../../src/core/types.ts';

export interface Traits {
  /** Whether assistant turns may carry thoughts. */
  readonly thoughts: boolean;
  /** The most calls of one turn. */
  readonly calls: number;
  /** Whether roles may follow each other in any order. */
  readonly anyOrder: boolean;
}

export interface Conversation {
  readonly tools: readonly Tool[];
  readonly opening: readonly Message[];
  /** An assistant turn, and what follows it before the next. */
  readonly turns: readonly { readonly said: Message; readonly next: readonly Message[] }[];
}

/** Control tokens of all the tested models, tags that templates look for, and writing that tokenizers trip over. */
export const SNIPPETS = [
  [
    ...['Hello', 'how much is it?', 'Let me see.', 'ok', '3', ' ', '\n', '\n\n', '\t', '', 'a  b', "it's", '{"price": 3}'],
    ...['[1, 2]', '\\n', '"'],
  ],
  [
    ...['<|im_start|>', '<|im_end|>', '<|im_start|>system\n', '<|endoftext|>', '<|eot_id|>', '<|start_header_id|>'],
    '<|begin_of_text|>',
  ],
  [
    ...['<tool_call>', '</tool_call>', '<tool_response>', '</tool_response>', '<think>', '</think>'],
    ...['<think>\n\n</think>\n\n', '<|python_tag|>'],
  ],
  ['[INST]', '[/INST]', '[TOOL_CALLS]', '</s>', '<s>', '<|im_', '|im_end|>', '<', '>', '|'],
  [
    ...['👩‍👩‍👧‍👦', '🏳️‍🌈', '🙂', 'שלום', 'مرحبا', '\u202Eabc', 'e\u0301', 'Å', 'नमस्ते', '漢字', '한국어', 'ﬁ'],
    ...['\u00A0', '\u200B', '\u007F', '\uE000', 'ß', '𝒳'],
  ],
] as const;

type Lists = readonly (readonly string[])[];
type DrawText = () => string;
export type Random = () => number;

/** Numbers in [0, 1). */
export function seeded(seed: number): Random {
  let state = (seed * 2654435761 + 1) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export const pick = <T>(random: Random, from: readonly T[]): T => from[Math.floor(random() * from.length)]!;

/** Up to three snippets; the first list is as likely as the others together. */
export function drawText(random: Random, lists: Lists = SNIPPETS): string {
  const count = Math.floor(random() * 4);
  return Array.from({ length: count }, () => pick(random, random() < 0.5 ? lists[0]! : pick(random, lists))).join('');
}

export function drawConversation(random: Random, traits: Traits, lists: Lists = SNIPPETS): Conversation {
  const text = () => drawText(random, lists);
  const asked = !traits.anyOrder || random() < 0.95;
  const opening: Message[] = random() < 0.4 ? [{ role: 'system', content: text() }] : [];
  if (asked) opening.push({ role: 'user', content: text() });
  if (opening.length === 0) opening.push({ role: 'system', content: 'Begin.' });
  const length = 1 + Math.floor(random() * 2.5);
  const turns = Array.from({ length }, () => drawTurn(random, traits, asked, text));
  return { tools: random() < 0.5 ? drawTools(random, text) : [], opening, turns };
}

function drawTurn(random: Random, traits: Traits, asked: boolean, text: DrawText) {
  const calls =
    random() < 0.5 ? Array.from({ length: 1 + Math.floor(random() * traits.calls) }, (_, i) => drawCall(random, i, text)) : [];
  const said: Message = {
    role: 'assistant',
    // A space at its beginning becomes one token with the line break that the template writes before it.
    content: random() < 0.2 ? null : text().trimStart(),
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
    ...(traits.thoughts && asked && random() < 0.5 ? { reasoning: `I think ${text()}.` } : {}),
  };
  return { said, next: drawNext(random, traits, calls, text) };
}

function drawNext(random: Random, { anyOrder }: Traits, calls: readonly ToolCall[], text: DrawText): readonly Message[] {
  const next: Message[] = calls.map(({ id }) => ({
    role: 'tool',
    content: text(),
    ...(random() < 0.5 ? { tool_call_id: id } : {}),
  }));
  const user: Message = { role: 'user', content: text() };
  if (anyOrder && random() < 0.1) next.push({ role: 'tool', content: text() });
  if (anyOrder && random() < 0.1) next.push({ role: 'system', content: text() });
  if (anyOrder && random() < 0.05) next.push({ role: 'assistant', content: text() });
  if (next.length === 0 || (anyOrder && random() < 0.2)) next.push(user);
  return next;
}

function drawCall(random: Random, index: number, text: DrawText): ToolCall {
  const values = ['lamp', '', 3, 1.5, true, null, ['a', 2], { in: { deep: 'ß' } }, text()];
  const args = Object.fromEntries(Array.from({ length: Math.floor(random() * 3) }, (_, i) => [`key${i}`, pick(random, values)]));
  const name = pick(random, ['lookup', 'buy_it', 'f']);
  return { id: `call0000${index}`, type: 'function', function: { name, arguments: JSON.stringify(args) } };
}

function drawTools(random: Random, text: DrawText): readonly Tool[] {
  const lookup = {
    name: 'lookup',
    description: 'a price',
    parameters: { type: 'object', properties: { item: { type: 'string' } } },
  };
  const other = { name: 'buy_it', description: text(), parameters: { type: 'object', properties: {} } };
  return (random() < 0.5 ? [lookup] : [lookup, other]).map((tool) => ({ type: 'function' as const, function: tool }));
}
