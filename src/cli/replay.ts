/**
 * `trainyard replay`: runs a stored rollout's workflow again against the recorded answers, or with `--grade` only grades it again, and shows
 * what differs. `--inspect` waits for a debugger and stops where the workflow begins. The exit code is 1 if anything differs.
 */
import { open, url } from 'node:inspector';
import { styleText } from 'node:util';
import { shortLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { RunEvent } from '../core/events.ts';
import { defined } from '../core/json.ts';
import { type GradedAgain, gradeAgain, type Replay, replay, type StoredRollout, storedRollout } from '../run/replay.ts';
import { guarded } from './guarded.ts';
import { describe, type Say } from './print.ts';
import { gradeText, liveRollout } from './print-rollout.ts';
import { count } from './text.ts';

interface ReplayFlags {
  readonly grade: boolean;
  readonly inspect?: number | true;
  readonly entry?: string;
  readonly json: boolean;
}

/** Nobody waits for who sits at a breakpoint. */
const DEADLINE_MS = 24 * 3_600_000;
const HOST = '127.0.0.1';
const PORT = 9229;

export async function replayCommand(run: string, rolloutId: string, flags: ReplayFlags): Promise<number> {
  const { json, inspect } = flags;
  if (flags.grade && inspect !== undefined) {
    const hint = 'leave --grade out; to debug a grader, call it with gradeOnce in a test';
    throw new TrainyardError('USAGE', '--inspect stops in the workflow, which --grade does not run', { hint });
  }
  const { say, observer, ended } = liveRollout(json);
  const emit = (event: RunEvent): void => {
    // The ending reports these.
    const isSaid = event.type === 'warning' && event.message.startsWith(`rollout ${rolloutId}: `);
    if (!isSaid) say(describe(event), event);
  };
  const warn = (code: string, message: string): void => emit({ type: 'warning', code, message });
  const isolation = inspect === undefined ? undefined : ('none' as const);
  if (inspect !== undefined) waitForDebugger(inspect === true ? PORT : inspect, say);
  return await guarded(emit, { steps: false }, async ({ stop }) => {
    const found = await storedRollout(run, rolloutId, defined({ entry: flags.entry, isolation }));
    for (const { code, message } of found.plan.warnings) warn(code, message);
    const stored = inspect === undefined ? found : stopping(found);
    const options = { warn, stop, observer };
    if (flags.grade) return sayGrades(await gradeAgain(stored, options), found, say);
    const result = await replay(stored, options);
    say(...ended(result.trajectory));
    return sayDifferences(result, found, say);
  });
}

function waitForDebugger(port: number, say: Say): void {
  if (url() !== undefined) return;
  const attach = `node inspect ${HOST}:${port}, chrome://inspect, or “Attach to Node Process” of your editor`;
  say([`Waiting for a debugger: ${attach}`], { type: 'inspecting', host: HOST, port });
  open(port, HOST, true);
}

/** Stops at the workflow's first line, one step into the call. */
function stopping({ plan, ...stored }: StoredRollout): StoredRollout {
  const { entry, settings } = plan;
  const run: typeof entry.workflow.run = async (...given) => {
    // biome-ignore lint/suspicious/noDebugger: this is what --inspect is for
    debugger; // Step into the next line to enter your workflow.
    return await entry.workflow.run(...given);
  };
  const limits = { ...settings.limits, deadlineMs: DEADLINE_MS };
  return {
    ...stored,
    plan: { ...plan, settings: { ...settings, limits }, entry: { ...entry, workflow: { ...entry.workflow, run } } },
  };
}

function sayGrades({ was, is, prints, isSame }: GradedAgain, { trajectory }: StoredRollout, say: Say): number {
  const { outcome, rolloutId } = trajectory;
  const printed =
    prints === '' ? [] : prints.split('\n').map((line) => styleText('dim', `    the grader: ${shortLine(line, LONGEST)}`));
  const lines = [...printed, `was  ${gradeText(was, outcome)}`, `is   ${gradeText(is, outcome)}`, verdict(isSame)];
  say(lines, { type: 'graded-again', rolloutId, same: isSame, was, is, prints });
  return isSame ? 0 : 1;
}

const LONGEST = 400;
/** Characters before the first that differs. */
const BEFORE = 60;

const verdict = (isSame: boolean): string =>
  isSame ? styleText('green', 'As it was recorded') : styleText('yellow', 'Not as it was recorded');

function sayDifferences({ trajectory: now, ...found }: Replay, { trajectory }: StoredRollout, say: Say): number {
  const { first, different, notMade, extra, changes } = found;
  const isSame = different + extra + notMade.length + changes.length === 0;
  const where = first?.message === undefined ? 'the tools' : `message ${first.message}`;
  const asked = first?.turn === null ? 'a call that was not recorded' : `the call of turn ${first?.turn} differs at ${where}`;
  const counts = [
    ...(different > 0 ? [`${count(different, 'call')} asked something else`] : []),
    ...(notMade.length > 0 ? [`${count(notMade.length, 'call')} not made: turn ${notMade.join(', ')}`] : []),
    ...(extra > 0 ? [`${count(extra, 'call')} without a recorded answer`] : []),
  ];
  const lines = [
    ...(first === null
      ? []
      : [`${shortLine(first.thread, BEFORE)} · ${styleText('yellow', asked)}`, ...wasAndIs(first.was, first.is)]),
    ...changes.flatMap(({ what, was, is }) => [styleText('yellow', `another ${what}`), ...wasAndIs(was, is)]),
    [verdict(isSame), ...counts].join(' · '),
  ];
  say(lines, { type: 'replayed', rolloutId: now.rolloutId, same: isSame, calls: trajectory.turns.length, ...found });
  return isSame ? 0 : 1;
}

/** From shortly before the first character that differs. */
function wasAndIs(was: unknown, is: unknown): readonly string[] {
  const [a, b] = [textOf(was), textOf(is)];
  let same = 0;
  while (same < a.length && a[same] === b[same]) same++;
  const start = Math.max(0, same - BEFORE);
  const shown = (text: string): string => shortLine(`${start === 0 ? '' : '…'}${text.slice(start)}`, LONGEST);
  return [`    was ${shown(a)}`, `    is  ${shown(b)}`];
}

/** A message by its role and text, unless it has more to say. */
function textOf(value: unknown): string {
  if (value === null || value === undefined) return 'nothing';
  const { role, content, ...more } = value as { readonly role?: unknown; readonly content?: unknown };
  const isText =
    typeof role === 'string' && typeof content === 'string' && Object.keys(more).every((key) => key === 'tool_call_id');
  return isText ? `${role}: ${content}` : typeof value === 'string' ? value : JSON.stringify(value);
}
