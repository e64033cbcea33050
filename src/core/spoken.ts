/**
 * Items → messages. What one answer of the policy gave (what was thought, said, called) comes back as several items, and must become one
 * message again: items of one answer belong together, and those of nobody knows which answer do where they are neighbours. So two
 * answers in a row stay two, and a call that was moved behind the result of another comes back to its own.
 */
import type { Message, ToolCall } from './types.ts';

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
