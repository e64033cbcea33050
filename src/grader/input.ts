/**
 * From a finished rollout to what its grader sees.
 *
 * A rollout may hold several conversations. `messages` is one of them: the conversation of the last turn that a trainable seat
 * completed, because the policy's last word is what is being scored; where no seat is trainable, that of the last turn. The
 * answers of all threads are in `turns`, in order of completion. Without any turn `messages` is empty rather than the prompt,
 * so that a grader looking at the last message never scores the question.
 */
import type { GraderInput } from '../core/contracts.ts';
import type { Json, Message, Outcome, Task, Turn } from '../core/types.ts';

export interface FinishedRollout {
  readonly turns: readonly Turn[];
  readonly outcome: Outcome;
  readonly output?: Json | undefined;
}

export function graderInput(task: Task, rollout: FinishedRollout): GraderInput {
  return {
    task,
    messages: lastConversation(rollout.turns),
    turns: rollout.turns.map(({ role, thread, response, stopReason }) => ({ role, thread, response, stopReason })),
    output: rollout.output,
    truncated: rollout.outcome.kind === 'truncated' ? rollout.outcome.limit : undefined,
  };
}

function lastConversation(turns: readonly Turn[]): readonly Message[] {
  const last = turns.findLast((turn) => turn.trainable) ?? turns.at(-1);
  return last === undefined ? [] : [...last.request.messages, last.response];
}
