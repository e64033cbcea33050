/**
 * A `fetch` for one client that the whole program shares: each request goes to the policy of the rollout that it is made in.
 *
 * The client's own base URL and key do not matter; what it adds to the base URL does (`chat/completions`, `responses`, `messages`).
 */
import { ambientModel } from './context.ts';
import { TrainyardError } from './errors.ts';

/** For `new OpenAI({ apiKey: 'any', fetch: rolloutFetch, maxRetries: 0 })` and its like. Throws NO_ROLLOUT outside of a rollout. */
export const rolloutFetch: typeof globalThis.fetch = async (input, init) => {
  const { baseURL, apiKey, fetch } = ambientModel();
  const url = new URL(input instanceof Request ? input.url : input);
  const route = /\/v1\/(.+)$/.exec(url.pathname)?.[1];
  if (route === undefined) {
    throw new TrainyardError('REQUEST_INVALID', `expected a path with /v1/ and a route behind it, found ${url.pathname}`, {
      hint: 'leave the client’s base URL as it is, or let it end in /v1',
    });
  }
  const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
  headers.delete('x-api-key');
  headers.set('authorization', `Bearer ${apiKey}`);
  const target = `${baseURL}/${route}${url.search}`;
  return await fetch(input instanceof Request ? new Request(target, input) : target, { ...init, headers });
};
