/**
 * The gateway's flow routes as functions, for code that holds a flow key. In process `fetch` is the gateway's own; it makes no difference.
 *
 * Nothing is sent twice here: a generation that is asked for again would be another turn.
 */

import { checkNames } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Json, Message, StopReason, Tool } from '../core/types.ts';
import { type Step, wireOf } from './step.ts';

export interface GatewayDoor {
  readonly url: string;
  readonly key: string;
  readonly fetch: typeof globalThis.fetch;
  readonly signal: AbortSignal;
}

/** How a flow wants to sample; for what is trained the run's own settings win. */
export interface SamplingParams {
  readonly temperature?: number;
  readonly topP?: number;
  readonly topK?: number;
  readonly maxTokens?: number;
  readonly stop?: string | readonly string[];
}

export type GenerateFields = SamplingParams & {
  /** Absent: the one of the key. */
  readonly trajectoryUid?: string;
  readonly promptUid?: string;
} & (
    | { readonly messages: readonly FlowMessage[]; readonly tools?: readonly Tool[]; readonly promptIds?: undefined }
    | { readonly promptIds: readonly number[]; readonly messages?: undefined }
  );

/** A message as flows write them: an assistant's text may be what `gatewayGenerate` gave, tool calls and all. */
export type FlowMessage = Pick<Message, 'role' | 'content'> & Partial<Pick<Message, 'tool_calls' | 'tool_call_id' | 'name'>>;

export interface GatewayGeneration {
  /** What was sampled, as text, without the token that ends a turn. */
  readonly text: string;
  readonly responseIds: readonly number[];
  readonly promptIds: readonly number[];
  readonly logProbs: readonly number[];
  readonly stopReason: StopReason;
  readonly policyVersion: number;
  readonly generationId: string;
  /** The same in words: with its tool calls, if it made any. */
  readonly message: Message;
}

export interface RewardFields {
  readonly trajectoryUid?: string;
  readonly messages?: readonly FlowMessage[];
  readonly promptIds?: readonly number[];
  readonly responseIds?: readonly number[];
  /** Taken and not looked at: the answer is joined by the gateway, by the task of the trajectory. */
  readonly datasetFields?: Readonly<Record<string, Json>>;
}

export interface GatewayReward {
  readonly reward: number;
  readonly parts: Readonly<Record<string, number>>;
}

/** What steps and completion say of a trajectory. */
export interface Submitted {
  readonly steps: number;
  /** The last that the policy said. */
  readonly output: string | undefined;
  readonly trainedTurns: readonly number[] | undefined;
  readonly reward: { readonly value: number; readonly byTurn?: Readonly<Record<string, number>> } | undefined;
  readonly metadata: Readonly<Record<string, Json>> | undefined;
}

export async function generate(door: GatewayDoor, fields: GenerateFields): Promise<GatewayGeneration> {
  const sampled = ['temperature', 'topP', 'topK', 'maxTokens', 'stop'];
  const known = [...sampled, 'trajectoryUid', 'promptUid', 'messages', 'tools', 'promptIds'];
  checkNames(fields, known, 'gatewayGenerate', 'REQUEST_INVALID');
  const { trajectoryUid, promptUid, temperature, topP, topK, maxTokens, stop, messages, promptIds } = fields;
  const sampling = { temperature, top_p: topP, top_k: topK, max_tokens: maxTokens, stop };
  const asked =
    messages === undefined
      ? { prompt_ids: promptIds, sampling_params: sampling }
      : { ...sampling, messages, tools: fields.tools };
  const said = (await post(door, '/generate', { trajectory_uid: trajectoryUid, prompt_uid: promptUid, ...asked })) as {
    readonly response_text: string;
    readonly response_ids: readonly number[];
    readonly prompt_ids: readonly number[];
    readonly log_probs: readonly number[];
    readonly stop_reason: StopReason;
    readonly policy_version: number;
    readonly generation_id: string;
    readonly message: Message;
  };
  return {
    text: said.response_text,
    responseIds: said.response_ids,
    promptIds: said.prompt_ids,
    logProbs: said.log_probs,
    stopReason: said.stop_reason,
    policyVersion: said.policy_version,
    generationId: said.generation_id,
    message: said.message,
  };
}

