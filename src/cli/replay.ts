/**
 * `trainyard replay`: runs a stored rollout's workflow again against the recorded answers, or with `--grade` only grades it again, and shows
 * what differs. Under a debugger the workflow runs in this process and without a deadline. The exit code is 1 if anything differs.
 */
import { url as debuggerUrl } from 'node:inspector';
import { styleText } from 'node:util';
import { type Replay, type RequestDifference, replay, type StoredRollout, storedRollout } from '../audit/replay.ts';
import { shortLine } from '../core/describe.ts';
import { type RunEvent, warnBy } from '../core/events.ts';
import { defined } from '../core/json.ts';
import type { Grade } from '../core/types.ts';
import { guarded } from './guarded.ts';
import { describe } from './output/print.ts';
import { gradeText, liveRollout } from './output/print-rollout.ts';
import { count } from './output/text.ts';

interface ReplayFlags {
  readonly grade?: boolean;
  readonly entry?: string;
  readonly store?: string;
  readonly json: boolean;
}

const DEADLINE_MS = 24 * 3_600_000;

export async function replayCommand(run: string, rolloutId: string, flags: ReplayFlags): Promise<number> {
  const { json, entry, store, grade = false } = flags;
  const isDebugged = debuggerUrl() !== undefined;
  const { say, observer, ended } = liveRollout(json);
  const emit = (event: RunEvent): void => {
    // The ending reports these.
    const isSaid = event.type === 'warning' && event.message.startsWith(`rollout ${rolloutId}: `);
    if (!isSaid) say(describe(event), event);
  };
  const warn = warnBy(emit);
  const isolation = isDebugged ? ('none' as const) : undefined;
  const guard = { steps: false };
  const stored = await guarded(emit, guard, () => storedRollout(run, rolloutId, defined({ entry, isolation, store })));
  for (const { code, message } of stored.plan.warnings) warn(code, message);
  const result = await guarded(emit, guard, ({ stop }) =>
    replay(isDebugged ? withoutDeadline(stored) : stored, { warn, stop, observer, grade }),
  );
  say(...ended(result.trajectory));
  const isSame = differencesIn(result) === 0;
  say(differenceLines(result), { type: 'replayed', rolloutId, same: isSame, ...result, trajectory: undefined });
  return isSame ? 0 : 1;
}

/** Someone may sit at a breakpoint. */
function withoutDeadline({ plan, ...stored }: StoredRollout): StoredRollout {
  const settings = { ...plan.settings, limits: { ...plan.settings.limits, deadlineMs: DEADLINE_MS } };
  return { ...stored, plan: { ...plan, settings } };
}

const differencesIn = ({ different, extra, notMade, changes }: Replay): number =>
  different + extra + notMade.length + changes.length;

export function differenceLines(result: Replay): readonly string[] {
  const { trajectory, first, different, notMade, extra, changes } = result;
  const said = (grade: unknown): string => gradeText(grade as Grade, trajectory.outcome);
  const counts = [
    ...(different === 0 ? [] : [`${count(different, 'call')} asked something else`]),
    ...(notMade.length === 0 ? [] : [`not made: the call of turn ${notMade.join(', ')}`]),
    ...(extra === 0 ? [] : [`${count(extra, 'call')} without a recorded answer`]),
  ];
  const verdict = differencesIn(result) === 0 ? styleText('green', 'As recorded') : styleText('yellow', 'Not as recorded');
  return [
    ...(first === null ? [] : [placeText(first), ...wasAndIs(first.was, first.is)]),
    ...changes.flatMap(({ what, was, is }) => [
      styleText('yellow', `another ${what}`),
      ...(what === 'grade' ? wasAndIs(said(was), said(is)) : wasAndIs(was, is)),
    ]),
    [verdict, ...counts].join(' · '),
  ];
}

function placeText({ turn, thread, message }: RequestDifference): string {
  const where = message === undefined ? 'its tools or ids' : `message ${message}`;
  const what = turn === null ? 'a call that was not recorded' : `the call of turn ${turn} differs at ${where}`;
  return `${shortLine(thread, LONGEST)} · ${styleText('yellow', what)}`;
}

const LONGEST = 400;
/** Characters before the first that differs. */
const BEFORE = 60;

function wasAndIs(was: unknown, is: unknown): readonly string[] {
  const isTold = textOf(was) !== textOf(is);
  const [a, b] = isTold ? [textOf(was), textOf(is)] : [`${JSON.stringify(was)}`, `${JSON.stringify(is)}`];
  let same = 0;
  while (same < a.length && a[same] === b[same]) same++;
  const start = Math.max(0, same - BEFORE);
  const shown = (text: string): string => shortLine(`${start === 0 ? '' : '…'}${text.slice(start)}`, LONGEST);
  return [`    was ${shown(a)}`, `    is  ${shown(b)}`];
}

/** A message that only says something by its role and words. */
function textOf(value: unknown): string {
  if (value === undefined || value === null) return 'nothing';
  const { role, content, tool_call_id: _, ...more } = value as Readonly<Record<string, unknown>>;
  if (typeof content === 'string' && Object.keys(more).length === 0) return `${role}: ${content}`;
  return typeof value === 'string' ? value : JSON.stringify(value);
}
