/**
 * Client functions for the gateway's flow routes, for code that holds a flow key, and the `Step` that flows submit. In process, `fetch` is
 * the gateway's own. Never retries: a repeated generation would be another turn.
 */
import { checkNames, describeValue, unknownOptions } from '../../core/describe.ts';
import { TrainyardError } from '../../core/errors.ts';
import type { ByName, Json, Message, StopReason, Tool } from '../../core/types.ts';

export interface GatewayDoor {
  readonly url: string;
  readonly key: string;
  readonly fetch: typeof globalThis.fetch;
  readonly signal: AbortSignal;
}

/** The sampling settings a flow asks for. For trained turns, the run's own settings take precedence. */
export interface SamplingParams {
  readonly temperature?: number;
  readonly topP?: number;
  readonly topK?: number;
  readonly maxTokens?: number;
  readonly stop?: string | readonly string[];
}

export type GenerateFields = SamplingParams & {
  /** Defaults to the trajectory of the key. */
  readonly trajectoryUid?: string;
  readonly promptUid?: string;
} & (
    | { readonly messages: readonly FlowMessage[]; readonly tools?: readonly Tool[]; readonly promptIds?: undefined }
    | { readonly promptIds: readonly number[]; readonly messages?: undefined }
  );

/** A message as flows write it. Assistant content may be the text from `gatewayGenerate`, tool calls included. */
export type FlowMessage = Pick<Message, 'role' | 'content'> & Partial<Pick<Message, 'tool_calls' | 'tool_call_id' | 'name'>>;

export interface GatewayGeneration {
  /** The sampled text, without the end-of-turn token. */
  readonly text: string;
  readonly responseIds: readonly number[];
  readonly promptIds: readonly number[];
  readonly logProbs: readonly number[];
  readonly stopReason: StopReason;
  readonly policyVersion: number;
  readonly generationId: string;
  /** The parsed message, with its tool calls. */
  readonly message: Message;
}

export interface RewardFields {
  readonly trajectoryUid?: string;
  readonly messages?: readonly FlowMessage[];
  readonly promptIds?: readonly number[];
  readonly responseIds?: readonly number[];
  /** What else the grader sees, in `result.metadata.dataset_fields`. The answer is that of the trajectory's task. */
  readonly datasetFields?: ByName<Json>;
}

export interface GatewayReward {
  readonly reward: number;
  readonly parts: ByName<number>;
}

const FIELDS = [
  'trajectoryUid',
  'promptUid',
  'messages',
  'tools',
  'promptIds',
  'temperature',
  'topP',
  'topK',
  'maxTokens',
  'stop',
];

export async function generate(door: GatewayDoor, fields: GenerateFields): Promise<GatewayGeneration> {
  checkNames(fields, FIELDS, 'gatewayGenerate', 'REQUEST_INVALID');
  const { trajectoryUid, promptUid, promptIds, ...inMessages } = fields;
  const { messages, ...sampling } = inMessages;
  const asked = messages === undefined ? { promptIds, sampling_params: wireOf(sampling) } : inMessages;
  const said = await post<Omit<GatewayGeneration, 'text'> & { readonly responseText: string }>(
    door,
    '/generate',
    wireOf({ trajectoryUid, promptUid, ...asked }),
  );
  const { responseText: text, responseIds, logProbs, stopReason, policyVersion, generationId, message } = said;
  return { text, responseIds, promptIds: said.promptIds, logProbs, stopReason, policyVersion, generationId, message };
}

const zeros = new WeakMap<GatewayDoor, string | undefined>();

/** If all steps that the flow submitted had reward 0, where its code did so first: `at <function> (<file>:<line>)`. */
export const zeroSubmittedAt = (door: GatewayDoor): string | undefined => zeros.get(door);

