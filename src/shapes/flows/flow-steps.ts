/**
 * The routes a flow calls while it runs: `/generate`, `/submit_steps` and `/compute_reward`.
 *
 * A step must be a turn that was generated here, named by its signed id or by its exact token ids. Its log-probabilities and policy version
 * come from the gateway's record, not from the step. A submission is validated as a whole before any step is accepted. Rewards are graded
 * with the answer of the trajectory's task; graders see a request's dataset fields beside it, in `result.metadata`.
 */
import { hash } from 'node:crypto';
import { defined } from '../../core/json.ts';
import type { Json, Message, Purpose, Turn } from '../../core/types.ts';
import { isMarkedRetry } from '../../gateway/answers.ts';
import { chat } from '../../gateway/dialects/chat.ts';
import { invalid, parsed } from '../../gateway/dialects/dialect.ts';
import type { Grant, SignedIds } from '../../gateway/identity.ts';
import { type HttpReply, type HttpRequest, jsonReply } from '../../http/message.ts';
import type { Refusal } from '../../http/refusal.ts';
import {
  channelIn,
  checkedUid,
  flowRefusal,
  generateBody,
  rewardBody,
  type SamplingFields,
  submission,
  type WireStep,
} from './flow-protocol.ts';
import { type FlowStep, type FlowTrajectory, hasIds } from './flow-trajectory.ts';
import type { GroupPool } from './group-pool.ts';
import type { TableParts, TrajectoryTable } from './trajectory-table.ts';

export interface FlowParts extends TableParts {
  readonly table: TrajectoryTable;
  /** Signed generation ids: rollout, session number, index of the turn. */
  readonly ids: SignedIds<readonly [string, number, number]>;
  /** Present if groups are handed out to an external trainer. */
  readonly pool?: GroupPool | undefined;
}

export interface FlowCall {
  readonly request: HttpRequest;
  readonly grant: Grant;
  readonly text: string;
  readonly raw: unknown;
  /** The trajectory in the base URL, for routes below one. */
  readonly named: FlowTrajectory;
}

export async function generate(parts: FlowParts, call: FlowCall): Promise<HttpReply> {
  const { gateway, table } = parts;
  const { header, signal } = call.request;
  const body = generateBody(call.raw);
  const sampling = 'prompt_ids' in body ? (body.sampling_params ?? {}) : body;
  checkModel(gateway.policy.modelName, sampling);
  const promptUid = body.prompt_uid ?? undefined;
  const trajectory = table.findOrOpen(call.grant, trajectoryNamed(body.trajectory_uid, call), { promptUid });
  if (promptUid !== undefined) trajectory.isOfPrompt(promptUid);
  await table.journal(trajectory);
  const { session } = trajectory;
  const prompt =
    'prompt_ids' in body
      ? { promptIds: knownIds(parts, body.prompt_ids, 'prompt_ids') }
      : {
          messages: withRecordedAnswers(parts, session.turns, body.messages) as readonly Message[],
          ...(body.tools == null ? {} : { tools: body.tools as never }),
        };
  const sample = async (): Promise<readonly Turn[]> => {
    const request = { ...prompt, ...samplingOf(sampling), ...defined({ signal }) };
    const { turn } = await gateway.generate(trajectory.uid, request);
    trajectory.generated.add(turn.index);
    return [turn];
  };
  const key = hash('sha256', `generate\n${header('idempotency-key') ?? ''}\n${call.text}`, 'base64');
  // A client that missed the response gets it again on retry: a second turn would be trained.
  const { value, miss } = await session.answers.get(key, isMarkedRetry(header), sample);
  return { ...jsonReply(200, generationOf(parts, trajectory, value[0]!)), undelivered: miss };
}

function generationOf({ gateway, ids }: FlowParts, { session, uid, promptUid }: FlowTrajectory, turn: Turn): object {
  const { index, promptIds, sampledIds, logprobs, policyVersion, stopReason, response } = turn;
  const responseIds = [...sampledIds];
  return {
    trajectory_uid: uid,
    prompt_uid: promptUid,
    generation_id: ids.make([uid, session.number, index]),
    response_text: gateway.policy.renderer.text(sampledIds),
    message: response,
    response_ids: responseIds,
    token_ids: responseIds,
    prompt_ids: [...promptIds],
    log_probs: [...logprobs],
    stop_reason: stopReason,
    policy_version: policyVersion,
  };
}

