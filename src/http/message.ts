/**
 * A request and its reply apart from the socket they came over, without the cost of the web's Request and Response. The HTTP server makes
 * them of sockets, `fetchWith` of the parameters of `fetch`; a server's routes are functions of them.
 *
 * In process a request behaves as over HTTP: a cancelled one rejects with the reason, a stream that is not read to its end counts as not
 * delivered.
 */
import type { IncomingMessage } from 'node:http';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { sizeOfJson } from '../core/json.ts';
import { type Headers as HeaderMap, httpRefusal, type Refusal } from './refusal.ts';

export interface HttpRequest {
  readonly method: string;
  /** As in the URL: percent-encoded, without the query. */
  readonly path: string;
  /** With its question mark; empty where the URL has none. */
  readonly query: string;
  header(name: string): string | undefined;
  /** The whole body, read when it is asked for, so that its sender is known first. Throws `request_too_large` beyond `most` bytes. */
  body(most: number): Promise<Uint8Array | string>;
  /** Aborts when the client hangs up. */
  readonly signal: AbortSignal | undefined;
  /** The signal's controller, where the signal belongs to this request alone: others may then abort it too. */
  readonly controller?: AbortController | undefined;
  /** Where the request came from, if from outside this process. */
  readonly address?: string | undefined;
}

/** A body that is sent while it is made. One text at a time is read, so a slow client is waited for without buffering. */
export interface BodyStream {
  /** The next text; undefined at the end. Rejects where the stream was cut. */
  read(): Promise<string | undefined>;
  /** Whether all of it was read. */
  readonly drained: boolean;
  /** To be called when all of it is in the client's hands. */
  delivered(): void;
  /** Ends it at once; what was not read is dropped. */
  cut(reason: unknown): void;
  /** Called when it is cut. */
  onCut: ((reason: unknown) => void) | undefined;
}

export interface HttpReply {
  readonly status: number;
  /** JSON or events, unless the headers have another content-type. */
  readonly body: string | Uint8Array | BodyStream;
  /** Beyond the content's type and length. */
  readonly headers?: HeaderMap | undefined;
  /** Called if not all of it reached the client. */
  undelivered?(): void;
}

export function jsonReply(status: number, body: object, headers?: HeaderMap): HttpReply {
  return { status, body: JSON.stringify(body), headers };
}

export const isStream = (body: HttpReply['body']): body is BodyStream => typeof body !== 'string' && 'read' in body;

export function headersOf({ headers, body }: HttpReply): Record<string, string> {
  return { 'content-type': isStream(body) ? 'text/event-stream; charset=utf-8' : 'application/json', ...headers };
}

// ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

const tooLarge = (most: number): Refusal => httpRefusal('request_too_large', `the body is larger than ${most} bytes`);

/** Reads by events: an async iterator costs more than the rest. Throws `request_too_large`; what was read until then is dropped. */
export function readBytes(incoming: IncomingMessage, most: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    if (Number(incoming.headers['content-length'] ?? 0) > most) return reject(tooLarge(most));
    const chunks: Buffer[] = [];
    let size = 0;
    const take = (chunk: Buffer): void => {
      size += chunk.length;
      if (size <= most) return void chunks.push(chunk);
      chunks.length = 0;
      incoming.off('data', take);
      reject(tooLarge(most));
    };
    // Every request closes in the end; an error made for each, with its stack, would cost as much as reading the body.
    const brokenOff = (): void => {
      if (!incoming.readableEnded) reject(httpRefusal('malformed_http', 'the body broke off'));
    };
    if (incoming.destroyed) return brokenOff();
    incoming.on('data', take);
    incoming.once('end', () => resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)));
    incoming.once('error', brokenOff);
    incoming.once('close', brokenOff);
  });
}

const JSON_TYPE = /^application\/(?:[\w.+-]+\+)?json(?:\s*;\s*charset\s*=\s*"?utf-?8"?)?\s*;?$/i;
/** Keeps a byte order mark: JSON has none. */
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** The text of a JSON body. Refuses by the headers, before anything is read, what cannot be of use. */
export async function readText(request: HttpRequest, most: number): Promise<string> {
  const type = request.header('content-type')?.trim();
  if (type && !JSON_TYPE.test(type)) throw unsupported('content-type', type, 'send application/json');
  const encoding = request.header('content-encoding')?.trim();
  if (encoding && !/^identity$/i.test(encoding)) throw unsupported('content-encoding', encoding, 'send it uncompressed');
  if (Number(request.header('content-length') ?? 0) > most) throw tooLarge(most);
  const body = await request.body(most);
  if (body.length > most) throw tooLarge(most);
  return typeof body === 'string' ? body : textOf(body);
}

/** Throws REQUEST_INVALID. */
export function textOf(bytes: Uint8Array): string {
  try {
    return utf8.decode(bytes);
  } catch {
    throw unreadable('the body is not UTF-8');
  }
}

const unreadable = (found: string): TrainyardError => new TrainyardError('REQUEST_INVALID', found);

function unsupported(header: string, value: string, hint: string): Refusal {
  return httpRefusal('unsupported_media_type', `${header}: ${value.slice(0, 80)} is not read here`, { hint });
}

