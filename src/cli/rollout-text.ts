/** How a rollout ended, as lines for people: outcome, reward and what it is made of, and what the workflow said of itself. */
import { styleText } from 'node:util';
import type { Grade, Outcome, Reward, Trajectory, UnansweredCall } from '../core/types.ts';
import { printable } from './screen/width.ts';

/** Characters of a value that are shown. */
const LONGEST = 400;
/** Calls without an answer that are shown: the last ones. */
const MOST_CALLS = 20;

export function endingLines(trajectory: Trajectory): readonly string[] {
  const { outcome, grade, output, metadata, metrics, logs, unanswered = [], startedAt } = trajectory;
  return [
    ...unanswered.slice(-MOST_CALLS).map(callLine),
    ...(logs ?? []).map(({ at, text }) => styleText('dim', `    ${((at - startedAt) / 1000).toFixed(2)} s  ${printable(text)}`)),
    `${styleText('bold', outcome.kind)}${outcomeDetail(outcome)} · ${gradeText(grade, outcome)}`,
    ...named('output', output),
    ...named('metadata', metadata),
    ...named('metrics', metrics),
  ];
}

function callLine({ thread, turnsBefore, promptTokens, sampledTokens, failure }: UnansweredCall): string {
  const what = failure ? styleText('yellow', `call failed, ${failure.code}: ${printable(failure.message)}`) : 'call given up';
  const when = turnsBefore === 0 ? 'before any turn' : `after turn ${turnsBefore - 1}`;
  return `  - ${printable(thread)} · ${what} · ${when} · ${promptTokens} + ${sampledTokens} tokens`;
}

const NO_TURNS = ' (it ended before any model call through ctx.model() was answered)';

function outcomeDetail(outcome: Outcome): string {
  switch (outcome.kind) {
    case 'completed':
      return '';
    case 'truncated':
      return ` by its limit of ${outcome.limit}`;
    case 'rejected':
      return `: ${printable(outcome.reason)}${outcome.reason === 'no_turns' ? NO_TURNS : ''}`;
    case 'failed':
      return ` ${outcome.code}: ${printable(outcome.message)}`;
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
  if (grade.kind === 'ungraded') return grade.why === outcome.kind ? 'not graded' : `not graded: ${printable(grade.why)}`;
  if (grade.kind === 'failed') return styleText('red', `grading failed, ${grade.code}: ${printable(grade.message)}`);
  const { value, source, success, untrained = [] } = grade.reward;
  const marks = [
    ...(source === 'workflow' ? ['by the workflow'] : []),
    ...(success === undefined ? [] : [success ? 'a success' : 'no success']),
    ...NAMED.flatMap(([kind, word]) =>
      Object.entries(grade.reward[kind] ?? {}).map(([name, number]) => printable(`${word}${name} ${number}`)),
    ),
    ...untrained.map((thread) => printable(`thread ${thread} not trained`)),
  ];
  return `reward ${value}${marks.length > 0 ? ` (${marks.join(', ')})` : ''}`;
}

function isEmpty(value: unknown): boolean {
  return typeof value === 'object' && value !== null && Object.keys(value).length === 0;
}

function named(name: string, value: unknown): readonly string[] {
  if (value === undefined || isEmpty(value)) return [];
  const text = typeof value === 'string' && value !== '' ? value : JSON.stringify(value);
  return [`  ${name}: ${printable(text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text)}`];
}
