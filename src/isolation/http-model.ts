/**
 * The door to the policy where the gateway is in another process: base URL, key and `fetch`. Records the same turns as the gateway's own
 * handle. In words only: tokens stay where the policy is.
 */
import { fetchInThread } from '../core/context.ts';
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

/** Sends what is said in this thread; by default the global `fetch`, with the thread in a header where it is not the role's own. */
export type FetchIn = (thread: string) => typeof globalThis.fetch;

export function httpModel(seat: HttpSeat, fetchIn: FetchIn = inThread(seat.role), thread = seat.role): ModelHandle {
  const { role, name, baseURL, apiKey } = seat;
  const fetch = fetchIn(thread);
  // A client without a key would look for one in the environment.
  const options = (): ClientOptions => ({ baseURL, apiKey: apiKey || 'none', fetch, maxRetries: 0 });
  return {
    role,
    name,
    baseURL,
    apiKey,
    fetch,
    openai: options,
    // Its client adds /v1/messages by itself.
    anthropic: () => ({ ...options(), baseURL: baseURL.replace(/\/v1$/, '') }),
    generate: (request) => generateOverHttp({ name, baseURL, apiKey, fetch }, request),
    render: () => elsewhere('render'),
    decode: () => elsewhere('decode'),
    thread: (other) => httpModel(seat, fetchIn, other),
  };
}

function elsewhere(what: string): never {
  throw new TrainyardError('REQUEST_INVALID', `${what} needs the policy's tokenizer, and the policy is in another process`, {
    hint: 'run the workflow in the process of the policy: without isolation, and not on a rollout server',
  });
}

function inThread(role: string): FetchIn {
  return (thread) => (thread === role ? globalThis.fetch : fetchInThread(globalThis.fetch, thread));
}