/** How many are there now, those that were there before included. */
export async function submitSteps(door: GatewayDoor, steps: readonly Step[], channel?: 'train' | 'val'): Promise<number> {
  const query = channel === undefined ? '' : `?channel=${channel}`;
  const { accepted } = (await post(door, `/submit_steps${query}`, { steps: steps.map(wireOf) })) as { readonly accepted: number };
  return accepted;
}

export async function computeReward(door: GatewayDoor, fields: RewardFields): Promise<GatewayReward> {
  const { trajectoryUid, messages, promptIds, responseIds, datasetFields } = fields;
  const names = { trajectory_uid: trajectoryUid, dataset_fields: datasetFields };
  const asked = messages === undefined ? { prompt_ids: promptIds, response_ids: responseIds } : { messages };
  const { reward, reward_extra_info: parts } = (await post(door, '/compute_reward', { ...names, ...asked })) as {
    readonly reward: number;
    readonly reward_extra_info: Readonly<Record<string, number>>;
  };
  return { reward, parts };
}

export async function initTrajectory(
  door: GatewayDoor,
): Promise<{ readonly trajectoryUid: string; readonly baseURL: string; readonly apiKey: string }> {
  const begun = (await post(door, '/init_trajectory', {})) as {
    readonly trajectory_uid: string;
    readonly base_url: string;
    readonly api_key: string;
  };
  return { trajectoryUid: begun.trajectory_uid, baseURL: begun.base_url, apiKey: begun.api_key };
}

export async function registerTrajectory(
  door: GatewayDoor,
  base: string,
  given: { readonly channel?: 'train' | 'val' | undefined; readonly metadata?: Readonly<Record<string, Json>> },
): Promise<void> {
  await post(door, `${base}/register_trajectory`, given);
}

/** The number of steps it has. */
export async function completeTrajectory(
  door: GatewayDoor,
  base: string,
  given: { readonly reward?: number | undefined; readonly error?: string | undefined },
): Promise<number> {
  // What was cancelled is completed all the same.
  const after = { ...door, signal: AbortSignal.timeout(30_000) };
  const { num_steps: steps } = (await post(after, `${base}/complete_trajectory`, given)) as { readonly num_steps: number };
  return steps;
}

export async function submitted(door: GatewayDoor, trajectoryUid: string, promptUid: string): Promise<Submitted> {
  const path = `/${encodeURIComponent(trajectoryUid)}/${encodeURIComponent(promptUid)}/v1/steps`;
  const said = (await call(door, path, { method: 'GET' })) as {
    readonly num_steps: number;
    readonly output: string | null;
    readonly trained_turns: readonly number[] | null;
    readonly reward: { readonly value: number; readonly by_turn: Readonly<Record<string, number>> | null } | null;
    readonly metadata: Readonly<Record<string, Json>> | null;
  };
  const { reward } = said;
  return {
    steps: said.num_steps,
    output: said.output ?? undefined,
    trainedTurns: said.trained_turns ?? undefined,
    reward: reward === null ? undefined : { value: reward.value, ...(reward.by_turn === null ? {} : { byTurn: reward.by_turn }) },
    metadata: said.metadata ?? undefined,
  };
}

function post(door: GatewayDoor, path: string, body: object): Promise<unknown> {
  return call(door, path, { method: 'POST', body: JSON.stringify(body) });
}

async function call(door: GatewayDoor, path: string, init: RequestInit): Promise<unknown> {
  const headers = { authorization: `Bearer ${door.key}`, 'content-type': 'application/json' };
  const url = path.startsWith('/') ? `${door.url.replace(/\/$/, '')}${path}` : path;
  const reply = await door.fetch(url, { ...init, headers, signal: door.signal });
  const said = (await reply.json().catch(() => undefined)) as {
    readonly error?: { readonly message?: string; readonly code?: string };
  };
  if (reply.ok) return said;
  const { message = `the gateway answered ${reply.status}`, code } = said?.error ?? {};
  throw new TrainyardError('WORKFLOW_FAILED', `${new URL(url).pathname}: ${code === undefined ? '' : `${code}: `}${message}`, {
    details: { status: reply.status, code: code ?? null },
  });
}
