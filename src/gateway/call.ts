/**
 * One call of the gateway and its reply, without the cost of the web's Request and Response: what the listener makes of a socket and
 * `fetch` of its parameters.
 *
 * In process a call behaves as over HTTP: a cancelled one rejects with the reason, a stream that is not read to its end counts
 * as not delivered.
 */
import type { EventStream } from './event-stream.ts';

export interface Call {
  readonly method: string;
  /** Of the URL, as it stands there: percent-encoded, without the query. */
  readonly path: string;
  /** Of the URL, with its question mark; only routes of protocols look at it. */
  readonly query?: string | undefined;
  readonly body: string;
  /** Aborts when the client hangs up. */
  readonly signal: AbortSignal | undefined;
  /** Of the signal, where it is there for this call alone: then whoever else wants to end the call may abort it too. */
  readonly controller?: AbortController;
  /** Where it came from, if from outside this process. */
  readonly address?: string | undefined;
  header(name: string): string | null | undefined;
}

/** A call whose body may still be on its way: who asks, and what for, is settled before any of it is kept. */
export interface UnreadCall extends Omit<Call, 'body'> {
  readonly body: string | (() => Promise<string>);
}

export interface Reply {
  readonly status: number;
  /** JSON, or events. */
  readonly body: string | EventStream;
  /** Beyond the content's type and length. */
  readonly headers?: Readonly<Record<string, string>>;
  /** To be called if not all of it reached the client: its retry must get this answer instead of a second turn. */
  undelivered?(): void;
}

export function jsonReply(status: number, body: object): Reply {
  return { status, body: JSON.stringify(body) };
}

export const contentTypeOf = ({ body }: Reply): string =>
  typeof body === 'string' ? 'application/json' : 'text/event-stream; charset=utf-8';

/** What `fetch` is called with. The usual case, a URL and a body that is text, needs no Request. */
export async function callOf(input: string | URL | Request, init: RequestInit = {}): Promise<Call> {
  const { body, method = 'GET', headers } = init;
  if (input instanceof Request || (typeof body !== 'string' && body != null)) {
    const request = new Request(input, init);
    const { signal } = request;
    return { ...callParts(request.url, request.method, request.headers), body: await request.text(), signal };
  }
  const given = headers instanceof Headers ? headers : new Headers(headers);
  return { ...callParts(input, method.toUpperCase(), given), body: body ?? '', signal: init.signal ?? undefined };
}

function callParts(url: string | URL, method: string, headers: Headers): Omit<Call, 'body' | 'signal'> {
  const { pathname: path, search: query } = new URL(url);
  return { method, path, query, header: (name) => headers.get(name) };
}

export function responseOf(reply: Reply, signal: AbortSignal | undefined): Response {
  const { status, body } = reply;
  const headers = { ...reply.headers, 'content-type': contentTypeOf(reply) };
  return new Response(typeof body === 'string' ? body : readable(reply, body, signal), { status, headers });
}

function readable(reply: Reply, events: EventStream, signal: AbortSignal | undefined): ReadableStream<Uint8Array<ArrayBuffer>> {
  const encoder = new TextEncoder();
  const leave = (): void => {
    if (!events.drained) reply.undelivered?.();
  };
  signal?.addEventListener(
    'abort',
    () => {
      leave();
      events.cut(signal.reason);
    },
    { once: true },
  );
  return new ReadableStream(
    {
      start: (controller) => {
        events.onCut = (reason) => {
          if (!events.drained) controller.error(reason);
        };
      },
      pull: async (controller) => {
        const text = await events.read();
        if (text === undefined) controller.close();
        else controller.enqueue(encoder.encode(text));
        if (events.drained) events.delivered();
      },
      cancel: leave,
    },
    // Nothing is taken before it is read: what a reader leaves behind was not delivered.
    { highWaterMark: 0 },
  );
}
