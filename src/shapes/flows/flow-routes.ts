/**
 * The agent-flow protocol, mounted on a gateway: routes for trusted code that builds its own steps (flow or admin keys only), and base URLs
 * for agents that speak the OpenAI API, below which the gateway serves the model's routes with its own keys.
 *
 * Data counts as accepted only with a 2xx response. With the key of a rollout that a run holds, `init_trajectory` returns that rollout: the
 * run decides its purpose and stores it. Otherwise it opens a new trajectory, stored on completion.
 */
import { networkInterfaces } from 'node:os';
import type { RunHost, WorkflowContext } from '../../core/contracts.ts';
import { TrainyardError } from '../../core/errors.ts';
import type { Task } from '../../core/types.ts';
import { parsed } from '../../gateway/dialects/dialect.ts';
import { Gateway } from '../../gateway/gateway.ts';
import { SignedIds } from '../../gateway/identity.ts';
import { GATEWAY_LIMITS } from '../../gateway/wire-protocol.ts';
import { isLoopback } from '../../http/guard.ts';
import {
  decoded,
  type HttpReply,
  type HttpRequest,
  jsonReply,
  parseJson,
  type RouteMatch,
  Router,
  readText,
  routeFor,
} from '../../http/message.ts';
import { httpRefusal } from '../../http/refusal.ts';
import {
  BASE,
  batchRequest,
  channelOf,
  checkedUid,
  completion,
  FLOW_CAPABILITIES,
  FLOW_ROUTES,
  type FlowRoute,
  flowRefusal,
  initialisation,
  purposeOf,
  registration,
} from './flow-protocol.ts';
import { computeReward, type FlowCall, type FlowParts, generate, submitSteps } from './flow-steps.ts';
import { type FlowTrajectory, UNNAMED_PROMPT } from './flow-trajectory.ts';
import type { FlowDoor } from './flow-workflow.ts';
import type { GroupPool, ServedStep } from './group-pool.ts';
import { type TableParts, TrajectoryTable } from './trajectory-table.ts';

type FlowOptions = Omit<TableParts, 'gateway'> & Pick<FlowParts, 'pool'>;

const router = new Router(FLOW_ROUTES.map((route) => ({ ...route, path: `/${route.path}` })));
/** The model's routes below a base URL. `/r/<rollout>/v1` is the gateway's own. */
const models = new Router([{ method: 'ANY', path: `/${BASE}/{rest+}` }]);

/** Callers that let trajectories be opened here must drain the returned table at the end. */
export function mountAgentFlow(gateway: Gateway, options: FlowOptions): TrajectoryTable {
  const table = new TrajectoryTable({ ...options, gateway });
  const parts: FlowParts = { ...options, gateway, table, ids: new SignedIds('gen', options.journal?.secret) };
  gateway.mount(async (request) => {
    const match = router.match(request.path);
    if (match?.segments['trajectory'] === 'r') return undefined;
    if (match !== undefined) return await serve(parts, match, request);
    const { segments } = models.match(request.path) ?? {};
    return segments === undefined || segments['trajectory'] === 'r' ? undefined : await callModel(parts, segments, request);
  });
  return table;
}

/** Mounts the routes on a run's gateway. The returned function gives each rollout's flow its access to the gateway. */
export function attachTo({ gateway, grader }: RunHost): (ctx: WorkflowContext, task: Task) => FlowDoor {
  if (!(gateway instanceof Gateway)) throw new TrainyardError('NO_ROLLOUT', 'a flow needs a gateway in its own process');
  const tasks = new WeakMap<object, Task>();
  const table = mountAgentFlow(gateway, { grader, taskOf: ({ session }) => tasks.get(session) });
  return ({ rolloutId, signal }, task) => {
    const session = gateway.session(rolloutId)!;
    tasks.set(session, task);
    return {
      url: gateway.origin,
      key: gateway.key('flow', { rollout: rolloutId }),
      fetch: gateway.fetch as typeof globalThis.fetch,
      signal,
      sampling: session.spec.sampling,
      submitted: () => table.find({ capability: 'flow', rollout: rolloutId, session: session.number }, rolloutId),
    };
  };
}

