/** Rollouts as lines for people: a turn with where its prompt comes from and what was said; how the rollout ended, and its reward. */
import { styleText } from 'node:util';
import { printableLine } from '../core/describe.ts';
import type { TurnSummary } from '../core/turns.ts';
import type { Grade, Message, Outcome, Reward, Trajectory, UnansweredCall } from '../core/types.ts';
import type { Rewritten } from '../run/inspect.ts';

/** Characters of a message that are shown: of one among many, and of a rollout that is read. */
const LONGEST = 160;
const LONGEST_READ = 4000;
/** Characters of a value that are shown. */
const LONGEST_VALUE = 400;
/** Calls without an answer that are shown: the last ones. */
const MOST_CALLS = 20;

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
      : [`said by ${printableLine(turn.model)}`, ...cut]),
    ...(fork === null ? [] : [styleText('yellow', `${fork.cause}${where}, instead of going on from turn ${fork.from}`)]),
    ...(turn.undelivered ? ['nobody got it'] : []),
    ...(turn.trainable ? [] : ['not trained']),
    ...(turn.formatError === null ? [] : [`not in the format asked for: ${printableLine(turn.formatError)}`]),
    ...(turn.ignored.length === 0 ? [] : [`without effect: ${turn.ignored.map(printableLine).join(', ')}`]),
  ];
  const { rewritten, prompt } = read ?? { rewritten: null, prompt: [] };
  const longest = read === undefined ? LONGEST : LONGEST_READ;
  const words = wordsOf(response, longest).map((line) => `    ${line}`);
  // After what was asked, no line at all would look like something left out.
  const answered = read !== undefined && words.length === 0 ? [styleText('dim', '    (said nothing)')] : words;
  return [
    `  ${styleText('bold', `${index}`)} ${printableLine(thread)} · ${marks.join(' · ')}`,
    ...(rewritten ? [changedLine('was', rewritten.was), changedLine('is', rewritten.is)] : []),
    ...prompt.flatMap((message) =>
      wordsOf(message, longest).map((line) => styleText('dim', `    ${message.role}: ${line.trimStart()}`)),
    ),
    ...answered,
  ].join('\n');
}

function changedLine(word: string, message: Message | null): string {
  const said = message === null ? 'nothing' : `${message.role}: ${wordsOf(message, LONGEST).join(' ').trim()}`;
  return styleText('dim', `    ${word.padEnd(3)} ${said}`);
}

function wordsOf({ reasoning, content, tool_calls: calls = [] }: Message, longest: number): readonly string[] {
  const said = [
    ...(reasoning ? [`(${reasoning})`] : []),
    ...(content ? [content] : []),
    ...calls.map((call) => `${call.function.name}(${call.function.arguments})`),
  ];
  return said.map((text) => shortened(text, longest));
}

function shortened(text: string, longest: number): string {
  return printableLine(text.length > longest ? `${text.slice(0, longest)}…` : text);
}

export function endingLines(trajectory: Trajectory): readonly string[] {
  const { outcome, grade, output, metadata, metrics, logs = [], unanswered = [], startedAt } = trajectory;
  return [
    ...unanswered.slice(-MOST_CALLS).map(callLine),
    ...logs.map(({ at, text }) => styleText('dim', `    ${((at - startedAt) / 1000).toFixed(2)} s  ${printableLine(text)}`)),
    `${styleText('bold', outcome.kind)}${outcomeDetail(outcome)} · ${gradeText(grade, outcome)}`,
    ...Object.entries({ output, metadata, metrics }).flatMap(([name, value]) => valueLine(name, value)),
  ];
}

function callLine({ thread, turnsBefore, promptTokens, sampledTokens, failure }: UnansweredCall): string {
  const what = failure ? styleText('yellow', `call failed, ${failure.code}: ${printableLine(failure.message)}`) : 'call given up';
  const when = turnsBefore === 0 ? 'before any turn' : `after turn ${turnsBefore - 1}`;
  return `  - ${printableLine(thread)} · ${what} · ${when} · ${promptTokens} + ${sampledTokens} tokens`;
}

const NO_TURNS = ' (it ended before any model call through ctx.model() was answered)';

function outcomeDetail(outcome: Outcome): string {
  switch (outcome.kind) {
    case 'completed':
      return '';
    case 'truncated':
      return ` by its limit of ${outcome.limit}`;
    case 'rejected':
      return `: ${printableLine(outcome.reason)}${outcome.reason === 'no_turns' ? NO_TURNS : ''}`;
    case 'failed':
      return ` ${outcome.code}: ${printableLine(outcome.message)}`;
  }
}

/** What a reward has by name, and the word before the name. */
const NAMED = [
  ['parts', ''],
  ['metrics', 'metric '],
  ['byTurn', 'turn '],
  ['byThread', 'thread '],
  ['byRole', 'role '],
] as const satisfies readonly (readonly [keyof Reward, string])[];

function gradeText(grade: Grade, outcome: Outcome): string {
  if (grade.kind === 'ungraded') return grade.why === outcome.kind ? 'not graded' : `not graded: ${printableLine(grade.why)}`;
  if (grade.kind === 'failed') return styleText('red', `grading failed, ${grade.code}: ${printableLine(grade.message)}`);
  const { value, source, success, untrained = [] } = grade.reward;
  const marks = [
    ...(source === 'workflow' ? ['by the workflow'] : []),
    ...(success === undefined ? [] : [success ? 'a success' : 'no success']),
    ...NAMED.flatMap(([kind, word]) =>
      Object.entries(grade.reward[kind] ?? {}).map(([name, number]) => printableLine(`${word}${name} ${number}`)),
    ),
    ...untrained.map((thread) => printableLine(`thread ${thread} not trained`)),
  ];
  return `reward ${value}${marks.length > 0 ? ` (${marks.join(', ')})` : ''}`;
}

function valueLine(name: string, value: unknown): readonly string[] {
  const isEmpty = typeof value === 'object' && value !== null && Object.keys(value).length === 0;
  if (value === undefined || isEmpty) return [];
  return [`  ${name}: ${shortened(typeof value === 'string' && value !== '' ? value : JSON.stringify(value), LONGEST_VALUE)}`];
}
