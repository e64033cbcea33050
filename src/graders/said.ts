/**
 * What a grader of texts compares: what the rollout said in the end, and the task's answer. The one place that decides either, so that all
 * built-in graders look at the same text.
 *
 * What is missing in the task is unscorable, never 0: it is not the policy's fault. No message quotes an answer: messages are logged.
 */
import type { GraderInput, GraderTurn } from '../core/contracts.ts';
import { unscorable } from '../core/define.ts';
import { describeValue } from '../core/describe.ts';
import type { Json, Reward } from '../core/types.ts';
import type { ReadSaid } from './options.ts';

/** The workflow's output where it is a text or a number, else the last message of the assistant; '' where there is none. */
export function saidBy(input: GraderInput, of?: ReadSaid): string {
  if (of !== undefined) {
    const read: unknown = of(input);
    if (typeof read === 'string') return read;
    return unscorable(`the grader's \`of\` returned ${describeValue(read)}, expected a text`);
  }
  const { output, messages } = input;
  if (typeof output === 'string') return output;
  if (typeof output === 'number') return String(output);
  return messages.findLast(({ role }) => role === 'assistant')?.content ?? '';
}

/** What the policy itself said and somebody got: not other models, and not answers that nobody got. */
export function ownTurns({ turns }: GraderInput): readonly GraderTurn[] {
  return turns.filter(({ model, undelivered }) => model === undefined && !undelivered);
}

/** The task's answer. Throws GRADER_UNSCORABLE where there is none, or an empty one. */
export function answerOf({ task }: GraderInput): Exclude<Json, null> {
  const { answer } = task;
  const isEmpty = typeof answer === 'string' ? answer.trim() === '' : Array.isArray(answer) && answer.length === 0;
  if (answer === undefined || answer === null) return unscorable(`task ${JSON.stringify(task.id)} has no answer to compare with`);
  if (isEmpty) return unscorable(`the answer of task ${JSON.stringify(task.id)} is empty`);
  return answer;
}

/** The texts that count as right: the task's answer, or each of them where it is a list. Throws GRADER_UNSCORABLE for anything else. */
export function acceptedAnswers(input: GraderInput): readonly string[] {
  const answer = answerOf(input);
  return (Array.isArray(answer) ? (answer as readonly Json[]) : [answer]).map((one) => {
    if (typeof one === 'string' && one.trim() !== '') return one;
    if (typeof one === 'number' || typeof one === 'boolean') return String(one);
    const found = one === null ? 'null' : typeof one === 'string' ? 'an empty text' : Array.isArray(one) ? 'a list' : 'an object';
    return unscorable(
      `the answer of task ${JSON.stringify(input.task.id)} is or holds ${found}, expected a text or number, or a list of them`,
    );
  });
}

/** What graders of right and wrong return: all or nothing. */
export function rightOrWrong(isRight: boolean): Required<Pick<Reward, 'value' | 'success'>> {
  return { value: isRight ? 1 : 0, success: isRight };
}
