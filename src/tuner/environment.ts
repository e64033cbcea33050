/**
 * Environments at a service over HTTP, as AgentScope's env_service has them: an instance is created for a task, takes steps, is evaluated
 * and released. Usable in a workflow and in a grader; `await using` releases an instance whatever happens. Its tasks can be a source of rows.
 *
 * A call that failed is made again, three times, later each time. A step is made again only where it cannot have arrived: twice the same
 * action would be another episode.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { describeThrown, describeValue } from '../core/describe.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { MAX_NESTING, nestingOf } from '../core/json.ts';
import type { Json } from '../core/types.ts';
import { invalid, type TaskRow } from '../dataset/rows.ts';

const RETRIES = 3;
const FIRST_PAUSE_MS = 500;
const TIMEOUT_MS = 300_000;
/** Nobody waits long for somebody to clean up. */
const RELEASE_TIMEOUT_MS = 10_000;

export interface EnvironmentOptions {
  /** Of the service, such as http://127.0.0.1:8080. */
  readonly url: string;
  readonly envType: string;
  /** Of one call; absent: 300 s. */
  readonly timeoutMs?: number | undefined;
  /** Ends every call; in a workflow `ctx.signal`. */
  readonly signal?: AbortSignal | undefined;
}

export interface StepResult {
  /** What the environment says: mostly messages. */
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
    // Not repeated: it ends up in logs.
    if (username !== '' || password !== '')
      throw new TrainyardError('USAGE', 'url: expected one without a user name or password');
    this.#options = options;
  }

  /** Ids of the tasks that the service has. */
  async taskIds(split = 'train', params: Readonly<Record<string, Json>> = {}): Promise<readonly string[]> {
    const data = await this.#call('get_env_profile', { params: { ...params, split } });
    return checked(idsSchema, data, 'a list of task ids').map(String);
  }

  async create(taskId: string, params: Readonly<Record<string, Json>> = {}): Promise<EnvironmentInstance> {
    // Chosen here: also an instance whose creation was never answered can be released.
    const instanceId = randomUUID().replaceAll('-', '');
    const call: CallRoute = (route, fields, isRepeatable) =>
      this.#call(route, { instance_id: instanceId, ...fields }, isRepeatable);
    const release = async (): Promise<void> => {
      // Also when the rollout was cut: the service must not keep what nobody uses.
      const options = { ...this.#options, signal: undefined, timeoutMs: RELEASE_TIMEOUT_MS };
      await new EnvironmentClient(options).#call('release', { instance_id: instanceId });
    };
    try {
      const { state, info } = checked(createdSchema, await call('create', { task_id: taskId, params }), 'a state');
      return new EnvironmentInstance(instanceId, { state, info } as { state: Json; info: Json }, call, release);
    } catch (thrown) {
      await release().catch(() => {});
      throw thrown;
    }
  }

  async #call(route: string, fields: Call['fields'], isRepeatable = true): Promise<unknown> {
    const { url, envType, timeoutMs = TIMEOUT_MS, signal } = this.#options;
    const call: Call = {
      url: `${url.replace(/\/+$/, '')}/${route}`,
      timeoutMs,
      signal,
      fields: { env_type: envType, ...fields },
    };
    for (let attempt = 0; ; attempt++) {
      signal?.throwIfAborted();
      try {
        const { success, data } = checked(answerSchema, await send(call), '{success, data}');
        if (success !== false) return data;
        throw failed(`${call.url} answered that it did not succeed: ${describeValue(data)}`);
      } catch (thrown) {
        const mayRepeat = thrown instanceof Unanswered && (isRepeatable || !thrown.mayHaveArrived);
        if (signal?.aborted || !mayRepeat || attempt === RETRIES) throw asFailure(thrown, call.url, attempt + 1);
        await sleep(FIRST_PAUSE_MS * 2 ** attempt * (0.5 + Math.random() / 2), undefined, signal && { signal });
      }
    }
  }
}

type CallRoute = (route: string, fields: Call['fields'], isRepeatable?: boolean) => Promise<unknown>;

/** One environment; dispose of it, or call `release`. */
export class EnvironmentInstance implements AsyncDisposable {
  readonly instanceId: string;
  /** What the environment says at first: mostly messages. */
  readonly state: Json;
  readonly info: Json;
  readonly #call: CallRoute;
  readonly #release: () => Promise<void>;
  #released: Promise<void> | undefined;

  /** Made by EnvironmentClient.create. */
  constructor(
    instanceId: string,
    { state, info }: { readonly state: Json; readonly info: Json },
    call: CallRoute,
    release: () => Promise<void>,
  ) {
    this.instanceId = instanceId;
    this.state = state ?? null;
    this.info = info ?? null;
    this.#call = call;
    this.#release = release;
  }

