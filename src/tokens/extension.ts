/**
 * Whether a conversation can grow by appending: what the template writes for earlier messages must not change once later ones follow,
 * and what follows an assistant turn must not depend on what came long before.
 *
 * Found in two ways, both by asking the template, never by a model's name. When it is loaded, a few conversations are rendered whole and
 * in parts, with and without system message and tools; that catches templates that count, move or rewrite. And at every extension, the
 * new messages are rendered after a short conversation of the same setting; that tells whether these very messages make the template
 * drop thoughts. Neither can prove the property for all conversations.
 */
import type { Message, Tool } from '../core/types.ts';
import type { ChatTemplate, Setting } from './chat-template.ts';
import { turnText } from './template-traits.ts';

/** What is known of the conversation up to and with the turn that is extended. */
export interface Spoken {
  readonly request?: { readonly messages: readonly Message[]; readonly tools: readonly Tool[] };
  readonly response?: Message;
}

export interface Extension {
  /** Whether it holds for all that was tried. */
  readonly always: boolean;
  /** Ids that follow the turn, from the token that closes it; undefined where earlier messages would be written differently. */
  after(spoken: Spoken, next: readonly Message[]): Int32Array | undefined;
}

const question: Message = { role: 'user', content: 'How much is it?' };
const said: Message = { role: 'assistant', content: 'Let me see.' };
const called: Message = {
  role: 'assistant',
  content: null,
  tool_calls: [{ id: 'call00000', type: 'function', function: { name: 'lookup', arguments: '{"item":"lamp"}' } }],
};
const result: Message = { role: 'tool', content: '{"price":3}', tool_call_id: 'call00000', name: 'lookup' };
const system: Message = { role: 'system', content: 'Be brief.' };
const lookup: Tool = {
  type: 'function',
  function: { name: 'lookup', description: 'a price', parameters: { type: 'object', properties: { item: { type: 'string' } } } },
};
const OTHER_ID = { ...called, tool_calls: [{ ...called.tool_calls![0]!, id: 'call00001' }] };

/** Conversations whose turn at `turn` is extended. */
const PROBES: readonly { readonly messages: readonly Message[]; readonly turn: number }[] = [
  { messages: [question, said, question], turn: 1 },
  { messages: [question, said, question, said, question], turn: 3 },
  { messages: [question, called, result], turn: 1 },
  { messages: [question, called, result, said, question], turn: 3 },
  { messages: [question, called, result, called, result], turn: 3 },
];

export function createExtension(template: ChatTemplate, stopIds: readonly number[]): Extension {
  const verdicts = [false, true].map((withSystem) =>
    [false, true].map((withTools) => verdictOf(template, stopIds, withSystem, withTools)),
  );
  const all = verdicts.flat();
  const none = !all.includes(true);
  // The policy wrote ids of its own there; the template would write ours.
  const writesCallIds = written(template, called) !== written(template, OTHER_ID);
  const thoughts = thoughtsOf(template);

  return {
    always: !none && !all.includes(false) && !writesCallIds && thoughts.always,
    after({ request, response }, next) {
      const setting = settingOf(request);
      // Without the request, it has to hold whatever was in it.
      const held = request ? verdicts[Number(setting.system)]![Number(setting.tools)] : !none && !all.includes(false);
      if (!held || (writesCallIds && response?.tool_calls?.length)) return undefined;
      const after = template.encodeAfterTurn(next, setting);
      if (after === undefined || !template.knowsThoughts) return after?.ids;
      const earlier = thoughtSinceQuestion(request?.messages ?? []);
      if (response?.reasoning === '' && !thoughts.emptyKept) return undefined;
      if (earlier && !thoughts.earlierKept) return undefined;
      return (earlier || response?.reasoning) && !after.keepsReasoning ? undefined : after.ids;
    },
  };
}

interface Thoughts {
  /** An empty block, behind a turn that a result follows. */
  readonly emptyKept: boolean;
  /** Those of a turn before the last one, with results in between. */
  readonly earlierKept: boolean;
  /** All of them, whatever follows. */
  readonly always: boolean;
}

function thoughtsOf(template: ChatTemplate): Thoughts {
  if (!template.knowsThoughts) return { emptyKept: true, earlierKept: true, always: true };
  const kept = (...turns: readonly Message[]) =>
    template.textOf([question, ...turns], [lookup], true)?.includes('THOUGHT') ?? false;
  const thinking = (turn: Message) => ({ ...turn, reasoning: 'THOUGHT' });
  const emptyKept = written(template, { ...called, reasoning: '' })?.includes('</think>') ?? false;
  const earlierKept = kept(thinking(called), result, { ...called, reasoning: 'MORE' }, result);
  return { emptyKept, earlierKept, always: emptyKept && earlierKept && kept(thinking(said), question) };
}

function settingOf(request: Spoken['request']): Setting {
  const messages = request?.messages ?? [question];
  return {
    system: messages[0]?.role === 'system',
    tools: (request?.tools.length ?? 0) > 0,
    user: messages.some((message) => message.role === 'user'),
    prefilled: messages.at(-1)?.role === 'assistant',
  };
}

/** Templates that drop thoughts drop them at the next question; those before the last one are gone already. */
function thoughtSinceQuestion(messages: readonly Message[]): boolean {
  for (let i = messages.length - 1; i >= 0; i--) {
    if (messages[i]!.role === 'user') return false;
    if (messages[i]!.role === 'assistant' && messages[i]!.reasoning) return true;
  }
  return false;
}

/** True if it held in every probe that the template accepts (some know no tools, or no system message); undefined if it accepts none. */
function verdictOf(
  template: ChatTemplate,
  stopIds: readonly number[],
  withSystem: boolean,
  withTools: boolean,
): boolean | undefined {
  const setting = { system: withSystem, tools: withTools, user: true, prefilled: false };
  const found = PROBES.map(({ messages, turn }) => {
    const whole = withSystem ? [system, ...messages] : messages;
    return holdsFor(template, stopIds, whole, withTools ? [lookup] : [], turn + Number(withSystem), setting);
  });
  if (found.includes(false)) return false;
  return found.includes(true) ? true : undefined;
}

/** Whether a fresh rendering is the prompt before the turn, the turn, and what `encodeAfterTurn` gives. */
function holdsFor(
  template: ChatTemplate,
  stopIds: readonly number[],
  messages: readonly Message[],
  tools: readonly Tool[],
  turn: number,
  setting: Setting,
): boolean | undefined {
  const whole = attempt(() => template.encode(messages, tools, true));
  if (whole === undefined) return undefined;
  const before = attempt(() => template.encode(messages.slice(0, turn), tools, true));
  const after = attempt(() => template.encodeAfterTurn(messages.slice(turn + 1), setting))?.ids;
  if (before === undefined || after === undefined || before.length + after.length > whole.length) return false;
  const turnEnd = whole.length - after.length;
  const spoken = whole.subarray(before.length, turnEnd);
  return (
    before.every((id, i) => id === whole[i]) &&
    after.every((id, i) => id === whole[turnEnd + i]) &&
    !spoken.some((id) => stopIds.includes(id))
  );
}

/** What the template writes for a turn of calls that a result follows. */
function written(template: ChatTemplate, turn: Message): string | undefined {
  return turnText(template, [question, turn, { ...result, tool_call_id: turn.tool_calls![0]!.id }], [lookup]);
}

function attempt<T>(fn: () => T): T | undefined {
  try {
    return fn();
  } catch {
    return undefined;
  }
}
