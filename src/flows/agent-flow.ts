/**
 * The agent-flow protocol, mounted on a gateway: routes for trusted code that builds its own steps, and base URLs for agents that speak
 * OpenAI. Only keys for flow and admin reach its own routes; below a base URL the routes of the model are the gateway's, with its keys.
 *
 * What is written, is written with a 2xx and only then.
 */

import type { Gateway } from '../gateway/gateway.ts';
import type { Grant } from '../gateway/keys.ts';
import { GATEWAY_LIMITS } from '../gateway/limits.ts';
import { type HttpReply, type HttpRequest, parseJson, readText } from '../http/message.ts';
import { decoded, routeFor } from '../http/router.ts';
import { computeReward, gradeTrajectory } from './compute-reward.ts';
import { fetchBatch, showPool } from './fetch-batch.ts';
import type { FlowOptions, FlowParts } from './flow-parts.ts';
import { FLOW_CAPABILITIES, type FlowPlace, type FlowRoute, flowPlaceOf } from './flow-routes.ts';
import type { FlowTrajectory } from './flow-trajectory.ts';
import { generate } from './generate.ts';
import { GenerationIds } from './generation-ids.ts';
import { completeTrajectory, initTrajectory, registerTrajectory, showSteps } from './lifecycle.ts';
import { submitSteps } from './submit-steps.ts';
import { type TableParts, TrajectoryTable } from './trajectory-table.ts';
import { checkedUid } from './uids.ts';

export interface MountedFlows {
  /** Keeps what was opened over HTTP and is not kept yet. */
  drain(): Promise<void>;
}

export function mountAgentFlow(gateway: Gateway, options: FlowOptions): MountedFlows {
  const canGrade = (trajectory: FlowTrajectory): boolean =>
    options.grader !== undefined && options.taskOf?.(trajectory) !== undefined;
  const grade: TableParts['grade'] = async (trajectory) =>
    canGrade(trajectory)
      ? await gradeTrajectory(options, trajectory)
      : { kind: 'ungraded', why: 'nothing grades what is served' };
  const table = new TrajectoryTable({ ...options, gateway, grade });
  const parts: FlowParts = { ...options, gateway, table, ids: new GenerationIds() };
  gateway.mount(async (call) => {
    const place = flowPlaceOf(call.path);
    if (place === undefined) return undefined;
    return place.route === undefined ? await callModel(parts, place, call) : await serve(parts, place.route, place, call);
  });
  return { drain: () => table.drain() };
}

async function serve(parts: FlowParts, route: FlowRoute, place: FlowPlace, unread: HttpRequest): Promise<HttpReply> {
  routeFor({ routes: [route], segments: {} }, unread.method, unread.path);
  const { does, may = FLOW_CAPABILITIES } = route;
  const grant = parts.gateway.authorize(unread, may);
  if (does === 'pool') return showPool(parts);
  const named = place.trajectory === undefined ? undefined : namedIn(parts, grant, place);
  if (named !== undefined && does === 'steps') return showSteps(named);
  const text = await readText(unread, GATEWAY_LIMITS.bodyBytes);
  const call = { ...unread, text };
  const isOptional = does === 'init' || does === 'fetch' || does === 'register' || does === 'complete';
  const raw = text === '' && isOptional ? {} : parseJson(text, GATEWAY_LIMITS);
  if (named !== undefined)
    return does === 'register' ? registerTrajectory(named, raw) : await completeTrajectory(parts, named, raw);
  if (does === 'generate') return await generate(parts, grant, call, raw);
  if (does === 'submit') return await submitSteps(parts, grant, call, raw);
  if (does === 'reward') return await computeReward(parts, grant, call, raw);
  if (does === 'fetch') return await fetchBatch(parts, call, raw);
  return initTrajectory(parts, grant, call, raw);
}

/** The trajectory of a base URL, which thereby is of its prompt. */
function namedIn({ table }: FlowParts, grant: Grant, place: FlowPlace): FlowTrajectory {
  const uid = nameIn(place.trajectory, 'trajectory_uid');
  const prompt = nameIn(place.prompt, 'prompt_uid');
  const trajectory = table.find(grant, uid);
  trajectory.isOfPrompt(prompt);
  return trajectory;
}

function nameIn(segment: string | undefined, param: string): string {
  return checkedUid(decoded(segment ?? ''), param);
}

/** The gateway's own route, for the rollout of this name. */
async function callModel({ gateway, table }: FlowParts, place: FlowPlace, call: HttpRequest): Promise<HttpReply | undefined> {
  const grant = gateway.authorize(call, ['agent', ...FLOW_CAPABILITIES]);
  const uid = nameIn(place.trajectory, 'trajectory_uid');
  const prompt = nameIn(place.prompt, 'prompt_uid');
  const trajectory = table.get(grant, uid);
  // An agent is told its prompt: naming it would choose the group, and the task it is graded by.
  if (grant.capability === 'agent') trajectory?.checkPrompt(prompt);
  else trajectory?.isOfPrompt(prompt);
  return await gateway.answer({ ...call, path: `/r/${encodeURIComponent(uid)}/v1/${place.rest}` });
}
