/**
 * Environments at a service over HTTP, as AgentScope's env_service has them: an instance is created for a task, takes steps, is evaluated
 * and released. Usable in a workflow and in a grader; `await using` releases an instance whatever happens.
 *
 * A call that failed is made again, three times, later each time. A step is made again only where it cannot have arrived: twice the same
 * action would be another episode.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { describeValue } from '../core/describe.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Json } from '../core/types.ts';
import { type Call, send, Unanswered } from './environment-call.ts';

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
    const call = (route: string, fields: Call['fields'], isRepeatable = true): Promise<unknown> =>
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

/** One environment; dispose of it, or call `release`. */
export class EnvironmentInstance implements AsyncDisposable {
  readonly instanceId: string;
  /** What the environment says at first: mostly messages. */
  readonly state: Json;
  readonly info: Json;
  readonly #call: (route: string, fields: Call['fields'], isRepeatable?: boolean) => Promise<unknown>;
  readonly #release: () => Promise<void>;
  #released: Promise<void> | undefined;

  /** Made by EnvironmentClient.create. */
  constructor(
    instanceId: string,
    { state, info }: { readonly state: Json; readonly info: Json },
    call: (route: string, fields: Call['fields'], isRepeatable?: boolean) => Promise<unknown>,
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
