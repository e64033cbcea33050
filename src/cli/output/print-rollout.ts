/**
 * A rollout as text: turns with the origin of their prompt and what is new in it, and how it ended. `try`, `show` and `replay` share it, and
 * the fields that they print with `--json`.
 */
import { styleText } from 'node:util';
import { printableLine, shortLine } from '../../core/describe.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { OVERFLOW_HINT } from '../../core/policy.ts';
import { overflowOf, type TurnSummary, turnSummary } from '../../core/turns.ts';
import type { Grade, LogLine, Message, Outcome, Reward, Trajectory, Turn, UnansweredCall } from '../../core/types.ts';
import type { RolloutObserver } from '../../rollout/runner.ts';
import { newMessages, type Rewritten, rewrittenAt } from '../../run/inspect.ts';
import { type Say, saying } from './print.ts';
import { asCalled, took } from './text.ts';

/** Characters of a message, in a list and in a rollout shown in full. */
const LONGEST = 160;
const LONGEST_READ = 4000;
/** Characters of a value. */
const LONGEST_VALUE = 400;
/** Shows only the last unanswered calls. */
const MOST_CALLS = 20;

type Shown = Parameters<Say>;

/** `turns`: those of the rollout so far. `excluded`: why the turn is left out of training. */
export function shownTurn(turn: Turn, turns: readonly Turn[], excluded: string | null = null): Shown {
  const summary = turnSummary(turn);
  const read = { rewritten: rewrittenAt(turn, turns), prompt: newMessages(turn, turns) };
  const isOfTokens = turn.request.messages.length === 0 && summary.promptTokens > 0;
  const lines = [
    turnText(summary, read),
    ...(isOfTokens ? ['    (asked in tokens: there are no messages to show)'] : []),
    ...(excluded === null ? [] : [`    ${styleText('yellow', `excluded: ${printableLine(excluded)}`)}`]),
  ];
  return [lines, { type: 'turn', ...summary, ...read, excluded }];
}

export function shownEnding(trajectory: Trajectory): Shown {
  const { outcome, grade, output, metadata, metrics, logs, unanswered } = trajectory;
  return [endingLines(trajectory), { type: 'ended', outcome, grade, output, metadata, metrics, logs, unanswered }];
}

/** Shows turns, prints and what the workflow threw as they come. `ended`: the rest, without what was printed. */
export function liveRollout(json: boolean) {
  const say = saying(json);
  const turns: Turn[] = [];
  let hint: readonly string[] = [];
  const observer: RolloutObserver = {
    recorded: (_, turn) => {
      turns.push(turn);
      say(...shownTurn(turn, turns));
    },
    printed: (line) => say([logText(line)], { type: 'print', ...line }),
    threw: (thrown) => {
      const stack = thrown instanceof Error ? (thrown.stack ?? thrown.message) : messageOf(thrown);
      if (thrown instanceof TrainyardError && thrown.hint !== undefined) hint = [`  ${printableLine(asCalled(thrown.hint))}`];
      const lines = ownFrames(stack).map((line) => styleText('red', printableLine(line)));
      if (json || lines.length > 0) say(lines, { type: 'threw', stack });
    },
  };
  const ended = (trajectory: Trajectory): Shown => {
    const [, value] = shownEnding(trajectory);
    const logs = (trajectory.logs ?? []).filter(({ from }) => from !== 'workflow');
    return [[...endingLines({ ...trajectory, logs }), ...hint], value];
  };
  return { say, observer, ended };
}

const OURS = [new URL('../..', import.meta.url).href, '/node_modules/commander/'];

