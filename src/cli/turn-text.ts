/** A turn as lines for people: where its prompt comes from, what was special, what was said. */
import { styleText } from 'node:util';
import type { TurnSummary } from '../core/turn-summary.ts';
import type { Message } from '../core/types.ts';
import type { Rewritten } from '../run/inspect.ts';
import { printable } from './screen/width.ts';

/** Characters of a message that are shown. */
const LONGEST = 160;

export function turnText(turn: TurnSummary, rewritten: Rewritten | null = null): string {
  const { index, thread, after, fork, promptTokens, sampledTokens, stopReason, response } = turn;
  const where = fork?.message === undefined ? '' : ` at message ${fork.message}`;
  const origin = after === null ? 'rendered afresh' : `extends turn ${after}`;
  const cut = stopReason === 'length' ? ['cut off'] : [];
  const marks = [
    ...(turn.model === null
      ? [`${promptTokens} + ${sampledTokens} tokens`, ...cut, origin]
      : [`said by ${printable(turn.model)}`, ...cut]),
    ...(fork === null ? [] : [styleText('yellow', `${fork.cause}${where}, instead of going on from turn ${fork.from}`)]),
    ...(turn.undelivered ? ['nobody got it'] : []),
    ...(turn.trainable ? [] : ['not trained']),
    ...(turn.formatError === null ? [] : [`not in the format asked for: ${printable(turn.formatError)}`]),
    ...(turn.ignored.length === 0 ? [] : [`without effect: ${turn.ignored.map(printable).join(', ')}`]),
  ];
  const changed = rewritten ? [changedLine('was', rewritten.was), changedLine('is', rewritten.is)] : [];
  return [
    `  ${styleText('bold', `${index}`)} ${printable(thread)} · ${marks.join(' · ')}`,
    ...changed,
    ...wordsOf(response),
  ].join('\n');
}

function changedLine(word: string, message: Message | null): string {
  const said =
    message === null
      ? 'nothing'
      : `${message.role}: ${wordsOf(message)
          .map((line) => line.trim())
          .join(' ')}`;
  return styleText('dim', `    ${word.padEnd(3)} ${said}`);
}

function wordsOf({ reasoning, content, tool_calls: calls = [] }: Message): readonly string[] {
  const said = [
    ...(reasoning ? [`(${reasoning})`] : []),
    ...(content ? [content] : []),
    ...calls.map((call) => `${call.function.name}(${call.function.arguments})`),
  ];
  return said.map((text) => `    ${printable(text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text)}`);
}
