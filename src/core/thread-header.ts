/** How a client over HTTP says which conversation of a rollout it is in, where that is not its role's own. */

const THREAD_HEADER = 'x-sample-id';

/** A `fetch` that says so with each request. */
export function fetchInThread(fetch: typeof globalThis.fetch, thread: string): typeof globalThis.fetch {
  return (input, init) => {
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
    headers.set(THREAD_HEADER, thread);
    return fetch(input, { ...init, headers });
  };
}
