/** `trainyard try`: one rollout, turn by turn, for finding out what an agent does. Returns the exit code. */
import { styleText } from 'node:util';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { RunEvent } from '../core/events.ts';
import { turnSummary } from '../core/turns.ts';
import type { Task, Trajectory, Turn } from '../core/types.ts';
import { type TryRequest, tryOnce } from '../run/try.ts';
import { entryGiven } from './entry-given.ts';
import { guarded } from './guard.ts';
import { describe } from './lines.ts';
import { asCalled } from './phrases.ts';
import { withLimits } from './rollout-limits.ts';
import { endingLines } from './rollout-text.ts';
import { printable } from './screen/width.ts';
import { turnText } from './turn-text.ts';

export async function tryCommand(
  given: string | undefined,
  flags: Omit<TryRequest, 'entry' | 'heldOut'> & { readonly tasks?: string; readonly turns?: number; readonly json: boolean },
): Promise<number> {
  const { json, tasks, ...settings } = withLimits(flags);
  const entry = entryGiven(given, settings.flows, 'try');
  const request = { ...settings, entry, ...(tasks === undefined ? {} : { heldOut: tasks }) };
  const say = (lines: readonly string[], value: object): void => console.log(json ? JSON.stringify(value) : lines.join('\n'));
  const emit = (event: RunEvent): void => {
    if (event.type === 'warning' && event.code !== 'UNKILLABLE_GRADER' && !isEnding(event.message))
      say(describe(event, ''), event);
  };
  let hint: readonly string[] = [];
  let files: string | undefined;
  const observer = {
    onStart: (task: Task) => {
      const words = task.prompt.map(({ role, content }) => `    ${role}: ${printable(content)}`);
      say([`${styleText('bold', 'task')} ${printable(task.id)}`, ...words], { type: 'task', id: task.id, prompt: task.prompt });
    },
    onTurn: (turn: Turn) => {
      const summary = turnSummary(turn);
      say([turnText(summary)], { type: 'turn', ...summary });
    },
    onThrown: (thrown: unknown) => {
      const stack = thrown instanceof Error ? (thrown.stack ?? thrown.message) : messageOf(thrown);
      if (thrown instanceof TrainyardError && thrown.hint !== undefined) hint = [`  ${printable(asCalled(thrown.hint))}`];
      const lines = ownFrames(stack).map((line) => styleText('red', printable(line)));
      if (json || lines.length > 0) say(lines, { type: 'threw', stack });
    },
    onFiles: (folder: string) => {
      files = folder;
    },
    warn: (code: string, message: string) => emit({ type: 'warning', code, message }),
  };
  const trajectory = await guarded(emit, { steps: false }, ({ stop }) => tryOnce(request, observer, stop));
  const { outcome, grade, output, metadata, metrics, logs, unanswered } = trajectory;
  const kept = files === undefined ? [] : [`  files: ${printable(files)}`];
  const ended = { type: 'ended', outcome, grade, output, metadata, metrics, logs, unanswered, files };
  say([...endingLines(trajectory), ...hint, ...kept], ended);
  return succeeded(trajectory) ? 0 : 1;
}

const OURS = new URL('..', import.meta.url).href;

/** The stack without our own frames; nothing where no other is left: what was thrown is said by the ending, too. */
function ownFrames(stack: string): readonly string[] {
  const lines = stack.split('\n').filter((line) => !(/^\s+at /.test(line) && line.includes(OURS)));
  return lines.some((line) => /^\s+at .*[:(/]/.test(line) && !line.includes('node:internal')) ? lines : [];
}

/** A run warns of its first failure; here the ending says it. */
function isEnding(warning: string): boolean {
  return warning.startsWith('rollout try: ');
}

/** The agent ran and was graded: with which reward is its own affair, and so is a rejection of its own. */
function succeeded({ outcome, grade }: Trajectory): boolean {
  const isUnused = outcome.kind === 'rejected' && outcome.reason === 'no_turns';
  return outcome.kind !== 'failed' && grade.kind !== 'failed' && !isUnused;
}
