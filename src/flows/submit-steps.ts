/**
 * `/submit_steps`: which turns of a trajectory count, and what they earned. A step must be a turn that the gateway generated, named by
 * its signed id or by exactly its ids; its log-probabilities and version are those of our record, whatever the step says.
 *
 * All of a submission is taken, or none.
 */
import type { Purpose, Turn } from '../core/types.ts';
import { invalid, parsed } from '../gateway/dialects/parameters.ts';
import type { Grant } from '../gateway/keys.ts';
import { type HttpReply, type HttpRequest, jsonReply } from '../http/message.ts';
import type { FlowParts } from './flow-parts.ts';
import type { FlowStep, FlowTrajectory } from './flow-trajectory.ts';
import { knownIds } from './generate.ts';
import { admitted } from './not-taken.ts';
import { FlowRefusal } from './refusals.ts';
import { channelIn } from './uids.ts';
import { submission, type WireStep } from './wire.ts';

export async function submitSteps(parts: FlowParts, grant: Grant, call: HttpRequest, raw: unknown): Promise<HttpReply> {
  const purpose = channelIn(call.query);
  const { steps } = parsed(submission, raw);
  const groups = [...Map.groupBy(steps.entries(), ([, { trajectory_uid }]) => trajectory_uid)];
  const staged = groups.map(([uid, own]) => stage(parts, parts.table.find(grant, uid), own, purpose));
  for (const { trajectory, fresh, promptUids } of staged) {
    if (trajectory.isHeld || fresh.length === 0) continue;
    const [groupId = trajectory.promptUid] = promptUids;
    admitted(() => parts.pool?.admit({ rolloutId: trajectory.uid, groupId, purpose: purpose ?? trajectory.purpose }));
  }
  // Looked at first, all of them; from here on nothing is refused.
  for (const { trajectory, promptUids } of staged) {
    for (const promptUid of promptUids) trajectory.isOfPrompt(promptUid);
    trajectory.isFor(purpose);
  }
  const taken = await Promise.allSettled(staged.map(({ trajectory, fresh }) => parts.table.take(trajectory, fresh)));
  const failed = taken.find((one) => one.status === 'rejected');
  if (failed !== undefined) throw failed.reason;
  const rows = staged.reduce((sum, { fresh }) => sum + fresh.length, 0);
  return jsonReply(200, { accepted: steps.length, duplicates: steps.length - rows });
}

interface Staged {
  readonly trajectory: FlowTrajectory;
  readonly fresh: readonly FlowStep[];
  readonly promptUids: ReadonlySet<string>;
}

function stage(
  parts: FlowParts,
  trajectory: FlowTrajectory,
  own: readonly (readonly [place: number, step: WireStep])[],
  purpose: Purpose | undefined,
): Staged {
  trajectory.checkPurpose(purpose);
  const promptUids = new Set(own.flatMap(([, { prompt_uid }]) => prompt_uid ?? []));
  const [one, other] = promptUids;
  if (other !== undefined) throw conflict(trajectory, `steps of prompts ${one} and ${other}`);
  if (one !== undefined) trajectory.checkPrompt(one);
  const used = new Map<number, number>(trajectory.steps.map(({ index, turn }) => [turn, index]));
  const steps = own.map(([place, step]) => {
    checkStep(parts, step, `steps.${place}`);
    const turn = turnOf(parts, trajectory, step, used);
    used.set(turn.index, step.step_index);
    return stepOf(step, turn);
  });
  return { trajectory, fresh: trajectory.newSteps(steps), promptUids };
}

function stepOf({ step_index: index, reward, is_last: isLast, metadata }: WireStep, turn: Turn): FlowStep {
  return { index, turn: turn.index, reward: reward ?? undefined, isLast, metadata: metadata ?? undefined };
}

/** What is wrong with a step whatever its trajectory is. */
function checkStep(parts: FlowParts, step: WireStep, place: string): void {
  const { prompt_ids, response_ids, rollout_log_probs, generation_id, policy_version } = step;
  if ((prompt_ids == null || response_ids == null) && generation_id == null) {
    throw invalid(`${place}.${prompt_ids == null ? 'prompt_ids' : 'response_ids'}`, 'missing', 'or give its generation_id');
  }
  if (prompt_ids != null) knownIds(parts, prompt_ids, `${place}.prompt_ids`);
  if (response_ids != null) knownIds(parts, response_ids, `${place}.response_ids`);
  if (rollout_log_probs != null && response_ids != null && rollout_log_probs.length !== response_ids.length) {
    throw new FlowRefusal('lengths_differ', `${rollout_log_probs.length} log-probabilities for ${response_ids.length} ids`, {
      param: `${place}.rollout_log_probs`,
    });
  }
  if (policy_version > parts.policyVersion()) {
    throw new FlowRefusal('step_conflict', `there is no policy version ${policy_version} yet; it is ${parts.policyVersion()}`, {
      param: `${place}.policy_version`,
    });
  }
}

function turnOf(parts: FlowParts, trajectory: FlowTrajectory, step: WireStep, used: ReadonlyMap<number, number>): Turn {
  const { prompt_ids, response_ids, generation_id, step_index } = step;
  const { turns } = trajectory.session;
  const isFree = ({ index }: Turn): boolean => (used.get(index) ?? step_index) === step_index;
  const fits = ({ promptIds, sampledIds }: Turn): boolean =>
    (prompt_ids == null || isSame(prompt_ids, promptIds)) && (response_ids == null || isSame(response_ids, sampledIds));
  if (generation_id == null) {
    const same = turns.filter(fits);
    const turn = same.find(isFree) ?? same[0];
    if (turn !== undefined) return turn;
    throw unknownGeneration(`no turn of trajectory ${trajectory.uid} has exactly these ids`);
  }
  const name = parts.ids.read(generation_id);
  const isOwn = name?.rollout === trajectory.uid && name.session === trajectory.session.number;
  const turn = isOwn ? turns[name.turn] : undefined;
  if (turn === undefined) throw unknownGeneration(`generation_id is none of trajectory ${trajectory.uid}`);
  if (!fits(turn)) throw unknownGeneration('the ids are not those of the generation_id');
  return turn;
}

function isSame(given: readonly number[], ids: Int32Array): boolean {
  return given.length === ids.length && given.every((id, i) => id === ids[i]);
}

function unknownGeneration(message: string): FlowRefusal {
  return new FlowRefusal('unknown_generation', message, {
    hint: 'submit prompt_ids and response_ids, or the generation_id, as /generate gave them: only what was sampled here can be trained',
    param: 'steps',
  });
}

function conflict({ uid }: FlowTrajectory, message: string): FlowRefusal {
  return new FlowRefusal('trajectory_conflict', `trajectory ${uid}: ${message}`, { param: 'prompt_uid' });
}
