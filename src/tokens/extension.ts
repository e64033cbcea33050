/**
 * Decides whether a conversation's prompt can grow by appending. It can if the template writes earlier messages the same way once later ones
 * follow, and if what it writes after an assistant turn does not depend on messages long before.
 *
 * Both are found by rendering, never by a model's name. On loading, a few conversations are rendered whole and in parts, with and without
 * system message and tools; this catches templates that count, move or rewrite messages. At every extension, the new messages are rendered
 * after a short conversation of the same setting; this shows whether they make the template drop reasoning. Neither proves the property
 * for all conversations.
 */
import { isDeepStrictEqual } from 'node:util';
import { tried } from '../core/errors.ts';
import { parsedJson } from '../core/json.ts';
import type { Message, Tool } from '../core/types.ts';
import type { ChatTemplate, Setting } from './chat-template.ts';
import type { ResponseFormat } from './response-parser.ts';
import { type CallFormat, hermes, llama, mistral, qwen3Coder } from './tool-calls.ts';

// ── how a model writes ────────────────────────────────────────────────────────────────────────────────────────────────

// Finds out how a model writes tool calls, the white space before them, reasoning and tool-call ids, by letting its chat template render
// probes.

// ── the format of tool calls ──────────────────────────────────────────────────────────────────────────────────────────

// A model's tool-call format is the one whose reader finds the probe's call in what the template wrote for it. A template that writes no
// calls gets the Hermes format, which most models without a format of their own were taught.

export const FORMATS: readonly CallFormat[] = [hermes, qwen3Coder, llama, mistral];

export const PROBE_CALL = { name: 'probe', arguments: '{"key":"value"}' };

/** `spoken`: what the template writes for an assistant turn with only the probe's call; undefined if it refuses. */
function findFormat(spoken: string | undefined): CallFormat {
  return FORMATS.find((format) => spoken !== undefined && readsProbe(format, spoken)) ?? hermes;
}

/** Whether the first call in it is the probe's. */
export function readsProbe(format: CallFormat, spoken: string): boolean {
  const read = format.reader();
  let rest = spoken.trimStart();
  let said = false;
  while (rest !== '') {
    const step = read(rest, true, said ? 'within text' : 'start');
    if (step?.kind === 'calls') {
      const [call] = step.calls;
      return call?.name === PROBE_CALL.name && isDeepStrictEqual(parsedJson(call.arguments), parsedJson(PROBE_CALL.arguments));
    }
    rest = rest.slice(step?.length ?? rest.length);
    said = true;
  }
  return false;
}

/** No known template demands ids as long as this. */
const LONGEST_ID = 64;

const probeMessage: Message = { role: 'user', content: 'x' };
const SAID = 'Let me see.';
export const probeTool: Tool = {
  type: 'function',
  function: { name: PROBE_CALL.name, description: 'x', parameters: { type: 'object', properties: { key: { type: 'string' } } } },
};

/** The text of the last assistant turn, up to the control token that closes it; undefined if the template refuses. */
function turnText(template: ChatTemplate, messages: readonly Message[], tools: readonly Tool[]): string | undefined {
  const place = messages.findLastIndex((message) => message.role === 'assistant');
  const before = template.textOf(messages.slice(0, place), tools, true);
  const whole = template.textOf(messages, tools, false);
  if (before === undefined || whole === undefined) return undefined;
  let start = 0;
  while (start < before.length && before[start] === whole[start]) start++;
  const end = template.endOfTurn === undefined ? -1 : whole.indexOf(template.endOfTurn, start);
  return whole.slice(start, end === -1 ? whole.length : end);
}

export function responseFormatOf(template: ChatTemplate): ResponseFormat {
  const format = findFormat(turnText(template, callWithId('call00000'), [probeTool]));
  const beforeCalls = beforeCallsOf(template, format);
  if (!template.knowsThoughts) return { format, thinks: 'unmarked', beforeCalls };
  return { format, thinks: promptsThoughts(template) ? 'prompted' : 'tagged', beforeCalls };
}

/** The white space between text and a call; '' if the template writes no text before calls. */
function beforeCallsOf(template: ChatTemplate, format: CallFormat): string {
  const [, behind] = turnText(template, callWithId('call00000', SAID), [probeTool])?.split(SAID) ?? [];
  return behind !== undefined && readsProbe(format, behind) ? /^\s*/.exec(behind)![0] : '';
}

/** Whether the generation prompt itself opens the reasoning. */
export function promptsThoughts(template: ChatTemplate): boolean {
  return template.knowsThoughts && (template.textOf([probeMessage], [], true) ?? '').trimEnd().endsWith('<think>');
}

/** The only length of tool-call ids that the template accepts; undefined if it accepts any. */
export function toolCallIdLengthOf(template: ChatTemplate): number | undefined {
  const accepts = (length: number) => template.textOf(callWithId('a'.repeat(length)), [probeTool], true) !== undefined;
  if (accepts(LONGEST_ID)) return undefined;
  for (let length = 1; length < LONGEST_ID; length++) if (accepts(length)) return length;
  return undefined;
}

/** A conversation with the probe's call, after `content`, and its result. */
export function callWithId(id: string, content = ''): readonly Message[] {
  const tool_calls = [{ id, type: 'function' as const, function: PROBE_CALL }];
  return [
    probeMessage,
    { role: 'assistant', content, tool_calls },
    { role: 'tool', content: 'x', tool_call_id: id, name: PROBE_CALL.name },
  ];
}

/** The conversation up to and including the turn to extend. */
interface Spoken {
  readonly request?: { readonly messages: readonly Message[]; readonly tools: readonly Tool[] };
  readonly response?: Message;
}

