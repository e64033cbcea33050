/**
 * `/compute_reward`: what the grader says of a conversation, while it goes on. The answer is joined here, by the trajectory's task;
 * what a request brings of the dataset is not looked at.
 */
import type { Grade, Message, Turn } from '../core/types.ts';
import { chat } from '../gateway/dialects/chat.ts';
import { parsed } from '../gateway/dialects/parameters.ts';
import type { Grant } from '../gateway/keys.ts';
import { graderInput } from '../grader/input.ts';
import { type HttpReply, type HttpRequest, jsonReply } from '../http/message.ts';
import type { FlowParts, GradingParts } from './flow-parts.ts';
import type { FlowTrajectory } from './flow-trajectory.ts';
import { FlowRefusal } from './refusals.ts';
import { trajectoryNamed } from './uids.ts';
import { messageReward, tokenReward } from './wire.ts';

export async function computeReward(parts: FlowParts, grant: Grant, call: HttpRequest, raw: unknown): Promise<HttpReply> {
  const isTokens = typeof raw === 'object' && raw !== null && 'prompt_ids' in raw;
  const asked = isTokens ? parsed(tokenReward, raw) : parsed(messageReward, raw);
  const trajectory = parts.table.find(grant, trajectoryNamed(asked.trajectory_uid, call, grant));
  if (asked.prompt_uid != null) trajectory.checkPrompt(asked.prompt_uid);
  const { session } = trajectory;
  const said =
    'prompt_ids' in asked ? saidIn(session.turns, asked.prompt_ids, asked.response_ids) : messagesOf(asked.messages, session);
  const grade = await gradeTrajectory(parts, trajectory, said);
  if (grade.kind === 'graded') {
    const { value, parts: info = {} } = grade.reward;
    return jsonReply(200, { reward: value, reward_score: value, reward_extra_info: info });
  }
  // Its own words may hold the answer.
  const why = grade.kind === 'failed' ? grade.code : 'it graded nothing';
  throw new FlowRefusal('grader_failed', `the grader gave no reward: ${why}`, { hint: 'that is not a reward of 0' });
}

/** Throws no_grader where there is nobody to ask, or no task to ask about. `messages`: what was said, as the flow tells it. */
export async function gradeTrajectory(
  { grader, taskOf }: GradingParts,
  trajectory: FlowTrajectory,
  messages?: readonly Message[],
): Promise<Grade> {
  if (grader === undefined) {
    throw new FlowRefusal('no_grader', 'there is no grader here', {
      hint: 'export one from the entry, or serve with --entry and --tasks',
    });
  }
  const task = taskOf?.(trajectory);
  if (task === undefined) {
    throw new FlowRefusal(
      'no_grader',
      `there is no task ${JSON.stringify(trajectory.taskId ?? trajectory.promptUid)} to grade by`,
      {
        hint: 'say task_id at /init_trajectory, or use the id of a task as prompt_uid',
      },
    );
  }
  const input = graderInput(task, { turns: trajectory.session.turns, outcome: { kind: 'completed' } });
  const whole = messages ?? input.messages;
  const last = whole.findLast(({ role }) => role === 'assistant')?.content ?? undefined;
  return await grader.grade({ ...input, messages: whole, ...(last === undefined ? {} : { output: last }) });
}

function saidIn(turns: readonly Turn[], prompt: readonly number[], response: readonly number[]): readonly Message[] {
  const isSame = (given: readonly number[], ids: Int32Array) =>
    given.length === ids.length && given.every((id, i) => id === ids[i]);
  const turn = turns.find(({ promptIds, sampledIds }) => isSame(prompt, promptIds) && isSame(response, sampledIds));
  if (turn !== undefined) return [...turn.request.messages, turn.response];
  throw new FlowRefusal('unknown_generation', 'no turn of the trajectory has exactly these ids', { param: 'response_ids' });
}

function messagesOf(given: unknown, memory: FlowTrajectory['session']): readonly Message[] {
  return chat.read({ messages: given }, memory).question.messages;
}
