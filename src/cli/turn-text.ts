/** A turn as lines for people: where its prompt comes from, what was special, what was said. */
import { styleText } from 'node:util';
import type { TurnSummary } from '../core/turns.ts';
import type { Message } from '../core/types.ts';
import type { Rewritten } from '../run/inspect.ts';
import { printable } from './screen/width.ts';

/** Characters of a message that are shown: of one among many, and of a rollout that is read. */
const LONGEST = 160;
const LONGEST_READ = 4000;

/** What is shown of a turn to somebody who reads the whole rollout. */
export interface Read {
  readonly rewritten: Rewritten | null;
  /** What it was asked that is new. */
  readonly prompt: readonly Message[];
}

export function turnText(turn: TurnSummary, read?: Read): string {
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
  const rewritten = read?.rewritten ?? null;
  const changed = rewritten ? [changedLine('was', rewritten.was), changedLine('is', rewritten.is)] : [];
  const longest = read === undefined ? LONGEST : LONGEST_READ;
  const words = wordsOf(response, longest);
  // After what was asked, no line at all would look like something left out.
  const answered = read !== undefined && words.length === 0 ? [styleText('dim', '    (said nothing)')] : words;
  return [
    `  ${styleText('bold', `${index}`)} ${printable(thread)} · ${marks.join(' · ')}`,
    ...changed,
    ...(read?.prompt ?? []).flatMap((message) =>
      wordsOf(message, longest).map((line) => styleText('dim', `    ${message.role}: ${line.trimStart()}`)),
    ),
    ...answered,
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

function wordsOf({ reasoning, content, tool_calls: calls = [] }: Message, longest = LONGEST): readonly string[] {
  const said = [
    ...(reasoning ? [`(${reasoning})`] : []),
    ...(content ? [content] : []),
    ...calls.map((call) => `${call.function.name}(${call.function.arguments})`),
  ];
  return said.map((text) => `    ${printable(text.length > longest ? `${text.slice(0, longest)}…` : text)}`);
}
