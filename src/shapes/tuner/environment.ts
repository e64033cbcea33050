/**
 * Client for environments behind an HTTP service, as in AgentScope's env_service: create an instance for a task, step it, evaluate it,
 * release it. Works in workflows and graders; `await using` always releases the instance. `environmentTasks` lists the service's tasks as
 * rows. A failed call is retried three times with growing pauses. A step is retried only if it cannot have arrived: repeating an action
 * would change the episode.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { describeThrown, describeValue } from '../../core/describe.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { MAX_NESTING, nestingOf, parsedJson } from '../../core/json.ts';
import type { ByName, Json } from '../../core/types.ts';
import { textWithin } from '../../http/message.ts';
import { invalid, type TaskRow } from '../../tasks/rows.ts';

const RETRIES = 3;
const FIRST_PAUSE_MS = 500;
const TIMEOUT_MS = 300_000;
/** Short, because cleaning up must not delay a rollout. */
const RELEASE_TIMEOUT_MS = 10_000;

export interface EnvironmentOptions {
  /** The service's address, such as http://127.0.0.1:8080. */
  readonly url: string;
  readonly envType: string;
  /** Limit for one call. Default 300 s. */
  readonly timeoutMs?: number | undefined;
  /** Aborts every call; in a workflow, pass `ctx.signal`. */
  readonly signal?: AbortSignal | undefined;
}

type Fields = ByName<Json>;

export interface StepResult {
  /** What the environment returned, usually messages. */
  readonly state: Json;
  readonly reward: number | null;
  readonly isTerminated: boolean;
  readonly info: Json;
}

const answerSchema = z.looseObject({ success: z.boolean().optional(), data: z.unknown().optional() });
const createdSchema = z.looseObject({ state: z.unknown().optional(), info: z.unknown().optional() });
const stepSchema = z.looseObject({
  state: z.unknown().optional(),
  reward: z.number().nullable().optional(),
  is_terminated: z.boolean().optional(),
  info: z.unknown().optional(),
});
const idsSchema = z.array(z.union([z.string().min(1), z.number()]));

export class EnvironmentClient {
  readonly #options: EnvironmentOptions;

  constructor(options: EnvironmentOptions) {
    if (!/^https?:\/\//.test(options.url) || !URL.canParse(options.url)) {
      throw new TrainyardError('USAGE', `url: expected http://… or https://…, found ${describeValue(options.url)}`);
    }
    const { username, password } = new URL(options.url);
    // The error does not repeat the URL, because errors end up in logs.
    if (username !== '' || password !== '')
      throw new TrainyardError('USAGE', 'url: expected one without a user name or password');
    this.#options = options;
  }