  /** `action`: mostly the assistant's message. */
  async step(action: Json, params: Readonly<Record<string, Json>> = {}): Promise<StepResult> {
    const found = checked(stepSchema, await this.#call('step', { messages: action, params }, false), 'the result of a step');
    const { state = null, reward = null, is_terminated: isTerminated = false, info = null } = found;
    return { state: state as Json, reward, isTerminated, info: info as Json };
  }

  /** The score; never one that was not given. */
  async evaluate(messages: Json = {}, params: Readonly<Record<string, Json>> = {}): Promise<number> {
    return checked(z.number(), await this.#call('evaluate', { messages, params }), 'a finite number');
  }

  async getInfo(messages: Json = {}, params: Readonly<Record<string, Json>> = {}): Promise<Json> {
    return ((await this.#call('get_info', { messages, params })) ?? null) as Json;
  }

  /** Once, however often it is asked for. */
  release(): Promise<void> {
    this.#released ??= this.#release();
    return this.#released;
  }

  /** Who leaves a scope has something better to report than a service that did not clean up. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch(() => {});
  }
}

function checked<T>(schema: z.ZodType<T>, value: unknown, expected: string): T {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  throw failed(`the environment service answered ${describeValue(value)}, expected ${expected}`);
}

function asFailure(thrown: unknown, url: string, attempts: number): unknown {
  if (!(thrown instanceof Unanswered)) return thrown;
  return failed(`${url} gave no answer in ${attempts} ${attempts === 1 ? 'attempt' : 'attempts'}: ${messageOf(thrown)}`, thrown);
}

function failed(message: string, cause?: unknown): TrainyardError {
  return new TrainyardError('WORKFLOW_FAILED', message, {
    cause,
    hint: 'is the environment service running, and is it the right one?',
  });
}

const MAX_ANSWER_BYTES = 64 * 2 ** 20;
/** The connection was never made. */
const NEVER_ARRIVED: ReadonlySet<unknown> = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH']);

interface Call {
  readonly url: string;
  readonly timeoutMs: number;
  readonly signal: AbortSignal | undefined;
  readonly fields: Readonly<Record<string, Json>>;
}

/** No answer, or one that says "not now": it may help to ask again. */
class Unanswered extends Error {
  readonly mayHaveArrived: boolean;

  constructor(message: string, mayHaveArrived: boolean) {
    super(message);
    this.mayHaveArrived = mayHaveArrived;
  }
}

/** One POST: bounded in time and size. Redirects are not followed. */
async function send({ url, timeoutMs, signal, fields }: Call): Promise<unknown> {
  const deadline = AbortSignal.timeout(timeoutMs);
  const request = {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ messages: {}, params: {}, ...fields }),
    redirect: 'manual',
    signal: signal === undefined ? deadline : AbortSignal.any([deadline, signal]),
  } as const;
  try {
    const response = await fetch(url, request);
    if (response.status >= 300 && response.status < 400) {
      await response.body?.cancel();
      // The task and the action of an agent are for the service that was named, and no other.
      throw new TrainyardError('WORKFLOW_FAILED', `${url} answered HTTP ${response.status}, and redirects are not followed`);
    }
    const text = await textOf(response, url);
    if (response.ok) return jsonIn(text, url);
    const said = `HTTP ${response.status}${text === '' ? '' : `: ${text.slice(0, 200)}`}`;
    if (response.status >= 500 || response.status === 429) throw new Unanswered(said, true);
    throw new TrainyardError('WORKFLOW_FAILED', `${url} answered ${said}`);
  } catch (thrown) {
    if (thrown instanceof Unanswered || thrown instanceof TrainyardError) throw thrown;
    signal?.throwIfAborted();
    if (deadline.aborted) throw new Unanswered(`no answer within ${timeoutMs} ms`, true);
    if (thrown instanceof SyntaxError) throw new TrainyardError('WORKFLOW_FAILED', `${url} answered no JSON`);
    const code = (thrown as { readonly cause?: { readonly code?: unknown } }).cause?.code;
    throw new Unanswered(code === undefined ? describeThrown(thrown) : String(code), !NEVER_ARRIVED.has(code));
  }
}

function jsonIn(text: string, url: string): unknown {
  if (nestingOf(text) > MAX_NESTING) {
    throw new TrainyardError('WORKFLOW_FAILED', `${url} answered JSON nested deeper than ${MAX_NESTING} levels`);
  }
  return JSON.parse(text);
}

async function textOf(response: Response, url: string): Promise<string> {
  const pieces: Uint8Array[] = [];
  let held = 0;
  for await (const piece of response.body ?? []) {
    held += piece.length;
    if (held > MAX_ANSWER_BYTES) throw new TrainyardError('WORKFLOW_FAILED', `${url} answered more than 64 MiB`);
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString('utf8');
}

export interface EnvironmentTasksOptions extends EnvironmentOptions {
  /** Absent: train. */
  readonly split?: string | undefined;
  readonly params?: Readonly<Record<string, Json>> | undefined;
}

/**
 * A source for `tasks` and `heldOut`: ids only, since what is asked comes from the environment that a workflow creates. Workflows find
 * `task_id`, `env_type` and `split` in the metadata.
 */
export async function* environmentTasks({
  split = 'train',
  params,
  ...options
}: EnvironmentTasksOptions): AsyncGenerator<TaskRow> {
  const { url, envType } = options;
  const client = new EnvironmentClient(options);
  let ids: readonly string[];
  try {
    ids = await client.taskIds(split, params);
  } catch (cause) {
    throw invalid(`cannot list the ${split} tasks of ${envType} at ${url}: ${messageOf(cause)}`, {
      cause,
      hint: 'is the environment service running, and does it have this env_type and split?',
    });
  }
  for (const id of ids) yield { id, metadata: { task_id: id, env_type: envType, split } };
}
