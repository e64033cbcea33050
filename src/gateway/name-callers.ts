/**
 * Requests that code of a rollout makes, in this process, to this gateway's own listener say whose code made them, in `x-rollout-id`. A client that
 * was made with one rollout's key and is used by another's code contradicts itself then and is refused: its turns would be trained as the
 * wrong rollout's. Node tells of every request before it is sent, in the context of whoever makes it; clients of other processes say nothing.
 */
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { ClientRequest } from 'node:http';
import { currentRollout } from '../core/context.ts';
import type { Gateway } from './gateway.ts';

/** What `fetch` publishes. */
interface FetchRequest {
  readonly origin: string;
  readonly headers: unknown;
  addHeader(name: string, value: string): void;
}

const NAME = 'x-rollout-id';

export function nameCallers(gateway: Gateway, origin: string): Disposable {
  const caller = (): string | undefined => {
    const rolloutId = currentRollout()?.rolloutId;
    return rolloutId !== undefined && gateway.session(rolloutId) !== undefined ? rolloutId : undefined;
  };
  const byFetch = (message: unknown): void => {
    const { request } = message as { readonly request: FetchRequest };
    const rolloutId = request.origin === origin ? caller() : undefined;
    if (rolloutId !== undefined && !JSON.stringify(request.headers).includes(NAME)) request.addHeader(NAME, rolloutId);
  };
  const byHttp = (message: unknown): void => {
    const { request } = message as { readonly request: ClientRequest };
    const rolloutId = `http://${request.getHeader('host')}` === origin ? caller() : undefined;
    if (rolloutId !== undefined && !request.hasHeader(NAME) && !request.headersSent) request.setHeader(NAME, rolloutId);
  };
  subscribe('undici:request:create', byFetch);
  subscribe('http.client.request.created', byHttp);
  return {
    [Symbol.dispose]: () => {
      unsubscribe('undici:request:create', byFetch);
      unsubscribe('http.client.request.created', byHttp);
    },
  };
}
