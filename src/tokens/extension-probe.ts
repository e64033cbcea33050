/**
 * Finds out whether a chat template lets a conversation grow by appending: what it writes for earlier messages must not depend
 * on later ones, and what follows an assistant turn must not depend on what came before.
 *
 * An empirical check on a few conversations, made once per template. It cannot prove the property for all of them; it catches
 * the templates that rewrite earlier turns or that open a turn in another way than they record it.
 */
import type { Message, Tool } from '../core/types.ts';
import type { ChatTemplate } from './chat-template.ts';

interface Probe {
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
  /** Place of the assistant turn that is extended. */
  readonly turn: number;
}

const question: Message = { role: 'user', content: 'How much is it?' };
const said: Message = { role: 'assistant', content: 'Let me see.' };
const called: Message = {
  role: 'assistant',
  content: null,
  tool_calls: [{ id: 'call00000', type: 'function', function: { name: 'lookup', arguments: '{"item":"lamp"}' } }],
};
const result: Message = { role: 'tool', content: '{"price":3}', tool_call_id: 'call00000', name: 'lookup' };
const lookup: Tool = {
  type: 'function',
  function: { name: 'lookup', description: 'a price', parameters: { type: 'object', properties: { item: { type: 'string' } } } },
};

const PROBES: readonly Probe[] = [
  { messages: [question, said, question], tools: [], turn: 1 },
  { messages: [{ role: 'system', content: 'Be brief.' }, question, said, question, said, question], tools: [lookup], turn: 2 },
  { messages: [question, said, question, said, question], tools: [], turn: 3 },
  { messages: [question, called, result], tools: [lookup], turn: 1 },
  { messages: [question, called, result, said, question], tools: [lookup], turn: 3 },
  { messages: [question, called, result, called, result], tools: [lookup], turn: 3 },
];

/** True if it held in every probe that the template accepts (some know no tools, or no system message), and in at least one. */
export function canExtendTurns(template: ChatTemplate, endOfTurn: string, stopIds: readonly number[]): boolean {
  const verdicts = PROBES.map((probe) => holdsFor(probe, template, endOfTurn, stopIds));
  return verdicts.includes(true) && !verdicts.includes(false);
}

/** Whether a fresh rendering is the prompt before the turn, the turn, and what `encodeAfterTurn` gives. */
function holdsFor(probe: Probe, template: ChatTemplate, endOfTurn: string, stopIds: readonly number[]): boolean | undefined {
  const { messages, tools, turn } = probe;
  const whole = attempt(() => template.encode(messages, tools, true));
  if (whole === undefined) return undefined;
  const before = attempt(() => template.encode(messages.slice(0, turn), tools, true));
  const after = attempt(() => template.encodeAfterTurn(messages.slice(turn + 1), endOfTurn));
  if (before === undefined || after === undefined || before.length + after.length > whole.length) return false;
  const turnEnd = whole.length - after.length;
  const spoken = whole.subarray(before.length, turnEnd);
  return (
    before.every((id, i) => id === whole[i]) &&
    after.every((id, i) => id === whole[turnEnd + i]) &&
    !spoken.some((id) => stopIds.includes(id))
  );
}

function attempt<T>(fn: () => T): T | undefined {
  try {
    return fn();
  } catch {
    return undefined;
  }
}