/** Returns how many of these steps were accepted, duplicates of earlier ones included. Called by the method that flows call. */
export async function submitSteps(door: GatewayDoor, steps: readonly Step[], channel?: 'train' | 'val'): Promise<number> {
  const isZero = steps.every(({ reward }) => reward === 0);
  if (!isZero || !zeros.has(door)) zeros.set(door, isZero ? new Error().stack?.split('\n')[3]?.trim() : undefined);
  const query = channel === undefined ? '' : `?channel=${channel}`;
  const body = { steps: steps.map(wireOf) };
  return (await post<{ readonly accepted: number }>(door, `/submit_steps${query}`, body)).accepted;
}

export async function computeReward(door: GatewayDoor, fields: RewardFields): Promise<GatewayReward> {
  const known = ['trajectoryUid', 'messages', 'promptIds', 'responseIds', 'datasetFields'];
  checkNames(fields, known, 'gatewayComputeReward');
  const { trajectoryUid, messages, promptIds, responseIds, datasetFields } = fields;
  const asked = messages === undefined ? { promptIds, responseIds } : { messages };
  type Said = { readonly reward: number; readonly rewardExtraInfo: GatewayReward['parts'] };
  const said = await post<Said>(door, '/compute_reward', wireOf({ trajectoryUid, datasetFields, ...asked }));
  return { reward: said.reward, parts: said.rewardExtraInfo };
}

export function initTrajectory(
  door: GatewayDoor,
): Promise<{ readonly trajectoryUid: string; readonly baseUrl: string; readonly apiKey: string }> {
  return post(door, '/init_trajectory', {});
}

export async function registerTrajectory(
  door: GatewayDoor,
  base: string,
  given: { readonly channel?: 'train' | 'val' | undefined; readonly metadata?: ByName<Json> },
): Promise<void> {
  await post(door, `${base}/register_trajectory`, given);
}

/** Returns the trajectory's number of steps. Ignores the flow's own signal (30 s timeout): a cancelled flow must still be completed. */
export async function completeTrajectory(
  door: GatewayDoor,
  base: string,
  given: { readonly reward?: number | undefined; readonly error?: string | undefined },
): Promise<number> {
  const after = { ...door, signal: AbortSignal.timeout(30_000) };
  return (await post<{ readonly numSteps: number }>(after, `${base}/complete_trajectory`, given)).numSteps;
}

export function baseOf({ url }: Pick<GatewayDoor, 'url'>, trajectoryUid: string, promptUid: string): string {
  return `${url.replace(/\/$/, '')}/${encodeURIComponent(trajectoryUid)}/${encodeURIComponent(promptUid)}/v1`;
}

/** Converts the reply's names to camel case. Throws WORKFLOW_FAILED with `details.status` if the gateway refuses. */
async function post<T>(door: GatewayDoor, path: string, body: object): Promise<T> {
  const headers = { authorization: `Bearer ${door.key}`, 'content-type': 'application/json' };
  const url = path.startsWith('/') ? `${door.url.replace(/\/$/, '')}${path}` : path;
  const reply = await door.fetch(url, { method: 'POST', body: JSON.stringify(body), headers, signal: door.signal });
  const said: unknown = await reply.json().catch(() => undefined);
  if (reply.ok) return renamed(said as object, (name) => name.replaceAll(/_[a-z]/g, ([, letter]) => letter!.toUpperCase())) as T;
  const { error } = (said ?? {}) as { readonly error?: { readonly message?: string; readonly code?: string } };
  const { message = `the gateway answered ${reply.status}`, code } = error ?? {};
  throw new TrainyardError('WORKFLOW_FAILED', `${new URL(url).pathname}: ${code === undefined ? '' : `${code}: `}${message}`, {
    details: { status: reply.status, code: code ?? null },
  });
}

export interface StepFields {
  readonly promptIds: readonly number[];
  readonly responseIds: readonly number[];
  /** Immediate reward. Null: the grader grades the whole trajectory. */
  readonly reward?: number | null | undefined;
  readonly multiModalData?: null | undefined;
  /** One per id in `responseIds`. */
  readonly rolloutLogProbs?: readonly number[] | null | undefined;
  readonly routedExperts?: null | undefined;
  readonly trajectoryUid: string;
  readonly promptUid: string;
  /** From 0, without gaps. */
  readonly stepIndex?: number;
  readonly policyVersion?: number;
  /** Completes the trajectory. */
  readonly isLast?: boolean;
  readonly metadata?: ByName<Json> | null | undefined;
  readonly generationId?: string | undefined;
}

