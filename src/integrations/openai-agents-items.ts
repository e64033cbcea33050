/**
 * Items of the OpenAI Agents SDK ↔ messages.
 *
 * What one call of the policy gave becomes several items (what was thought, said, called) and must become one message again. Items that
 * we made carry the answer's id in theirs, so two answers in a row stay two; all others belong together where they are neighbours.
 *
 * Types are our own, and the SDK's fit them. What only OpenAI's servers could have made (hosted tools, computers, images) is refused.
 */
import type { Generation } from '../core/contracts.ts';
import { type Entry, messagesIn, type Spoken, spokenIn } from '../core/spoken.ts';
import type { Message } from '../core/types.ts';
import { argumentsText, notText, unsupported } from './request.ts';

/** An item of any kind; which fields it has depends on its type. */
export interface AnyItem {
  readonly type?: string | undefined;
  readonly id?: string | undefined;
  readonly role?: string;
  readonly content?: unknown;
  readonly rawContent?: unknown;
  readonly callId?: unknown;
  readonly name?: unknown;
  readonly arguments?: unknown;
  readonly output?: unknown;
}

export type AnswerItem =
  | { type: 'reasoning'; id: string; content: never[]; rawContent: { type: 'reasoning_text'; text: string }[] }
  | {
      type: 'message';
      id: string;
      role: 'assistant';
      status: 'completed' | 'incomplete';
      content: { type: 'output_text'; text: string }[];
    }
  | { type: 'function_call'; id: string; callId: string; name: string; arguments: string; status: 'completed' };

/** An answer's items. There is always one that is said or called. */
export function itemsOf({ id, message, text, toolCalls, stopReason }: Generation): AnswerItem[] {
  const items: AnswerItem[] = [];
  const next = (): string => `${id}#${items.length}`;
  const { reasoning } = message;
  if (reasoning)
    items.push({ type: 'reasoning', id: next(), content: [], rawContent: [{ type: 'reasoning_text', text: reasoning }] });
  if (text !== '' || toolCalls.length === 0) {
    const status = stopReason === 'length' ? 'incomplete' : 'completed';
    items.push({ type: 'message', id: next(), role: 'assistant', status, content: [{ type: 'output_text', text }] });
  }
  for (const { id: callId, function: call } of toolCalls) {
    items.push({ type: 'function_call', id: next(), callId, name: call.name, arguments: call.arguments, status: 'completed' });
  }
  return items;
}

/** Throws REQUEST_INVALID naming the item, by its place. */
export function messagesOf(instructions: string | undefined, input: string | readonly AnyItem[]): readonly Message[] {
  const entries: Entry[] = instructions ? [{ role: 'system', content: instructions }] : [];
  if (typeof input === 'string') entries.push({ role: 'user', content: input });
  else for (const [place, item] of input.entries()) read(item, `input[${place}]`, entries);
  return messagesIn(entries).map(said);
}

function read(item: AnyItem, at: string, entries: Entry[]): void {
  const kind = item.type ?? 'message';
  if (kind === 'message') readMessage(item, at, entries);
  else if (kind === 'function_call') {
    const call = { name: String(item.name), arguments: argumentsText(item.arguments) };
    spokenFor(entries, item.id).calls.push({ id: String(item.callId), type: 'function', function: call });
  } else if (kind === 'function_call_result') {
    entries.push({ role: 'tool', content: textOf(item.output, at, '\n'), tool_call_id: String(item.callId) });
  } else if (kind === 'reasoning') {
    const thought = textOf(item.rawContent ?? [], at, '') || textOf(item.content ?? [], at, '');
    if (thought !== '') spokenFor(entries, item.id).reasoning += thought;
  } else {
    throw unsupported(
      `${at}: an item`,
      `of type ${JSON.stringify(kind)}`,
      'the policy calls functions and says text, nothing else',
    );
  }
}

function readMessage({ role, content, id }: AnyItem, at: string, entries: Entry[]): void {
  if (role === 'assistant') {
    const spoken = spokenFor(entries, id);
    spoken.content = (spoken.content ?? '') + textOf(content, at, '');
  } else entries.push({ role: role === 'user' ? 'user' : 'system', content: textOf(content, at, '\n') });
}

function textOf(content: unknown, at: string, separator: string): string {
  if (typeof content === 'string') return content;
  const parts = (Array.isArray(content) ? content : [content]) as readonly {
    readonly type?: string;
    readonly text?: string;
    readonly refusal?: string;
  }[];
  return parts
    .map((part) => {
      const said = part?.text ?? part?.refusal;
      if (typeof said !== 'string') throw notText(`${at}: a part`, part?.type ?? typeof part);
      return said;
    })
    .join(separator);
}

/** The message that an item belongs to: its id names the answer, where we made it. */
function spokenFor(entries: Entry[], id: string | undefined): Spoken {
  return spokenIn(entries, /^(.+)#\d+$/.exec(id ?? '')?.[1]);
}

/** Who only thought said the empty text. */
const said = (message: Message): Message =>
  message.content === null && message.tool_calls === undefined ? { ...message, content: '' } : message;