const HANDLERS: Readonly<Record<FlowRoute['does'], (parts: FlowParts, call: FlowCall) => HttpReply | Promise<HttpReply>>> = {
  generate,
  submit: submitSteps,
  reward: computeReward,
  init: initTrajectory,
  register: registerTrajectory,
  complete: completeTrajectory,
  steps: showSteps,
  fetch: fetchBatch,
  pool: showPool,
};
const WITH_BODY: readonly FlowRoute['does'][] = ['generate', 'submit', 'reward'];

async function serve(parts: FlowParts, match: RouteMatch<FlowRoute>, request: HttpRequest): Promise<HttpReply> {
  const { does, may = FLOW_CAPABILITIES } = routeFor(match, request.method, request.path);
  const grant = parts.gateway.authorize(request, may);
  const { trajectory, prompt } = namesIn(match.segments);
  const named = trajectory === undefined ? undefined : parts.table.find(grant, trajectory);
  if (prompt !== undefined) named?.isOfPrompt(prompt);
  const text = await readText(request, GATEWAY_LIMITS.bodyBytes);
  const raw = text === '' && !WITH_BODY.includes(does) ? {} : parseJson(text, GATEWAY_LIMITS);
  const reply = await HANDLERS[does](parts, { request, grant, text, raw, named: named! });
  if (named !== undefined) await parts.table.journal(named);
  return reply;
}

async function callModel(
  { gateway, table }: FlowParts,
  segments: RouteMatch<never>['segments'],
  request: HttpRequest,
): Promise<HttpReply> {
  const grant = gateway.authorize(request, ['agent', ...FLOW_CAPABILITIES]);
  const { trajectory: uid = '', prompt = '' } = namesIn(segments);
  const trajectory = table.get(grant, uid);
  // An agent may not name its prompt: that would choose its group and the task it is graded on.
  if (grant.capability === 'agent') trajectory?.checkPrompt(prompt);
  else trajectory?.isOfPrompt(prompt);
  if (trajectory !== undefined) await table.journal(trajectory);
  return await gateway.answer({ ...request, path: `/r/${encodeURIComponent(trajectory?.uid ?? uid)}/v1/${segments['rest']}` });
}

function namesIn({ trajectory, prompt }: RouteMatch<never>['segments']) {
  if (trajectory === undefined || prompt === undefined) return {};
  return {
    trajectory: checkedUid(decoded(trajectory), 'trajectory_uid'),
    prompt: checkedUid(decoded(prompt), 'prompt_uid'),
  };
}

async function initTrajectory({ table, gateway }: FlowParts, { request, grant, raw }: FlowCall): Promise<HttpReply> {
  const body = parsed(initialisation, raw);
  const promptUid = body.prompt_uid ?? undefined;
  const taskId = body.task_id ?? undefined;
  const purpose = purposeOf(body.channel);
  const trajectory = grant.rollout === undefined ? table.open({ promptUid, taskId, purpose }) : table.find(grant, grant.rollout);
  trajectory.checkPurpose(purpose);
  if (promptUid !== undefined) trajectory.isOfPrompt(promptUid);
  await table.journal(trajectory);
  const { uid, session, isHeld } = trajectory;
  const prompt = isHeld ? trajectory.promptUid : (promptUid ?? UNNAMED_PROMPT);
  const origin = originFor(gateway.origin, request.header('host'));
  const base = `${origin}/${encodeURIComponent(uid)}/${encodeURIComponent(prompt)}/v1`;
  return jsonReply(200, { trajectory_uid: uid, base_url: base, api_key: session.model().apiKey });
}

const HOST = /^(\[[0-9a-f:.]+\]|[\w.-]+):(\d{1,5})$/i;

/**
 * The origin to give to a caller: the one it used, if that is certainly this machine. The sender chooses the `Host` header, so a foreign
 * host must not end up in a URL that keys are sent to.
 */
export function originFor(bound: string, host: string | undefined): string {
  const [, name, port] = HOST.exec(host ?? '') ?? [];
  if (name === undefined || port !== new URL(bound).port) return bound;
  const bare = name.replace(/^\[|\]$/g, '');
  const isOwn = () => Object.values(networkInterfaces()).some((all) => all?.some(({ address }) => address === bare));
  return isLoopback(name) || isOwn() ? `http://${name}:${port}` : bound;
}

