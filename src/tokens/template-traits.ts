/**
 * How a model writes, found from its chat template when it is loaded: the format of tool calls and the white space before them, where
 * thoughts stand, and what tool-call ids must look like. Each by asking the template to render something and looking at what it wrote.
 */

import { isDeepStrictEqual } from 'node:util';
import type { Message, Tool } from '../core/types.ts';
import type { ChatTemplate } from './chat-template.ts';
import { qwen3Coder } from './qwen3-coder-calls.ts';
import type { ResponseFormat } from './response-parser.ts';
import { type CallFormat, hermes, llama, mistral, parseOr } from './tool-calls.ts';

// ── the format of tool calls ──────────────────────────────────────────────────────────────────────────────────────────

// Which tool-call format a model has: the one whose reader finds in the template's own words the call that the template was given.
//
// Looks at what the template writes, never at the model's name. A template that writes no calls gets the Hermes format, which is what
// most models without one of their own were taught.

export const FORMATS: readonly CallFormat[] = [hermes, qwen3Coder, llama, mistral];

export const PROBE_CALL = { name: 'probe', arguments: '{"key":"value"}' };

/** `spoken`: what the template writes for an assistant turn that is the probe's call and nothing else; undefined if it refuses to. */
export function findFormat(spoken: string | undefined): CallFormat {
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
      return call?.name === PROBE_CALL.name && isDeepStrictEqual(parseOr(call.arguments), parseOr(PROBE_CALL.arguments));
    }
    rest = rest.slice(step?.length ?? rest.length);
    said = true;
  }
  return false;
}

/** Longer ids than any template is known to demand. */
const LONGEST_ID = 64;

const question: Message = { role: 'user', content: 'x' };
const SAID = 'Let me see.';
export const probeTool: Tool = {
  type: 'function',
  function: { name: PROBE_CALL.name, description: 'x', parameters: { type: 'object', properties: { key: { type: 'string' } } } },
};

/** What is written for the last assistant turn, up to the control token that closes it; undefined if the template refuses. */
export function turnText(template: ChatTemplate, messages: readonly Message[], tools: readonly Tool[]): string | undefined {
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

/** None where the template writes no text before calls. */
function beforeCallsOf(template: ChatTemplate, format: CallFormat): string {
  const [, behind] = turnText(template, callWithId('call00000', SAID), [probeTool])?.split(SAID) ?? [];
  return behind !== undefined && readsProbe(format, behind) ? /^\s*/.exec(behind)![0] : '';
}

/** Whether the generation prompt opens the thoughts itself. */
export function promptsThoughts(template: ChatTemplate): boolean {
  return template.knowsThoughts && (template.textOf([question], [], true) ?? '').trimEnd().endsWith('<think>');
}

/** The one length of tool-call ids that the template accepts; undefined if it does not mind. */
export function toolCallIdLengthOf(template: ChatTemplate): number | undefined {
  const accepts = (length: number) => template.textOf(callWithId('a'.repeat(length)), [probeTool], true) !== undefined;
  if (accepts(LONGEST_ID)) return undefined;
  for (let length = 1; length < LONGEST_ID; length++) if (accepts(length)) return length;
  return undefined;
}

/** A question, the probe's call, behind text if there is any, and its result. */
export function callWithId(id: string, content = ''): readonly Message[] {
  const tool_calls = [{ id, type: 'function' as const, function: PROBE_CALL }];
  return [
    question,
    { role: 'assistant', content, tool_calls },
    { role: 'tool', content: 'x', tool_call_id: id, name: PROBE_CALL.name },
  ];
}
