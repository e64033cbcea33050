/**
 * The ambient rollout: which rollout the running code belongs to, across awaits, timers and callbacks. Also its model, and a `fetch` that
 * reaches it, for clients shared by all rollouts. Contexts nest: a rollout started inside another sees its own context, and the outer one
 * is restored when it returns.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { ModelHandle, WorkflowContext } from './contracts.ts';
import { TrainyardError } from './errors.ts';
import type { Message } from './types.ts';

const storage = new AsyncLocalStorage<WorkflowContext | undefined>();

export const runInRollout = <T>(ctx: WorkflowContext, fn: () => T): T => storage.run(ctx, fn);

/** For what is Trainyard's own, though the rollout's code caused it: an event, a warning. */
export const outsideRollout = <T>(fn: () => T): T => storage.run(undefined, fn);

export const currentRollout = (): WorkflowContext | undefined => storage.getStore();

/** The policy as a role of the current rollout. Throws NO_ROLLOUT outside of one. */
export function ambientModel(role?: string): ModelHandle {
  return required('ambientModel').model(role);
}

/** A rollout whose agents each keep a named conversation, which is a thread at the gateway and a sample for the grader. */
export interface SampleContext {
  model(sampleId: string): ModelHandle;
  /** Throws if the name is taken. */
  registerSampleSource(name: string, source: SampleSource): void;
  nameForUnnamed(): string;
}

export interface SampleView {
  readonly id: string;
  readonly messages: readonly Message[];
}

/** An agent or session that keeps a conversation. Read when the rollout has ended. */
export interface SampleSource {
  getSample(name: string): SampleView | Promise<SampleView>;
}

const samples = new AsyncLocalStorage<SampleContext>();

export const runWithSamples = <T>(context: SampleContext, fn: () => T): T => samples.run(context, fn);
export const currentSamples = (): SampleContext | undefined => samples.getStore();

const importing = new AsyncLocalStorage<object[]>();

/** `fn` imports a module; `found` receives what it announces. */
export const whileImporting = <T>(found: object[], fn: () => T): T => importing.run(found, fn);

/** Called by constructors whose instances belong to the entry that is being imported, exported or not. */
export const announce = (made: object): void => void importing.getStore()?.push(made);

/**
 * For one client shared by all rollouts: `new OpenAI({ apiKey: 'unused', fetch: rolloutFetch })`. Ignores the client's base URL and key,
 * and sends each call to the rollout it is made in, as its default role. Throws NO_ROLLOUT outside of one.
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

/** Adds the header that names the thread, for requests outside the role's default thread. */
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