function registerTrajectory(_: FlowParts, { named: trajectory, raw }: FlowCall): HttpReply {
  const { channel, metadata } = parsed(registration, raw);
  if (trajectory.completion !== undefined) throw isComplete(trajectory);
  trajectory.isFor(purposeOf(channel));
  if (metadata != null) {
    const { task_id: taskId } = metadata;
    if (!trajectory.isHeld && typeof taskId === 'string') trajectory.taskId ??= taskId;
    trajectory.metadata = { ...trajectory.metadata, ...metadata };
  }
  return jsonReply(200, { status: 'ok' });
}

/** Idempotent: repeating the same completion succeeds, a different one is refused. */
async function completeTrajectory({ table }: FlowParts, { named: trajectory, raw }: FlowCall): Promise<HttpReply> {
  const { reward, channel, error } = parsed(completion, raw);
  trajectory.checkPurpose(purposeOf(channel));
  const ending = { reward: reward ?? undefined, error: error ?? undefined };
  const known = trajectory.completion;
  const isSame = known === undefined || (known.reward === ending.reward && known.error === ending.error);
  if (!isSame && (reward != null || error != null)) throw isComplete(trajectory);
  trajectory.completion ??= { ...ending, turns: trajectory.session.turns.length };
  await table.complete(trajectory);
  return jsonReply(200, { status: 'ok', num_steps: trajectory.stepCount });
}

function isComplete({ uid }: FlowTrajectory): Error {
  const hint = 'what was said first holds';
  return flowRefusal('trajectory_complete', `trajectory ${uid} is complete, as something else`, { hint });
}

function showSteps(_: FlowParts, { named: trajectory }: FlowCall): HttpReply {
  const { trainedTurns, reward } = trajectory;
  return jsonReply(200, {
    trajectory_uid: trajectory.uid,
    prompt_uid: trajectory.promptUid,
    channel: channelOf(trajectory.purpose),
    complete: trajectory.completion !== undefined,
    num_steps: trajectory.stepCount,
    steps: trajectory.steps.map(({ index, turn, reward: earned = null, isLast, metadata = null }) => ({
      step_index: index,
      turn,
      reward: earned,
      is_last: isLast,
      metadata,
    })),
    trained_turns: trainedTurns ?? null,
    output: trajectory.output ?? null,
    reward: reward === undefined ? null : { value: reward.value, by_turn: reward.byTurn ?? null },
    metadata: trajectory.metadata ?? null,
  });
}

async function fetchBatch(parts: FlowParts, { request, raw }: FlowCall): Promise<HttpReply> {
  const pool = poolOf(parts);
  const { groups, n, channel, wait_s, policy_version, max_staleness, stale, batch_id } = parsed(batchRequest, raw);
  const policyVersion = policy_version ?? parts.gateway.policy.engine.policyVersion;
  const wanted = {
    purpose: purposeOf(channel) ?? 'train',
    groups,
    n: n ?? undefined,
    stale: max_staleness == null ? undefined : { policyVersion, most: max_staleness, rule: stale },
    batchId: batch_id ?? undefined,
  };
  const patience = AbortSignal.any([AbortSignal.timeout(wait_s * 1000), ...(request.signal ? [request.signal] : [])]);
  const fetched = await pool.fetch(wanted, patience);
  if (fetched.kind !== 'batch') return jsonReply(200, { status: fetched.kind, batch_id: null, steps: null });
  return jsonReply(200, { status: 'batch', batch_id: fetched.batchId, steps: fetched.steps.map(rowOf) });
}

function showPool(parts: FlowParts): HttpReply {
  const pool = poolOf(parts);
  return jsonReply(200, { train: pool.counts('train'), val: pool.counts('eval') });
}

function poolOf({ pool }: FlowParts): GroupPool {
  if (pool !== undefined) return pool;
  const hint = 'a run trains its groups itself; trainyard serve hands them out';
  throw httpRefusal('not_found', 'no groups are handed out here', { hint });
}

/** The format of `/submit_steps`, with additional fields. */
function rowOf({ groupId, rolloutId, index, isLast, turn, reward, value, weight }: ServedStep): object {
  return {
    prompt_uid: groupId,
    trajectory_uid: rolloutId,
    step_index: index,
    is_last: isLast,
    prompt_ids: [...turn.promptIds],
    response_ids: [...turn.sampledIds],
    rollout_log_probs: [...turn.logprobs],
    temperature: turn.sampling.effective.temperature,
    policy_version: turn.policyVersion,
    reward,
    trajectory_reward: value,
    weight,
  };
}
