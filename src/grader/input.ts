/**
 * From a finished rollout to what its grader sees.
 *
 * A rollout may hold several conversations. `messages` is one of them: the conversation of the last turn that a trainable seat
 * completed, because the policy's last word is what is being scored; where no seat is trainable, that of the last turn. The
 * answers of all threads are in `turns`, in order of completion. Without any turn `messages` is empty rather than the prompt,
 * so that a grader looking at the last message never scores the question.
 */
import type { GraderInput, GraderTurn, WorkflowResult } from '../core/contracts.ts';
import type { Message, Outcome, Task, Turn } from '../core/types.ts';
import { conversationOf } from './conversation.ts';

export interface FinishedRollout {
  readonly turns: readonly Turn[];
  readonly outcome: Outcome;
  /** What the workflow said of itself. */
  readonly result?: WorkflowResult;
  readonly artifactsDir?: string | null;
}

export function graderInput(task: Task, { turns, outcome, result = {}, artifactsDir = null }: FinishedRollout): GraderInput {
  return {
    task,
    messages: lastConversation(turns),
    threads: Object.fromEntries(lastOfThreads(turns).map((turn) => [turn.thread, conversationOf(turn, turns)])),
    turns: turns.map(graderTurn),
    output: result.output,
    result: saidOfItself(result),
    truncated: outcome.kind === 'truncated' ? outcome.limit : undefined,
    artifactsDir,
  };
}

/** Without what is said elsewhere and would be sent again with every turn: the request, and the ids of the prompt. */
function graderTurn({ request: _request, promptIds, sampling: _sampling, ...turn }: Turn): GraderTurn {
  return { ...turn, promptTokens: promptIds.length };
}

/** What a grader is told of a workflow's result, its output aside. */
export function saidOfItself({ reward, success, metadata, metrics }: WorkflowResult): GraderInput['result'] {
  return {
    ...(reward === undefined ? {} : { reward }),
    ...(success === undefined ? {} : { success }),
    ...(metadata === undefined ? {} : { metadata }),
    ...(metrics === undefined ? {} : { metrics }),
  };
}

function lastConversation(turns: readonly Turn[]): readonly Message[] {
  const last = turns.findLast((turn) => turn.trainable) ?? turns.findLast(isDelivered);
  return last === undefined ? [] : conversationOf(last, turns);
}

function lastOfThreads(turns: readonly Turn[]): readonly Turn[] {
  return [...new Map(turns.filter(isDelivered).map((turn) => [turn.thread, turn])).values()];
}

/** An answer that nobody got is the end of no conversation. */
const isDelivered = ({ undelivered }: Turn): boolean => !undelivered;