/** The trajectory named in the body, else in the header, else by the key. */
function trajectoryNamed(given: string | null | undefined, { request, grant }: FlowCall): string {
  const name = given ?? request.header('x-rollout-id') ?? grant.rollout;
  if (name === undefined) throw invalid('trajectory_uid', 'missing', 'say which trajectory it is, or use the key of a rollout');
  return checkedUid(name, 'trajectory_uid');
}

function samplingOf({ temperature, top_p, top_k, max_tokens, stop }: SamplingFields) {
  return defined({
    temperature: temperature ?? undefined,
    topP: top_p ?? undefined,
    topK: top_k ?? undefined,
    maxTokens: max_tokens ?? undefined,
    stop: typeof stop === 'string' ? [stop] : (stop ?? undefined),
  });
}

function checkModel(name: string, { model }: SamplingFields): void {
  if (model == null || model === name || model === 'default') return;
  throw invalid('model', `there is no model ${JSON.stringify(model.slice(0, 80))}`, `leave it out, or say ${name}`);
}

function knownIds({ gateway }: FlowParts, given: readonly number[], param: string): readonly number[] {
  const { vocabSize } = gateway.policy.renderer;
  const bad = given.findIndex((id) => id >= vocabSize);
  if (bad === -1) return given;
  throw invalid(`${param}.${bad}`, `${given[bad]} is none of the ${vocabSize} tokens`);
}

/** Replaces a completion sent back as plain text, tool calls included, by its record: so the prompt continues from the sampled ids. */
function withRecordedAnswers({ gateway }: FlowParts, turns: readonly Turn[], messages: unknown): unknown {
  if (!Array.isArray(messages) || turns.length === 0) return messages;
  const byText = new Map(turns.map((turn) => [gateway.policy.renderer.text(turn.sampledIds), turn.response]));
  return messages.map((message) => {
    const { role, content, tool_calls: calls } = (message ?? {}) as Partial<Message>;
    if (role !== 'assistant' || typeof content !== 'string' || calls !== undefined) return message;
    const recorded = byText.get(content);
    return recorded === undefined || recorded.content === content ? message : recorded;
  });
}

export async function submitSteps(parts: FlowParts, { request, grant, raw }: FlowCall): Promise<HttpReply> {
  const purpose = channelIn(request.query);
  const { steps } = parsed(submission, raw);
  const groups = [...Map.groupBy(steps.entries(), ([, { trajectory_uid }]) => parts.table.find(grant, trajectory_uid))];
  const identities = groups.map(([trajectory, own]) => {
    const promptUid = own.find(([, { prompt_uid }]) => prompt_uid != null)?.[1].prompt_uid;
    return { rolloutId: trajectory.uid, groupId: promptUid ?? trajectory.promptUid, purpose: purpose ?? trajectory.purpose };
  });
  const looked = await Promise.all(identities.map((identity) => parts.pool?.look(identity)));
  // From here to where the steps are taken nothing may wait: another submission could take the same ones.
  const staged = groups.map(([trajectory, own]) => stage(parts, trajectory, own, purpose));
  for (const [i, { trajectory, fresh }] of staged.entries()) {
    if (!trajectory.isHeld && fresh.length > 0) parts.pool?.admit(identities[i]!, looked[i]!);
  }
  // Everything is validated by now: from here on only storing can fail.
  for (const { trajectory, promptUid } of staged) {
    if (promptUid !== undefined) trajectory.isOfPrompt(promptUid);
    trajectory.isFor(purpose);
  }
  const taken = await Promise.allSettled(staged.map(({ trajectory, fresh }) => parts.table.take(trajectory, fresh)));
  const failed = taken.find((one) => one.status === 'rejected');
  if (failed !== undefined) throw failed.reason;
  const rows = staged.reduce((sum, { fresh }) => sum + fresh.length, 0);
  return jsonReply(200, { accepted: steps.length, duplicates: steps.length - rows });
}

/** Validates one trajectory's steps in a submission without accepting them. */
function stage(
  parts: FlowParts,
  trajectory: FlowTrajectory,
  own: readonly (readonly [place: number, step: WireStep])[],
  purpose: Purpose | undefined,
) {
  trajectory.checkPurpose(purpose);
  const [promptUid, other] = new Set(own.flatMap(([, { prompt_uid }]) => prompt_uid ?? []));
  if (other !== undefined) {
    const found = `trajectory ${trajectory.uid}: steps of prompts ${promptUid} and ${other}`;
    throw flowRefusal('trajectory_conflict', found, { param: 'prompt_uid' });
  }
  if (promptUid !== undefined) trajectory.checkPrompt(promptUid);
  const used = new Map<number, number>(trajectory.steps.map(({ index, turn }) => [turn, index]));
  const steps = own.map(([place, step]): FlowStep => {
    checkStep(parts, step, `steps.${place}`);
    const { index: turn } = turnOf(parts, trajectory, step, used);
    const { step_index: index, reward, is_last: isLast, metadata } = step;
    used.set(turn, index);
    return { index, turn, reward: reward ?? undefined, isLast, metadata: metadata ?? undefined };
  });
  return { trajectory, fresh: trajectory.newSteps(steps), promptUid };
}

