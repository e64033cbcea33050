/**
 * The ambient rollout: which rollout the running code belongs to, across awaits, timers and callbacks; its model, and a `fetch` that
 * leads there, for clients that are made once and used by all rollouts.
 *
 * Contexts nest: a rollout started inside another sees its own, and the outer one is back when it returns.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { ModelHandle, WorkflowContext } from './contracts.ts';
import { TrainyardError } from './errors.ts';
import type { Message } from './types.ts';

const storage = new AsyncLocalStorage<WorkflowContext>();

/** Runs `fn` as part of `ctx`'s rollout. */
export const runInRollout = <T>(ctx: WorkflowContext, fn: () => T): T => storage.run(ctx, fn);

/** The rollout that the calling code runs in, if any. */
export const currentRollout = (): WorkflowContext | undefined => storage.getStore();

/** The door to the policy as a role of the rollout that the calling code runs in. Throws NO_ROLLOUT outside of one. */
export function ambientModel(role?: string): ModelHandle {
  return required('ambientModel').model(role);
}

/** A rollout whose agents each keep a named conversation: a thread at the gateway, and a sample for the grader. */
export interface SampleContext {
  /** The policy, in the conversation of this name. */
  model(sampleId: string): ModelHandle;
  /** Throws where the name is taken. */
  registerSampleSource(name: string, source: SampleSource): void;
  nameForUnnamed(): string;
}

export interface SampleView {
  readonly id: string;
  readonly messages: readonly Message[];
}

/** What keeps a conversation: an agent, a session. Asked when the rollout has ended. */
export interface SampleSource {
  getSample(name: string): SampleView | Promise<SampleView>;
}

const samples = new AsyncLocalStorage<SampleContext>();

/** Runs `fn` with these conversations as its own. */
export const runWithSamples = <T>(context: SampleContext, fn: () => T): T => samples.run(context, fn);
export const currentSamples = (): SampleContext | undefined => samples.getStore();

/**
 * For one client shared by all rollouts: `new OpenAI({ apiKey: 'unused', fetch: rolloutFetch })`. Whatever base URL and key the client was
 * made with, a call goes to the rollout it is made in, as its default role. Throws NO_ROLLOUT outside of one.
 */
export const rolloutFetch: typeof globalThis.fetch = async (input, init) => {
  const { baseURL, apiKey, fetch } = required('rolloutFetch').model();
  const given = input instanceof Request ? input.url : input;
  const { pathname, search } = new URL(given);
  const headers = headersOf(input, init);
  for (const name of KEY_HEADERS) headers.delete(name);
  headers.set('authorization', `Bearer ${apiKey}`);
  const url = `${baseURL}/${tailOf(pathname)}${search}`;
  return await fetch(input instanceof Request ? new Request(url, input) : url, { ...init, headers });
};

const KEY_HEADERS = ['authorization', 'x-api-key', 'x-goog-api-key', 'api-key'];
const ROUTE = /\/((?:chat\/completions|responses|messages|messages\/count_tokens|models|models\/[^/]+)\/?)$/;

/** What a client adds to its base URL. */
function tailOf(pathname: string): string {
  const version = pathname.lastIndexOf('/v1/');
  if (version !== -1) return pathname.slice(version + '/v1/'.length);
  return ROUTE.exec(pathname)?.[1] ?? pathname.slice(1);
}

function required(what: string): WorkflowContext {
  const rollout = currentRollout();
  if (rollout !== undefined) return rollout;
  throw new TrainyardError('NO_ROLLOUT', `${what} was used where no rollout runs`, {
    hint: "use it inside the workflow's run, not while its module is loaded; there is one rollout for each task",
  });
}

/** A `fetch` that says with each request which conversation of the rollout it is in, where that is not its role's own. */
export function fetchInThread(fetch: typeof globalThis.fetch, thread: string): typeof globalThis.fetch {
  return (input, init) => {
    const headers = headersOf(input, init);
    headers.set('x-sample-id', thread);
    return fetch(input, { ...init, headers });
  };
}

function headersOf(...[input, init]: Parameters<typeof globalThis.fetch>): Headers {
  return new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
}
