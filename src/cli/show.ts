/** `trainyard show`: what a run kept, rollout by rollout, or one rollout turn by turn with the causes of its forks. */
import { styleText } from 'node:util';
import { TrainyardError } from '../core/errors.ts';
import { turnSummary } from '../core/turns.ts';
import type { Purpose, Trajectory } from '../core/types.ts';
import { exclusionsOf, newMessages, openStoreOf, type RolloutLine, rewrittenAt, rolloutLine, stepsIn } from '../run/inspect.ts';
import { count, figure } from './phrases.ts';
import { endingLines } from './rollout-text.ts';
import { printable } from './screen/width.ts';
import { turnText } from './turn-text.ts';

/** Parts and metrics of a rollout in the list; all of them are shown of one alone. */
const MOST_MEASURES = 6;

export interface ShowFlags {
  readonly forks: boolean;
  readonly purpose?: Purpose;
  readonly limit: number;
  readonly json: boolean;
}

export async function showCommand(path: string, rolloutId: string | undefined, flags: ShowFlags): Promise<number> {
  await using store = await openStoreOf(path);
  const steps = await stepsIn(store);
  const exclusions = await exclusionsOf(store);
  const inShort = (trajectory: Trajectory): RolloutLine => rolloutLine(trajectory, steps, exclusions);
  const out = (line: string, value: object): void => console.log(flags.json ? JSON.stringify(value) : line);
  if (rolloutId === undefined) {
    const lines = (await store.query(flags.purpose ? { purpose: flags.purpose } : {})).map(inShort);
    const shown = flags.forks ? lines.filter(({ forks }) => Object.keys(forks).length > 0) : lines;
    for (const line of shown.slice(-flags.limit)) out([rolloutText(line), ...measuresText(line)].join(' · '), line);
    if (!flags.json) console.log(total(lines, shown.length, flags.limit));
    return 0;
  }
  const trajectory = await store.read(rolloutId);
  if (trajectory === undefined) {
    throw new TrainyardError('FILE_NOT_FOUND', `${path} holds no rollout ${JSON.stringify(rolloutId)}`, {
      hint: `list them: trainyard show ${path}; rollouts are kept when they end`,
    });
  }
  const line = inShort(trajectory);
  if (!flags.json) console.log(rolloutText(line));
  for (const turn of trajectory.turns) {
    const summary = turnSummary(turn);
    const read = { rewritten: rewrittenAt(turn, trajectory.turns), prompt: newMessages(turn, trajectory.turns) };
    const excluded = line.excludedTurns[turn.index] ?? line.excluded;
    const mark = excluded === null ? '' : `\n    ${styleText('yellow', `excluded: ${printable(excluded)}`)}`;
    const missing =
      turn.request.messages.length === 0 && summary.promptTokens > 0
        ? '\n    (asked in tokens: there are no messages to show)'
        : '';
    out(`${turnText(summary, read)}${missing}${mark}`, { type: 'turn', ...summary, ...read, excluded });
  }
  const { outcome, grade, output, metadata, metrics, logs, unanswered } = trajectory;
  out(endingLines(trajectory).join('\n'), { type: 'ended', outcome, grade, output, metadata, metrics, logs, unanswered });
  return 0;
}

function rolloutText(line: RolloutLine): string {
  const { outcome, reward, samples, excluded, abandoned, failedCalls } = line;
  const turnsOut = Object.keys(line.excludedTurns).length;
  const causes = Object.entries(line.forks).map(([cause, n]) => (n === 1 ? cause : `${cause} ×${n}`));
  return [
    styleText('bold', printable(line.rolloutId)),
    `task ${printable(line.taskId)}`,
    outcome,
    reward === null ? 'not graded' : `reward ${reward}`,
    count(line.turns, 'turn'),
    ...(line.purpose === 'eval' || samples === null ? ['not for training'] : [count(samples, 'sample')]),
    ...(line.step === null ? [] : [`trained in step ${line.step}`]),
    ...(causes.length > 0 ? [styleText('yellow', `forks: ${causes.join(', ')}`)] : []),
    ...(failedCalls > 0 ? [styleText('yellow', `${count(failedCalls, 'call')} failed`)] : []),
    ...(abandoned > 0 ? [`${count(abandoned, 'call')} abandoned`] : []),
    ...(excluded === null ? [] : [styleText('yellow', `excluded: ${printable(excluded)}`)]),
    ...(turnsOut === 0 ? [] : [styleText('yellow', `${count(turnsOut, 'turn')} excluded`)]),
  ].join(' · ');
}

/** What its reward is made of, and what else the grader measured. */
function measuresText({ parts = {}, metrics = {} }: RolloutLine): readonly string[] {
  const all = Object.entries({ ...parts, ...metrics });
  const shown = all.slice(0, MOST_MEASURES).map(([name, value]) => `${printable(name)} ${figure(value, 2)}`);
  const more = all.length > shown.length ? [`+${all.length - shown.length} more`] : [];
  return shown.length === 0 ? [] : [styleText('dim', [...shown, ...more].join('  '))];
}

function total(lines: readonly RolloutLine[], shown: number, limit: number): string {
  const forked = lines.filter(({ forks }) => Object.keys(forks).length > 0).length;
  const hidden = shown > limit ? `; the last ${limit} are shown` : '';
  return `${count(lines.length, 'rollout')}, ${forked} with forks${hidden}`;
}
