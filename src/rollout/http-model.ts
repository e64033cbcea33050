/**
 * The door to the policy where the gateway is in another process: base URL and key, and the global `fetch`. Records the same turns as the
 * gateway's own handle.
 */
import type { ClientOptions, ModelHandle } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { generateOverHttp } from './http-generate.ts';

/** What a process must know to sit in one seat. */
export interface HttpSeat {
  readonly role: string;
  /** For the client's `model` parameter. */
  readonly name: string;
  readonly baseURL: string;
  readonly apiKey: string;
}

export function httpModel(seat: HttpSeat, thread = seat.role): ModelHandle {
  const { role, name, baseURL, apiKey } = seat;
  const fetch = thread === role ? globalThis.fetch : inThread(thread);
  const options = (): ClientOptions => ({ baseURL, apiKey, fetch, maxRetries: 0 });
  return {
    role,
    name,
    baseURL,
    apiKey,
    fetch,
    openai: options,
    anthropic: options,
    generate: (request) => generateOverHttp({ name, baseURL, apiKey, fetch }, request),
    render: notHere,
    decode: notHere,
    thread: (other) => httpModel(seat, other),
  };
}

function notHere(): never {
  throw new TrainyardError('REQUEST_INVALID', 'tokens were asked for in a process that does not hold the policy', {
    hint: 'ask in messages, or run the workflow without isolation',
  });
}

function inThread(thread: string): typeof globalThis.fetch {
  return (input, init) => {
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
    headers.set('x-sample-id', thread);
    return globalThis.fetch(input, { ...init, headers });
  };
}