/** Throws REQUEST_INVALID for text that is not JSON, too deeply nested for what walks it, or has too many values to be checked. */
export function parseJson(text: string, most: { readonly nesting: number; readonly values?: number }): unknown {
  const { nesting, values } = sizeOfJson(text);
  if (nesting > most.nesting) throw unreadable(`the body is nested deeper than ${most.nesting} levels`);
  if (values > (most.values ?? Infinity))
    throw unreadable(`the body holds some ${values} values; at most ${most.values} are read`);
  try {
    return JSON.parse(text);
  } catch (thrown) {
    const found = text === '' ? 'it is empty' : messageOf(thrown).slice(0, 200);
    throw unreadable(`the body is not valid JSON: ${found}`);
  }
}

// ── in process ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/** A function like the global `fetch` whose requests are answered here. */
export function fetchWith(answer: (request: HttpRequest) => Promise<HttpReply>) {
  return async (input: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const request = await requestOf(input, init);
    const { signal } = request;
    const reply = await answer(request);
    if (signal?.aborted) reply.undelivered?.();
    signal?.throwIfAborted();
    const body = isStream(reply.body) ? readable(reply, reply.body, signal) : (reply.body as string);
    return new Response(body, { status: reply.status, headers: headersOf(reply) });
  };
}

/** The usual case, a URL and a body that is text, needs no Request. */
async function requestOf(input: string | URL | Request, init: RequestInit = {}): Promise<HttpRequest> {
  const isUsual = !(input instanceof Request) && (init.body == null || typeof init.body === 'string');
  const given = isUsual ? undefined : new Request(input, init);
  const text = given ? await given.text() : ((init.body ?? '') as string);
  const headers = given?.headers ?? new Headers(init.headers);
  const { pathname: path, search: query } = new URL(given?.url ?? (input as string | URL));
  return {
    method: given?.method ?? (init.method ?? 'GET').toUpperCase(),
    path,
    query,
    header: (name) => headers.get(name) ?? undefined,
    body: async () => text,
    signal: given?.signal ?? init.signal ?? undefined,
  };
}

type Bytes = ReadableStream<Uint8Array<ArrayBuffer>>;

function readable(reply: HttpReply, stream: BodyStream, signal: AbortSignal | undefined): Bytes {
  const encoder = new TextEncoder();
  const leave = (): void => {
    if (!stream.drained) reply.undelivered?.();
  };
  const abort = (): void => {
    leave();
    stream.cut(signal?.reason);
  };
  signal?.addEventListener('abort', abort, { once: true });
  return new ReadableStream(
    {
      start: (controller) => {
        stream.onCut = (reason) => {
          if (!stream.drained) controller.error(reason);
        };
      },
      pull: async (controller) => {
        const text = await stream.read();
        if (text === undefined) controller.close();
        else controller.enqueue(encoder.encode(text));
        if (stream.drained) stream.delivered();
      },
      cancel: leave,
    },
    // Nothing is taken before it is read: what a reader leaves behind was not delivered.
    { highWaterMark: 0 },
  );
}

// ── routes ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Routes are data: a method, a path pattern, and whatever else their server keeps with them. In a pattern `{name}` stands for one segment of
 * the path, `{name+}` for one or more. The first pattern that matches wins; a path without parameters wins over patterns. HEAD is served by
 * the route of GET.
 */
export interface RoutePattern {
  readonly method: string;
  readonly path: string;
}

/** The routes of one path, one for each method. */
export interface RouteMatch<R extends RoutePattern> {
  readonly routes: readonly R[];
  /** By the names in the pattern, percent-encoded as in the path. */
  readonly segments: Readonly<Record<string, string>>;
}

export class Router<R extends RoutePattern> {
  readonly #exact = new Map<string, RouteMatch<R>>();
  readonly #patterns: { readonly pattern: RegExp; readonly routes: readonly R[] }[] = [];

  constructor(routes: readonly R[]) {
    for (const [path, group] of Map.groupBy(routes, (route) => route.path)) {
      if (path.includes('{')) this.#patterns.push({ pattern: compiled(path), routes: group });
      else this.#exact.set(path, { routes: group, segments: {} });
    }
  }

  /** Undefined where no route has this path, whatever the method. */
  match(path: string): RouteMatch<R> | undefined {
    const exact = this.#exact.get(path);
    if (exact !== undefined) return exact;
    for (const { pattern, routes } of this.#patterns) {
      const found = pattern.exec(path);
      if (found !== null) return { routes, segments: found.groups ?? {} };
    }
    return undefined;
  }
}

/** The route for this method. Throws `method_not_allowed` with an Allow header. */
export function routeFor<R extends RoutePattern>({ routes }: RouteMatch<R>, method: string, path: string): R {
  const served = method === 'HEAD' ? 'GET' : method;
  const route = routes.find((one) => one.method === served);
  if (route !== undefined) return route;
  const allow = routes.flatMap((one) => (one.method === 'GET' ? ['GET', 'HEAD'] : [one.method])).join(', ');
  throw httpRefusal('method_not_allowed', `no route ${method} ${path.slice(0, 200)}`, {
    hint: `the path takes ${allow}`,
    headers: { allow },
  });
}

/** A segment of a path in plain text. Throws `malformed_http`. */
export function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    throw httpRefusal('malformed_http', 'the path is not percent-encoded UTF-8');
  }
}

function compiled(path: string): RegExp {
  const source = path.replaceAll(/\{(\w+)(\+?)\}/g, (_, name, more) => `(?<${name}>${more ? '(?:[^/]|/(?=[^/]))+?' : '[^/]+'})`);
  return new RegExp(`^${source}$`);
}
