/** A trajectory as a person reads it: who said what, and the reward. */
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
  return [...(content ? [`${role}: ${content}`] : []), ...calls].map(printable);
}

/** Model text may hold terminal escapes; a transcript is for looking at. */
function printable(text: string): string {
  const shown = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is being removed
  return shown.replace(/[\u0000-\u001f\u007f-\u009f]/g, (character) => (character === '\n' ? '⏎' : '·'));
}