  async taskIds(split = 'train', params: Fields = {}): Promise<readonly string[]> {
    const data = await callService(this.#options, 'get_env_profile', { params: { ...params, split } });
    return checked(idsSchema, data, 'a list of task ids').map(String);
  }

  async create(taskId: string, params: Fields = {}): Promise<EnvironmentInstance> {
    // Chosen here, so that the instance can be released even if the response to its creation is lost.
    const instanceId = randomUUID().replaceAll('-', '');
    try {
      const data = await callService(this.#options, 'create', { instance_id: instanceId, task_id: taskId, params });
      const { state, info } = checked(createdSchema, data, 'a state');
      return new EnvironmentInstance(this.#options, instanceId, { state, info } as { state: Json; info: Json });
    } catch (thrown) {
      await release(this.#options, instanceId).catch(() => {});
      throw thrown;
    }
  }
}

export class EnvironmentInstance implements AsyncDisposable {
  readonly instanceId: string;
  readonly state: Json;
  readonly info: Json;
  readonly #options: EnvironmentOptions;
  #released: Promise<void> | undefined;

  constructor(options: EnvironmentOptions, instanceId: string, created: { readonly state: Json; readonly info: Json }) {
    this.#options = options;
    this.instanceId = instanceId;
    this.state = created.state ?? null;
    this.info = created.info ?? null;
  }

  async step(action: Json, params: Fields = {}): Promise<StepResult> {
    const found = checked(stepSchema, await this.#call('step', action, params, false), 'the result of a step');
    const { state = null, reward = null, is_terminated: isTerminated = false, info = null } = found;
    return { state: state as Json, reward, isTerminated, info: info as Json };
  }

  /** The score. Throws WORKFLOW_FAILED if the service gives none. */
  async evaluate(messages: Json = {}, params: Fields = {}): Promise<number> {
    return checked(z.number(), await this.#call('evaluate', messages, params), 'a finite number');
  }

  async getInfo(messages: Json = {}, params: Fields = {}): Promise<Json> {
    return ((await this.#call('get_info', messages, params)) ?? null) as Json;
  }

  /** Idempotent. */
  release(): Promise<void> {
    this.#released ??= release(this.#options, this.instanceId);
    return this.#released;
  }

  /** Ignores errors: they must not hide the error that left the scope. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch(() => {});
  }

  #call(route: string, messages: Json, params: Fields, isRepeatable?: boolean): Promise<unknown> {
    return callService(this.#options, route, { instance_id: this.instanceId, messages, params }, isRepeatable);
  }
}

/** Not bound to the rollout's signal: the service must free the instance even after an abort. */
async function release(options: EnvironmentOptions, instanceId: string): Promise<void> {
  await callService({ ...options, signal: undefined, timeoutMs: RELEASE_TIMEOUT_MS }, 'release', { instance_id: instanceId });
}

async function callService(options: EnvironmentOptions, route: string, fields: Fields, isRepeatable = true): Promise<unknown> {
  const { envType, timeoutMs = TIMEOUT_MS, signal } = options;
  const url = `${options.url.replace(/\/+$/, '')}/${route}`;
  const body = JSON.stringify({ messages: {}, params: {}, env_type: envType, ...fields });
  for (let attempt = 1; ; attempt++) {
    signal?.throwIfAborted();
    try {
      const { success, data } = checked(answerSchema, await send(url, body, timeoutMs, signal), '{success, data}');
      if (success !== false) return data;
      throw failed(`${url} answered that it did not succeed: ${describeValue(data)}`);
    } catch (thrown) {
      if (!(thrown instanceof Unanswered)) throw thrown;
      const mayRepeat = isRepeatable || !thrown.mayHaveArrived;
      if (signal?.aborted || !mayRepeat || attempt > RETRIES) {
        throw failed(`${url} gave no answer in ${attempt} attempt${attempt === 1 ? '' : 's'}: ${messageOf(thrown)}`, thrown);
      }
      await sleep(FIRST_PAUSE_MS * 2 ** (attempt - 1) * (0.5 + Math.random() / 2), undefined, signal && { signal });
    }
  }
}

function checked<T>(schema: z.ZodType<T>, value: unknown, expected: string): T {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  throw failed(`the environment service answered ${describeValue(value)}, expected ${expected}`);
}

function failed(message: string, cause?: unknown): TrainyardError {
  return new TrainyardError('WORKFLOW_FAILED', message, {
    cause,
    hint: 'is the environment service running, and is it the right one?',
  });
}

const MAX_ANSWER_BYTES = 64 * 2 ** 20;
/** Error codes that mean the connection was never made. */
const NEVER_ARRIVED: ReadonlySet<unknown> = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH']);

/** No response, or one that says "not now": a retry may succeed. */
class Unanswered extends Error {
  readonly mayHaveArrived: boolean;

  constructor(message: string, mayHaveArrived: boolean) {
    super(message);
    this.mayHaveArrived = mayHaveArrived;
  }
}

async function send(url: string, body: string, timeoutMs: number, signal: AbortSignal | undefined): Promise<unknown> {
  const deadline = AbortSignal.timeout(timeoutMs);
  try {
    const response = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body,
      redirect: 'manual',
      signal: signal === undefined ? deadline : AbortSignal.any([deadline, signal]),
    });
    if (response.status >= 300 && response.status < 400) {
      await response.body?.cancel();
      // An agent's task and action are for the named service only, so redirects are not followed.
      throw unusable(url, `HTTP ${response.status}, and redirects are not followed`);
    }
    const text = await textWithin(response, MAX_ANSWER_BYTES);
    if (text === undefined) throw unusable(url, 'more than 64 MiB');
    if (response.ok) return jsonIn(text, url);
    const said = `HTTP ${response.status}${text === '' ? '' : `: ${text.slice(0, 200)}`}`;
    if (response.status >= 500 || response.status === 429) throw new Unanswered(said, true);
    throw unusable(url, said);
  } catch (thrown) {
    if (thrown instanceof Unanswered || thrown instanceof TrainyardError) throw thrown;
    signal?.throwIfAborted();
    if (deadline.aborted) throw new Unanswered(`no answer within ${timeoutMs} ms`, true);
    const code = (thrown as { readonly cause?: { readonly code?: unknown } }).cause?.code;
    throw new Unanswered(code === undefined ? describeThrown(thrown) : String(code), !NEVER_ARRIVED.has(code));
  }
}

const unusable = (url: string, answered: string) => new TrainyardError('WORKFLOW_FAILED', `${url} answered ${answered}`);

function jsonIn(text: string, url: string): unknown {
  if (nestingOf(text) > MAX_NESTING) throw unusable(url, `JSON nested deeper than ${MAX_NESTING} levels`);
  const value = parsedJson(text);
  if (value === undefined) throw unusable(url, 'no JSON');
  return value;
}

export interface EnvironmentTasksOptions extends EnvironmentOptions {
  readonly split?: string | undefined;
  readonly params?: ByName<Json> | undefined;
}

/** A source for `tasks` and `heldOut`. Rows hold ids and metadata (`task_id`, `env_type`, `split`); the environment gives the prompt. */
export async function* environmentTasks(options: EnvironmentTasksOptions): AsyncGenerator<TaskRow> {
  const { url, envType, split = 'train', params } = options;
  const ids = await new EnvironmentClient(options).taskIds(split, params).catch((cause: unknown) => {
    throw invalid(`cannot list the ${split} tasks of ${envType} at ${url}: ${messageOf(cause)}`, {
      cause,
      hint: 'is the environment service running, and does it have this env_type and split?',
    });
  });
  for (const id of ids) yield { id, metadata: { task_id: id, env_type: envType, split } };
}
