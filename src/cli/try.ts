/** `trainyard try`: one rollout, turn by turn, for finding out what an agent does. Returns the exit code. */
import { styleText } from 'node:util';
import { messageOf } from '../core/errors.ts';
import type { RunEvent } from '../core/events.ts';
import { turnSummary } from '../core/turn-summary.ts';
import type { Task, Trajectory, Turn } from '../core/types.ts';
import { type TryRequest, tryOnce } from '../run/try.ts';
import { guarded } from './guard.ts';
import { describe } from './lines.ts';
import { endingLines } from './rollout-text.ts';
import { printable } from './screen/width.ts';
import { turnText } from './turn-text.ts';

export async function tryCommand(
  entry: string,
  flags: Omit<TryRequest, 'entry' | 'heldOut'> & { readonly tasks?: string; readonly json: boolean },
): Promise<number> {
  const { json, tasks, ...given } = flags;
  const request = { ...given, entry, ...(tasks === undefined ? {} : { heldOut: tasks }) };
  const say = (lines: readonly string[], value: object): void => console.log(json ? JSON.stringify(value) : lines.join('\n'));
  const emit = (event: RunEvent): void => {
    if (event.type === 'warning' && event.code !== 'UNKILLABLE_GRADER') say(describe(event, ''), event);
  };
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
      say([styleText('red', stack.split('\n').map(printable).join('\n'))], { type: 'threw', stack });
    },
    warn: (code: string, message: string) => emit({ type: 'warning', code, message }),
  };
  const trajectory = await guarded(emit, { steps: false }, ({ stop }) => tryOnce(request, observer, stop));
  const { outcome, grade, output, metadata, metrics, logs } = trajectory;
  say(endingLines(trajectory), { type: 'ended', outcome, grade, output, metadata, metrics, logs });
  return succeeded(trajectory) ? 0 : 1;
}

/** The agent ran and was graded: with which reward is its own affair. */
function succeeded({ outcome, grade }: Trajectory): boolean {
  return outcome.kind !== 'failed' && grade.kind !== 'failed';
}