/** The stack without Trainyard's frames. Empty if no user frame is left; the ending reports the error anyway. */
function ownFrames(stack: string): readonly string[] {
  const isOurs = (line: string): boolean => /^\s+at /.test(line) && OURS.some((place) => line.includes(place));
  const lines = stack.split('\n').filter((line) => !isOurs(line));
  return lines.some((line) => /^\s+at .*[:(/]/.test(line) && !line.includes('node:internal')) ? lines : [];
}

/** `read`: shows the turn in full, including new messages of its prompt. */
export function turnText(
  turn: TurnSummary,
  read?: { readonly rewritten: Rewritten | null; readonly prompt: readonly Message[] },
): string {
  const { index, thread, after, fork, promptTokens, sampledTokens, stopReason, response } = turn;
  const where = fork?.message === undefined ? '' : ` at message ${fork.message}`;
  const causes = fork === null ? '' : [fork.cause, ...(fork.also ?? [])].join(' and ');
  const instead = fork?.cause === 'side_call' ? 'next to' : 'instead of going on from';
  const origin = after === null ? 'rendered afresh' : `extends turn ${after}`;
  const cut = stopReason === 'length' ? ['cut off'] : [];
  const tokens = `${promptTokens} + ${sampledTokens} tokens`;
  const marks = [
    ...(turn.model === null
      ? [tokens, ...cut, origin]
      : [`said by ${printableLine(turn.model)}`, ...(turn.usage === null ? [] : [tokens]), took(turn.seconds), ...cut]),
    ...(fork === null ? [] : [styleText('yellow', `${causes}${where}, ${instead} turn ${fork.from}`)]),
    ...(turn.undelivered ? ['nobody got it'] : []),
    ...(turn.trainable ? [] : ['not trained']),
    ...(turn.formatError === null ? [] : [`not in the format asked for: ${printableLine(turn.formatError)}`]),
    ...(turn.ignored.length === 0 ? [] : [`without effect: ${turn.ignored.map(printableLine).join(', ')}`]),
  ];
  const { rewritten, prompt } = read ?? { rewritten: null, prompt: [] };
  const longest = read === undefined ? LONGEST : LONGEST_READ;
  const words = wordsOf(response, longest).map((line) => `    ${line}`);
  // After a prompt, an empty response would look like missing output.
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
  return said.map((text) => shortLine(text, longest));
}

export function endingLines(trajectory: Trajectory): readonly string[] {
  const { outcome, grade, output, metadata, metrics, logs = [], unanswered = [], startedAt } = trajectory;
  const sizes = outcome.kind === 'truncated' && outcome.limit === 'context' ? printableLine(overflowOf(trajectory, ': ')) : '';
  const todo = sizes === '' ? '' : `${sizes} (${OVERFLOW_HINT})`;
  return [
    ...unanswered.slice(-MOST_CALLS).map(callLine),
    ...logs.map((line) => logText(line, startedAt)),
    `${styleText('bold', outcome.kind)}${outcomeDetail(outcome)}${todo} · ${gradeText(grade, outcome)}`,
    ...Object.entries({ output, metadata, metrics }).flatMap(([name, value]) => valueLine(name, value)),
  ];
}

function logText({ at, text, from }: LogLine, startedAt?: number): string {
  const when = startedAt === undefined ? '' : `${((at - startedAt) / 1000).toFixed(2)} s  `;
  const who = from === undefined ? '' : `the ${from}: `;
  return styleText('dim', `    ${when}${who}${printableLine(text)}`);
}

function callLine({ thread, turnsBefore, promptTokens, sampledTokens, failure }: UnansweredCall): string {
  const failed = failure && printableLine(`call failed, ${failure.code}: ${failure.message}`);
  const what = failed ? styleText('yellow', failed) : 'call given up';
  const when = turnsBefore === 0 ? 'before any turn' : `after turn ${turnsBefore - 1}`;
  return `  - ${printableLine(thread)} · ${what} · ${when} · ${promptTokens} + ${sampledTokens} tokens`;
}

const NO_TURNS = ' (it ended before any model call through ctx.model() was answered)';

function outcomeDetail(outcome: Outcome): string {
  if (outcome.kind === 'truncated') return ` by its limit of ${outcome.limit}`;
  if (outcome.kind === 'failed') return ` ${printableLine(`${outcome.code}: ${outcome.message}`)}`;
  if (outcome.kind === 'completed') return '';
  return `: ${printableLine(outcome.reason)}${outcome.reason === 'no_turns' ? NO_TURNS : ''}`;
}

/** Named values of a reward, with the prefix for each name. */
const NAMED = [
  ['parts', ''],
  ['metrics', 'metric '],
  ['byTurn', 'turn '],
  ['byThread', 'thread '],
  ['byRole', 'role '],
] as const satisfies readonly (readonly [keyof Reward, string])[];

export function gradeText(grade: Grade, outcome: Outcome): string {
  if (grade.kind === 'ungraded') return grade.why === outcome.kind ? 'not graded' : `not graded: ${printableLine(grade.why)}`;
  if (grade.kind === 'failed') return styleText('red', `grading failed, ${printableLine(`${grade.code}: ${grade.message}`)}`);
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
  return [`  ${name}: ${shortLine(typeof value === 'string' && value !== '' ? value : JSON.stringify(value), LONGEST_VALUE)}`];
}
