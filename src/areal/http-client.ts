/**
 * One HTTP client for all rollouts of a process: a `fetch` for SDK constructors and for requests of one's own.
 *
 * Connections are kept alive and shared by all rollouts, in the pool of Node's own `fetch`; whoever makes a client for each rollout makes
 * a connection for each call. A rollout's calls to its model need no connection at all where the gateway is in this process. The client
 * is made when first asked for and closed when the last workflow that uses it is torn down; closed, it refuses.
 */
import { currentRollout } from '../core/context.ts';
import type { ModelHandle, WorkflowContext } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';

export type HttpClient = typeof globalThis.fetch & { readonly closed: boolean };

const doors = new WeakMap<WorkflowContext, Pick<ModelHandle, 'baseURL' | 'fetch'>>();
let current: { readonly client: HttpClient; close(): void } | undefined;

/** The same one in every rollout. */
export function getHttpClient(): HttpClient {
  current ??= makeClient();
  return current.client;
}

/** What a rollout calls under this base URL is called in process. */
export function reachInProcess(ctx: WorkflowContext, door: Pick<ModelHandle, 'baseURL' | 'fetch'>): void {
  doors.set(ctx, door);
}

export function closeHttpClient(): void {
  current?.close();
  current = undefined;
}

function makeClient(): { readonly client: HttpClient; close(): void } {
  let closed = false;
  const fetch: typeof globalThis.fetch = (input, init) => {
    if (closed) {
      const hint = 'ask workflowContext.getHttpClient() for it in the rollout instead of keeping it';
      return Promise.reject(new TrainyardError('USAGE', 'the shared HTTP client was closed with its workflow', { hint }));
    }
    return (inProcess(input) ?? globalThis.fetch)(input, init);
  };
  const client = Object.defineProperty(fetch, 'closed', { get: () => closed }) as HttpClient;
  const close = (): void => {
    closed = true;
  };
  return { client, close };
}

function inProcess(input: string | URL | Request): typeof globalThis.fetch | undefined {
  const ctx = currentRollout();
  const door = ctx && doors.get(ctx);
  const url = input instanceof Request ? input.url : String(input);
  return door !== undefined && url.startsWith(`${door.baseURL}/`) ? door.fetch : undefined;
}