function checkStep(parts: FlowParts, step: WireStep, place: string): void {
  const { prompt_ids, response_ids, rollout_log_probs: logprobs, generation_id, policy_version } = step;
  if ((prompt_ids == null || response_ids == null) && generation_id == null) {
    throw invalid(`${place}.${prompt_ids == null ? 'prompt_ids' : 'response_ids'}`, 'missing', 'or give its generation_id');
  }
  if (prompt_ids != null) knownIds(parts, prompt_ids, `${place}.prompt_ids`);
  if (response_ids != null) knownIds(parts, response_ids, `${place}.response_ids`);
  if (logprobs != null && response_ids != null && logprobs.length !== response_ids.length) {
    const found = `${logprobs.length} log-probabilities for ${response_ids.length} ids`;
    throw flowRefusal('lengths_differ', found, { param: `${place}.rollout_log_probs` });
  }
  const latest = parts.gateway.policy.engine.policyVersion;
  if (policy_version > latest) {
    const found = `there is no policy version ${policy_version} yet; it is ${latest}`;
    throw flowRefusal('step_conflict', found, { param: `${place}.policy_version` });
  }
}

/** `used` maps turns to step indices. If several turns have identical ids, the step gets one that no other step uses. */
function turnOf(parts: FlowParts, trajectory: FlowTrajectory, step: WireStep, used: ReadonlyMap<number, number>): Turn {
  const { prompt_ids, response_ids, generation_id, step_index } = step;
  const { turns, number } = trajectory.session;
  if (generation_id == null) {
    const same = turns.filter((turn) => hasIds(turn, prompt_ids, response_ids));
    const turn = same.find(({ index }) => (used.get(index) ?? step_index) === step_index) ?? same[0];
    if (turn !== undefined) return turn;
    throw unknownGeneration(`no turn of trajectory ${trajectory.uid} has exactly these ids`);
  }
  const [rollout, session, index] = parts.ids.read(generation_id) ?? [];
  const turn = rollout === trajectory.uid && session === number && index !== undefined ? turns[index] : undefined;
  if (turn === undefined) throw unknownGeneration(`generation_id is none of trajectory ${trajectory.uid}`);
  if (!hasIds(turn, prompt_ids, response_ids)) throw unknownGeneration('the ids are not those of the generation_id');
  return turn;
}

function unknownGeneration(message: string): Refusal {
  return flowRefusal('unknown_generation', message, {
    hint: 'submit prompt_ids and response_ids, or the generation_id, as /generate gave them: only what was sampled here can be trained',
    param: 'steps',
  });
}

export async function computeReward({ table }: FlowParts, call: FlowCall): Promise<HttpReply> {
  const body = rewardBody(call.raw);
  const trajectory = table.find(call.grant, trajectoryNamed(body.trajectory_uid, call));
  if (body.prompt_uid != null) trajectory.checkPrompt(body.prompt_uid);
  const { session } = trajectory;
  const messages =
    'prompt_ids' in body
      ? messagesOf(session.turns, body.prompt_ids, body.response_ids)
      : chat.read({ messages: body.messages }, session).request.messages;
  const { dataset_fields, extra_fields } = body;
  const grade = await table.grade(trajectory, messages, defined({ dataset_fields, extra_fields }) as Record<string, Json>);
  if (grade.kind === 'graded') {
    const { value, parts: info = {} } = grade.reward;
    return jsonReply(200, { reward: value, reward_score: value, reward_extra_info: info });
  }
  // Do not pass on the grader's message: it may contain the answer.
  const why = grade.kind === 'failed' ? grade.code : 'it graded nothing';
  throw flowRefusal('grader_failed', `the grader gave no reward: ${why}`, { hint: 'that is not a reward of 0' });
}

function messagesOf(turns: readonly Turn[], prompt: readonly number[], response: readonly number[]): readonly Message[] {
  const turn = turns.find((one) => hasIds(one, prompt, response));
  if (turn !== undefined) return [...turn.request.messages, turn.response];
  throw flowRefusal('unknown_generation', 'no turn of the trajectory has exactly these ids', { param: 'response_ids' });
}
