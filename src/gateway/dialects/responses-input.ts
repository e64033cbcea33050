/**
 * Items of the Responses API → messages.
 *
 * Reasoning, text and calls that follow each other are one assistant message, as they were one answer; items that we issued know which
 * answer they belong to, so two answers in a row stay two, and a call that a client moved behind the result of another comes back to its
 * own. What we issued reads back to exactly the message that was recorded.
 */
import { z } from 'zod';
import type { Message, ToolCall } from '../../core/types.ts';
import { invalid, refusal } from './parameters.ts';
import type { Item, ResponsesMemory } from './responses-memory.ts';

const TEXT_PARTS = ['input_text', 'output_text', 'text', 'reasoning_text', 'summary_text', 'refusal'];

const part = z.looseObject({ type: z.string(), text: z.string().optional(), refusal: z.string().optional() });
const content = z.union([z.string(), z.array(part)], 'expected a text or a list of parts');
const texts = z.array(part).nullish();
const id = z.string().nullish();
const KINDS = {
  message: z.object({ role: z.enum(['user', 'assistant', 'system', 'developer']), content, id }),
  function_call: z.object({ call_id: z.string(), name: z.string().min(1), arguments: z.string(), id }),
  function_call_output: z.object({ call_id: z.string(), output: content }),
  reasoning: z.object({ content: texts, summary: texts, encrypted_content: z.string().nullish(), id }),
  item_reference: z.object({ id: z.string() }),
};
type Kind = keyof typeof KINDS;

/** Throws REQUEST_INVALID naming the item, by its place in `input`. */
export function messagesOf(input: readonly unknown[], memory: ResponsesMemory): readonly Message[] {
  const entries: Entry[] = [];
  for (const [place, item] of input.entries()) read(item, `input.${place}`, entries, memory);
  return messagesIn(entries);
}

function read(raw: unknown, at: string, entries: Entry[], memory: ResponsesMemory): void {
  const kind = kindOf(raw, at);
  if (kind === 'item_reference') {
    const wanted = parsedAt(KINDS.item_reference, raw, at);
    const kept = memory.item(wanted.id);
    if (kept === undefined) throw invalid(`${at}.id`, `no item ${JSON.stringify(wanted.id)} was answered in this rollout`);
    read(kept.item, at, entries, memory);
  } else if (kind === 'function_call_output') {
    const { call_id, output } = parsedAt(KINDS.function_call_output, raw, at);
    entries.push({ role: 'tool', content: textOf(output, `${at}.output`, '\n'), tool_call_id: call_id });
  } else if (kind === 'function_call') {
    const call = parsedAt(KINDS.function_call, raw, at);
    const made = { name: call.name, arguments: call.arguments };
    spokenFor(entries, memory, call.id, call.call_id).calls.push({ id: call.call_id, type: 'function', function: made });
  } else if (kind === 'reasoning') {
    readReasoning(parsedAt(KINDS.reasoning, raw, at), at, entries, memory);
  } else {
    const { role, content: given, id: name } = parsedAt(KINDS.message, raw, at);
    const text = textOf(given, `${at}.content`, role === 'assistant' ? '' : '\n');
    if (role === 'assistant') {
      const spoken = spokenFor(entries, memory, name);
      spoken.content = (spoken.content ?? '') + text;
    } else entries.push({ role: role === 'user' ? 'user' : 'system', content: text });
  }
}

/** Clients that cannot show our reasoning send it back by name only. What others thought in secret says nothing here. */
function readReasoning(item: z.infer<typeof KINDS.reasoning>, at: string, entries: Entry[], memory: ResponsesMemory): void {
  const written = (given: z.infer<typeof texts>, field: string): string => textOf(given ?? [], `${at}.${field}`, '');
  const told = written(item.content, 'content') || written(item.summary, 'summary');
  const kept = memory.item(item.id ?? '') ?? memory.item(item.encrypted_content ?? '');
  const ours = kept?.item['type'] === 'reasoning' ? (kept.item as z.infer<typeof KINDS.reasoning>) : undefined;
  const text = told || written(ours?.content, 'content');
  if (text !== '') spokenFor(entries, memory, item.id, item.encrypted_content).reasoning += text;
}

function kindOf(raw: unknown, at: string): Kind {
  if (typeof raw !== 'object' || raw === null) throw invalid(at, 'expected an item, an object with a type');
  const { type, role, id: name } = raw as Item;
  const kind = type ?? (role === undefined && name !== undefined ? 'item_reference' : 'message');
  if (typeof kind === 'string' && Object.hasOwn(KINDS, kind)) return kind as Kind;
  throw refusal(`${at}.type`, kind, `use one of ${Object.keys(KINDS).join(', ')}`);
}

/** What the schema has at a place of the request; throws REQUEST_INVALID naming the field. */
export function parsedAt<T extends z.ZodType>(schema: T, raw: unknown, at: string): z.infer<T> {
  const result = schema.safeParse(raw);
  if (result.success) return result.data;
  const issue = result.error.issues[0]!;
  throw invalid([at, ...issue.path].join('.'), issue.message);
}

function textOf(given: z.infer<typeof content>, at: string, separator: string): string {
  if (typeof given === 'string') return given;
  return given
    .map(({ type, text, refusal: refused }, place) => {
      if (!TEXT_PARTS.includes(type)) throw refusal(`${at}.${place}.type`, type, 'the policy reads text only');
      const said = text ?? refused;
      if (said === undefined) throw invalid(`${at}.${place}.text`, 'expected a string');
      return said;
    })
    .join(separator);
}

/** The assistant message that an item belongs to: by the answer it is part of where we issued it, else by its place. */
function spokenFor(entries: Entry[], memory: ResponsesMemory, ...names: readonly (string | null | undefined)[]): Spoken {
  const answer = names.map((name) => memory.item(name ?? '')?.responseId).find((found) => found !== undefined);
  return spokenIn(entries, answer);
}

/** An assistant message in the making. */
export interface Spoken {
  readonly role: 'assistant';
  /** The answer that it is, where that is known. */
  answer: string | undefined;
  content: string | null;
  reasoning: string;
  readonly calls: ToolCall[];
}
export type Entry = Spoken | Message;

/** The message that an item of this answer belongs to; made, where there is none yet. */
export function spokenIn(entries: Entry[], answer: string | undefined): Spoken {
  const last = entries.at(-1);
  if (last && isSpoken(last) && (answer === undefined || last.answer === undefined || last.answer === answer)) {
    last.answer ??= answer;
    return last;
  }
  const before = entries.findLast((entry) => entry.role !== 'tool');
  if (answer !== undefined && before && isSpoken(before) && before.answer === answer) return before;
  const made: Spoken = { role: 'assistant', answer, content: null, reasoning: '', calls: [] };
  entries.push(made);
  return made;
}

export function messagesIn(entries: readonly Entry[]): readonly Message[] {
  return entries.map((entry) => (isSpoken(entry) ? messageOf(entry) : entry));
}

const isSpoken = (entry: Entry): entry is Spoken => 'calls' in entry;

const messageOf = ({ content, reasoning, calls }: Spoken): Message => ({
  role: 'assistant',
  content,
  ...(calls.length > 0 ? { tool_calls: calls } : {}),
  ...(reasoning === '' ? {} : { reasoning }),
});
