/** A trajectory as a person reads it: who said what, and the reward. */
import { printableLine } from '../core/describe.ts';
import type { Message, Trajectory } from '../core/types.ts';

/** Characters of a line that are shown. */
const LONGEST = 200;

export interface Transcript {
  readonly taskId: string;
  readonly lines: readonly string[];
  readonly reward: number | null;
}

export function transcriptOf({ taskId, turns, grade }: Trajectory): Transcript {
  // The conversation that a grader looks at first: a judge that spoke last is not what is trained.
  const last = turns.findLast(({ trainable }) => trainable) ?? turns.at(-1);
  const messages = last === undefined ? [] : [...last.request.messages, last.response];
  return {
    taskId,
    lines: messages.filter(({ role }) => role !== 'system').flatMap(linesOf),
    reward: grade.kind === 'graded' ? grade.reward.value : null,
  };
}

function linesOf({ role, content, tool_calls }: Message): string[] {
  const calls = (tool_calls ?? []).map((call) => `${role}: ${call.function.name}(${call.function.arguments})`);
  return [...(content ? [`${role}: ${content}`] : []), ...calls].map((line) =>
    printableLine(line.length > LONGEST ? `${line.slice(0, LONGEST)}…` : line),
  );
}
