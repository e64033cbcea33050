/**
 * The gateway's flow routes as functions, for code that holds a flow key, and the `Step` that flows submit there. In process `fetch` is the
 * gateway's own; it makes no difference.
 *
 * Nothing is sent twice here: a generation that is asked for again would be another turn.
 */
import { checkNames, describeValue, unknownOptions } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Json, Message, StopReason, Tool } from '../core/types.ts';

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
  /** Accepted and not used: the gateway joins the answer, by the task of the trajectory. */
  readonly datasetFields?: Readonly<Record<string, Json>>;
}

export interface GatewayReward {
  readonly reward: number;
  readonly parts: Readonly<Record<string, number>>;
}

const FIELDS = [
  ...['trajectoryUid', 'promptUid', 'messages', 'tools', 'promptIds'],
  ...['temperature', 'topP', 'topK', 'maxTokens', 'stop'],
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

/** How many steps there are now, those that were there before included. */
export async function submitSteps(door: GatewayDoor, steps: readonly Step[], channel?: 'train' | 'val'): Promise<number> {
  const query = channel === undefined ? '' : `?channel=${channel}`;
  const body = { steps: steps.map(wireOf) };
  return (await post<{ readonly accepted: number }>(door, `/submit_steps${query}`, body)).accepted;
}

export async function computeReward(door: GatewayDoor, fields: RewardFields): Promise<GatewayReward> {
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
  given: { readonly channel?: 'train' | 'val' | undefined; readonly metadata?: Readonly<Record<string, Json>> },
): Promise<void> {
  await post(door, `${base}/register_trajectory`, given);
}

/** The number of steps it has. A trajectory whose flow was cancelled is completed all the same. */
export async function completeTrajectory(
  door: GatewayDoor,
  base: string,
  given: { readonly reward?: number | undefined; readonly error?: string | undefined },
): Promise<number> {
  const after = { ...door, signal: AbortSignal.timeout(30_000) };
  return (await post<{ readonly numSteps: number }>(after, `${base}/complete_trajectory`, given)).numSteps;
}

/** Base URL of a trajectory. */
export function baseOf({ url }: Pick<GatewayDoor, 'url'>, trajectoryUid: string, promptUid: string): string {
  return `${url.replace(/\/$/, '')}/${encodeURIComponent(trajectoryUid)}/${encodeURIComponent(promptUid)}/v1`;
}

/** With the reply's names as ours. */
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

// ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

export interface StepFields {
  /** All tokens the policy was shown. */
  readonly promptIds: readonly number[];
  /** The tokens it sampled. */
  readonly responseIds: readonly number[];
  /** Earned at once; null: the grader says it for the whole trajectory. */
  readonly reward?: number | null | undefined;
  readonly multiModalData?: null | undefined;
  /** One for each of `responseIds`. */
  readonly rolloutLogProbs?: readonly number[] | null | undefined;
  readonly routedExperts?: null | undefined;
  readonly trajectoryUid: string;
  readonly promptUid: string;
  /** From 0, without gaps. */
  readonly stepIndex?: number;
  readonly policyVersion?: number;
  /** Completes the trajectory. */
  readonly isLast?: boolean;
  readonly metadata?: Readonly<Record<string, Json>> | null | undefined;
  /** As `gatewayGenerate` gave it. */
  readonly generationId?: string | undefined;
}

/**
 * One step of a trajectory as a flow builds it: what the policy was shown, what it said, and what that earned. The twelve fields of the
 * wire format, and the generation it was. Checked when it is made, all mistakes at once.
 *
 * Log-probabilities and version are there because the format has them: what is trained is what the gateway recorded.
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
  readonly metadata: Readonly<Record<string, Json>> | null = null;
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

/** As it is sent: `promptIds` is `prompt_ids` there. */
function wireOf(fields: object): object {
  return renamed(fields, (name) => name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`));
}

const isNatural = (value: unknown): boolean => Number.isSafeInteger(value) && Number(value) >= 0;
const isName = (value: unknown): boolean => typeof value === 'string' && value !== '';
const isList = (value: unknown, isItem: (item: unknown) => boolean): boolean => Array.isArray(value) && value.every(isItem);
const isIds = (value: unknown): boolean => isList(value, isNatural) && (value as readonly unknown[]).length > 0;
const isLogprob = (value: unknown): boolean => Number.isFinite(value) && Number(value) <= 0;

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
