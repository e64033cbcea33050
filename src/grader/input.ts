/**
 * From a finished rollout to what its grader sees.
 *
 * A rollout may hold several conversations. `messages` is one of them: the conversation of the last turn that a trainable seat
 * completed, because the policy's last word is what is being scored; where no seat is trainable, that of the last turn. The
 * answers of all threads are in `turns`, in order of completion. Without any turn `messages` is empty rather than the prompt,
 * so that a grader looking at the last message never scores the question.
 */
import type { GraderInput, GraderTurn, WorkflowResult } from '../core/contracts.ts';
import { defined } from '../core/json.ts';
import type { Message, Outcome, Task, Turn } from '../core/types.ts';

interface FinishedRollout {
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
  return defined({ reward, success, metadata, metrics });
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

/**
 * The conversation that a turn ended, in one shape whatever client, dialect or framework the agent used: the fields that messages have here
 * and no others, a message that only calls tools without content, and what the policy said in its own words.
 *
 * Clients send back what the policy said, and some write it anew on the way: arguments as objects, say. Where a turn goes on from another's
 * very ids, that turn's recorded answer is what the policy said. Where it does not, the message stays as the client sent it: it is what the
 * policy was shown. Nothing is guessed, left out or put in another order.
 */
function conversationOf(turn: Turn, turns: readonly Turn[]): readonly Message[] {
  const messages = [...turn.request.messages];
  for (let before = earlier(turn, turns); before !== undefined; before = earlier(before, turns)) {
    const place = before.request.messages.length;
    const sent = messages[place];
    if (sent !== undefined && isSame(sent, before.response)) messages[place] = before.response;
  }
  return [...messages, turn.response].map(plain);
}

function earlier({ after }: Turn, turns: readonly Turn[]): Turn | undefined {
  return after === undefined ? undefined : turns.find(({ index }) => index === after);
}

function isSame(sent: Message, said: Message): boolean {
  const calls = said.tool_calls ?? [];
  return (
    sent.role === 'assistant' &&
    (sent.content ?? '') === (said.content ?? '') &&
    (sent.tool_calls ?? []).length === calls.length &&
    calls.every(({ id, function: { name } }, i) => {
      const other = sent.tool_calls?.[i];
      return other?.id === id && other.function.name === name;
    })
  );
}

function plain({ role, content, tool_calls: calls = [], tool_call_id, name, reasoning }: Message): Message {
  const isCalling = calls.length > 0;
  return {
    role,
    content: isCalling && !content ? null : (content ?? ''),
    ...(isCalling && { tool_calls: calls }),
    ...(typeof tool_call_id === 'string' && { tool_call_id }),
    ...(typeof name === 'string' && { name }),
    ...(typeof reasoning === 'string' && reasoning !== '' && { reasoning }),
  };
}