/**
 * One step of a trajectory in the twelve fields of the wire format, plus the generation's id. The constructor reports all mistakes at once.
 * Log-probabilities and policy version are only part of the format: training uses the gateway's record.
 */
export class Step {
  declare readonly promptIds: readonly number[];
  declare readonly responseIds: readonly number[];
  readonly reward: number | null = null;
  readonly multiModalData: null = null;
  readonly rolloutLogProbs: readonly number[] | null = null;
  readonly routedExperts: null = null;
  declare readonly trajectoryUid: string;
  declare readonly promptUid: string;
  readonly stepIndex: number = 0;
  readonly policyVersion: number = 0;
  readonly isLast: boolean = false;
  readonly metadata: ByName<Json> | null = null;
  declare readonly generationId: string | undefined;

  constructor(fields: StepFields) {
    const mistakes = mistakesIn(fields);
    if (mistakes.length > 0) throw new TrainyardError('WORKFLOW_BAD_RESULT', `not a step: ${mistakes.join('; also: ')}`);
    Object.assign(this, Object.fromEntries(Object.entries(fields).filter(([, value]) => value != null)));
  }
}

function renamed(fields: object, rename: (name: string) => string): object {
  return Object.fromEntries(Object.entries(fields).map(([name, value]) => [rename(name), value]));
}

function wireOf(fields: object): object {
  return renamed(fields, (name) => name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`));
}

const isNatural = (value: unknown) => Number.isSafeInteger(value) && Number(value) >= 0;
const isName = (value: unknown) => typeof value === 'string' && value !== '';
const isList = (value: unknown, isItem: (item: unknown) => boolean) => Array.isArray(value) && value.every(isItem);
const isIds = (value: unknown) => isList(value, isNatural) && (value as readonly unknown[]).length > 0;
const isLogprob = (value: unknown) => Number.isFinite(value) && Number(value) <= 0;

const REQUIRED: readonly (keyof StepFields)[] = ['promptIds', 'responseIds', 'trajectoryUid', 'promptUid'];
const CHECKS: Readonly<Record<keyof StepFields, readonly [expected: string, isRight: (value: unknown) => boolean]>> = {
  promptIds: ['token ids', isIds],
  responseIds: ['token ids', isIds],
  reward: ['a finite number or null', Number.isFinite],
  multiModalData: ['nothing: policies here read text only', () => false],
  routedExperts: ['nothing', () => false],
  rolloutLogProbs: ['finite numbers up to 0', (value) => isList(value, isLogprob)],
  trajectoryUid: ['a name', isName],
  promptUid: ['a name', isName],
  stepIndex: ['a whole number from 0 up', isNatural],
  policyVersion: ['a whole number from 0 up', isNatural],
  isLast: ['true or false', (value) => typeof value === 'boolean'],
  metadata: ['an object', (value) => typeof value === 'object' && !Array.isArray(value)],
  generationId: ['a text', isName],
};

function mistakesIn(fields: StepFields): readonly string[] {
  if (typeof fields !== 'object' || fields === null) return [`expected an object, found ${describeValue(fields)}`];
  const names = Object.keys(CHECKS) as (keyof StepFields)[];
  const wrong = names.filter((name) => {
    const isMissing = fields[name] == null && !REQUIRED.includes(name);
    return !isMissing && !CHECKS[name][1](fields[name]);
  });
  const mistakes = wrong.map((name) => `${name}: expected ${CHECKS[name][0]}, found ${describeValue(fields[name])}`);
  const { rolloutLogProbs, responseIds } = fields;
  if (mistakes.length === 0 && rolloutLogProbs != null && rolloutLogProbs.length !== responseIds.length) {
    const found = `found ${rolloutLogProbs.length}`;
    mistakes.push(`rolloutLogProbs: expected ${responseIds.length}, one for each of responseIds, ${found}`);
  }
  return [...unknownOptions(fields, names, 'a step'), ...mistakes];
}