interface Extension {
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
    [false, true].map((withTools) => verdictsOf(template, stopIds, withSystem, withTools)),
  );
  const grows = (setting: readonly Verdict[]) => setting.includes('grows') && !setting.includes('breaks');
  const all = verdicts.flat(2);
  const allGrow = grows(all) && !all.includes('rewrites');
  // The policy wrote ids of its own there; the template would write ours.
  const writesCallIds = written(template, called) !== written(template, OTHER_ID);
  const thoughts = thoughtsOf(template);

  return {
    always: allGrow && !writesCallIds && thoughts.always,
    after({ request, response }, next) {
      const setting = settingOf(request);
      // Without the request, it has to hold whatever was in it.
      const held = request ? grows(verdicts[Number(setting.system)]![Number(setting.tools)]!) : allGrow;
      if (!held || (writesCallIds && response?.tool_calls?.length)) return undefined;
      const after = template.encodeAfterTurn(next, setting);
      if (after === undefined || !template.knowsThoughts) return after?.ids;
      const earlier = thoughtIn(request?.messages ?? [], thoughts.endAtQuestions);
      if (response?.reasoning === '' && !thoughts.emptyKept) return undefined;
      if (earlier && !thoughts.earlierKept) return undefined;
      return (earlier || response?.reasoning) && !after.keepsReasoning ? undefined : after.ids;
    },
  };
}

/** Which reasoning the template still writes once other messages follow. */
interface Thoughts {
  /** Whether a user message removes the reasoning before it. */
  readonly endAtQuestions: boolean;
  /** An empty block, in a turn that a result follows. */
  readonly emptyKept: boolean;
  /** Those of turns before the last one. */
  readonly earlierKept: boolean;
  /** All of them, whatever follows. */
  readonly always: boolean;
}

function thoughtsOf(template: ChatTemplate): Thoughts {
  if (!template.knowsThoughts) return { endAtQuestions: false, emptyKept: true, earlierKept: true, always: true };
  const kept = (...turns: readonly Message[]) =>
    template.textOf([question, ...turns], [lookup], true)?.includes('THOUGHT') ?? false;
  const thinking = (turn: Message, reasoning = 'THOUGHT') => ({ ...turn, reasoning });
  const keptInTurn = (turn: Message, next: Message) =>
    [turn, thinking(turn, 'MORE')].every((later) => kept(thinking(turn), next, later, next));
  const endAtQuestions = !kept(thinking(said), question);
  const emptyKept = written(template, thinking(called, ''))?.includes('</think>') ?? false;
  const earlierKept = keptInTurn(called, result) && (endAtQuestions || keptInTurn(said, question));
  return { endAtQuestions, emptyKept, earlierKept, always: emptyKept && earlierKept && !endAtQuestions };
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

/** Whether one of these messages has reasoning, or one since the last user message. */
function thoughtIn(messages: readonly Message[], sinceQuestion: boolean): boolean {
  for (let i = messages.length - 1; i >= 0; i--) {
    if (sinceQuestion && messages[i]!.role === 'user') return false;
    if (messages[i]!.role === 'assistant' && messages[i]!.reasoning) return true;
  }
  return false;
}

/**
 * The outcome of a probe. `rewrites`: the extension is refused there, so nothing goes wrong. `breaks`: it would be granted and be wrong.
 * `refused`: the template does not accept the conversation (some accept no tools, or no system message).
 */
type Verdict = 'grows' | 'rewrites' | 'breaks' | 'refused';

function verdictsOf(
  template: ChatTemplate,
  stopIds: readonly number[],
  withSystem: boolean,
  withTools: boolean,
): readonly Verdict[] {
  const setting = { system: withSystem, tools: withTools, user: true, prefilled: false };
  // Where the prompt opens the thoughts, there is no turn without them.
  const thinking = promptsThoughts(template);
  return PROBES.map(({ messages, turn }) => {
    const spoken = messages.map((message) =>
      thinking && message.role === 'assistant' ? { ...message, reasoning: 'x' } : message,
    );
    const whole = withSystem ? [system, ...spoken] : spoken;
    return verdictOf(template, stopIds, whole, withTools ? [lookup] : [], turn + Number(withSystem), setting);
  });
}

/** Whether a fresh rendering is the prompt before the turn, the turn, and what `encodeAfterTurn` gives. */
function verdictOf(
  template: ChatTemplate,
  stopIds: readonly number[],
  messages: readonly Message[],
  tools: readonly Tool[],
  turn: number,
  setting: Setting,
): Verdict {
  const whole = tried(() => template.encode(messages, tools, true));
  if (whole === undefined) return 'refused';
  const after = template.encodeAfterTurn(messages.slice(turn + 1), setting)?.ids;
  if (after === undefined) return 'rewrites';
  const before = tried(() => template.encode(messages.slice(0, turn), tools, true));
  if (before === undefined || before.length + after.length > whole.length) return 'breaks';
  const turnEnd = whole.length - after.length;
  const spoken = whole.subarray(before.length, turnEnd);
  const grows =
    before.every((id, i) => id === whole[i]) &&
    after.every((id, i) => id === whole[turnEnd + i]) &&
    !spoken.some((id) => stopIds.includes(id));
  return grows ? 'grows' : 'breaks';
}

/** The text of a turn of calls that a result follows. */
function written(template: ChatTemplate, turn: Message): string | undefined {
  return turnText(template, [question, turn, { ...result, tool_call_id: turn.tool_calls![0]!.id }], [lookup]);
}
