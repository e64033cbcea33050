/**
 * init → register → complete: how a trajectory begins, is told about, and ends.
 *
 * With the key of a rollout that a run holds, init names that rollout: the run decides what it is for and keeps it. Otherwise a new one
 * is opened, and kept when it is complete.
 */
import type { Purpose } from '../core/types.ts';
import { parsed } from '../gateway/dialects/parameters.ts';
import type { Grant } from '../gateway/keys.ts';
import { type HttpReply, type HttpRequest, jsonReply } from '../http/message.ts';
import { originFor } from './base-url.ts';
import type { FlowParts } from './flow-parts.ts';
import { flowResult } from './flow-result.ts';
import { type FlowTrajectory, UNNAMED_PROMPT } from './flow-trajectory.ts';
import { FlowRefusal } from './refusals.ts';
import { channelOf, purposeOf } from './uids.ts';
import { completion, initialisation, registration } from './wire.ts';

export function initTrajectory({ table, gateway }: FlowParts, grant: Grant, call: HttpRequest, raw: unknown): HttpReply {
  const { prompt_uid, task_id, channel } = parsed(initialisation, raw);
  const purpose = purposeOf(channel);
  const trajectory =
    grant.rollout === undefined ? table.open(undefined, givenOf(prompt_uid, task_id, purpose)) : table.find(grant, grant.rollout);
  trajectory.checkPurpose(purpose);
  if (prompt_uid != null) trajectory.isOfPrompt(prompt_uid);
  const { uid, session, isHeld, promptUid } = trajectory;
  const prompt = isHeld ? promptUid : (prompt_uid ?? UNNAMED_PROMPT);
  const base = `${originFor(gateway.origin, call.header('host'))}/${encodeURIComponent(uid)}/${encodeURIComponent(prompt)}/v1`;
  return jsonReply(200, { trajectory_uid: uid, base_url: base, api_key: session.model().apiKey });
}

function givenOf(promptUid: string | null | undefined, taskId: string | null | undefined, purpose: Purpose | undefined) {
  return {
    ...(promptUid == null ? {} : { promptUid }),
    ...(taskId == null ? {} : { taskId }),
    ...(purpose === undefined ? {} : { purpose }),
  };
}

export function registerTrajectory(trajectory: FlowTrajectory, raw: unknown): HttpReply {
  const { channel, metadata } = parsed(registration, raw);
  if (trajectory.completion !== undefined) throw complete(trajectory);
  trajectory.isFor(purposeOf(channel));
  if (metadata != null) {
    const { task_id: taskId } = metadata;
    if (!trajectory.isHeld && typeof taskId === 'string') trajectory.taskId ??= taskId;
    trajectory.metadata = { ...trajectory.metadata, ...metadata };
  }
  return jsonReply(200, { status: 'ok' });
}

/** The same again is answered the same; another ending is refused. */
export async function completeTrajectory({ table }: FlowParts, trajectory: FlowTrajectory, raw: unknown): Promise<HttpReply> {
  const { reward, channel, error } = parsed(completion, raw);
  trajectory.checkPurpose(purposeOf(channel));
  const ending = { reward: reward ?? undefined, error: error ?? undefined };
  const known = trajectory.completion;
  if (
    known !== undefined &&
    (reward != null || error != null) &&
    (known.reward !== ending.reward || known.error !== ending.error)
  ) {
    throw complete(trajectory);
  }
  trajectory.completion ??= { ...ending, turns: trajectory.session.turns.length };
  await table.complete(trajectory);
  return jsonReply(200, { status: 'ok', num_steps: numberOfSteps(trajectory) });
}

export function showSteps(trajectory: FlowTrajectory): HttpReply {
  const { trainedTurns, reward } = flowResult(trajectory);
  return jsonReply(200, {
    trajectory_uid: trajectory.uid,
    prompt_uid: trajectory.promptUid,
    channel: channelOf(trajectory.purpose),
    complete: trajectory.completion !== undefined,
    num_steps: numberOfSteps(trajectory),
    steps: trajectory.steps.map(({ index, turn, reward: earned = null, isLast, metadata = null }) => ({
      step_index: index,
      turn,
      reward: earned,
      is_last: isLast,
      metadata,
    })),
    trained_turns: trainedTurns ?? null,
    output: outputOf(trajectory, trainedTurns),
    reward: reward === undefined ? null : { value: reward.value, by_turn: reward.byTurn ?? null },
    metadata: trajectory.metadata ?? null,
  });
}

/** The last that the policy said in what is trained. */
function outputOf({ session }: FlowTrajectory, trained: readonly number[] | undefined): string | null {
  const turn = session.turns[trained === undefined ? session.turns.length - 1 : Math.max(...trained)];
  return turn?.response.content ?? null;
}

/** Where none were submitted, every turn is one. */
function numberOfSteps({ steps, completion: ending, session }: FlowTrajectory): number {
  return steps.length > 0 ? steps.length : (ending?.turns ?? session.turns.length);
}

function complete({ uid }: FlowTrajectory): FlowRefusal {
  return new FlowRefusal('trajectory_complete', `trajectory ${uid} is complete, as something else`, {
    hint: 'what was said first holds',
  });
}
