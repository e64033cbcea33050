/**
 * Requests and replies apart from their sockets, without the cost of the web's Request and Response. The HTTP server makes them from
 * sockets, `fetchWith` from the arguments of `fetch`; routes are functions of them. In process a request behaves as over HTTP: if
 * cancelled, it rejects with the reason, and a stream that is not read to its end counts as undelivered.
 */
import type { IncomingMessage } from 'node:http';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { asJson, sizeOfJson } from '../core/json.ts';
import { type Headers as HeaderMap, httpRefusal, type Refusal } from './refusal.ts';

export interface HttpRequest {
  readonly method: string;
  /** Percent-encoded as in the URL, without the query. */
  readonly path: string;
  /** Includes the question mark; empty if the URL has none. */
  readonly query: string;
  header(name: string): string | undefined;
  /** Reads the whole body on demand, so that the sender can be checked first. Over HTTP, throws `request_too_large` beyond `most` bytes. */
  body(most: number): Promise<Uint8Array | string>;
  readonly signal: AbortSignal | undefined;
  /** The signal's controller, if the signal belongs to this request alone, so that others may abort it too. */
  readonly controller?: AbortController | undefined;
  /** The sender's address; undefined in process. */
  readonly address?: string | undefined;
}

/** A body that is sent while it is produced. It is read one piece at a time, so a slow client needs no buffer. */
export interface BodyStream {
  /** Resolves with the next piece, or undefined at the end; rejects if the stream was cut. */
  read(): Promise<string | Uint8Array | undefined>;
  readonly drained: boolean;
  /** Call when the client has received everything. */
  delivered(): void;
  /** Ends the stream at once and drops unread text. */
  cut(reason: unknown): void;
  onCut: ((reason: unknown) => void) | undefined;
}

export interface HttpReply {
  readonly status: number;
  /** JSON or events, unless the headers set another content-type. */
  readonly body: string | Uint8Array | BodyStream;
  /** In addition to the content's type and length. */
  readonly headers?: HeaderMap | undefined;
  undelivered?(): void;
}

export function jsonReply(status: number, body: object, headers?: HeaderMap): HttpReply {
  return { status, body: JSON.stringify(body), headers };
}

export const isStream = (body: HttpReply['body']): body is BodyStream => typeof body !== 'string' && 'read' in body;

export function headersOf({ headers, body }: HttpReply): Record<string, string> {
  return { 'content-type': isStream(body) ? 'text/event-stream; charset=utf-8' : 'application/json', ...headers };
}

const tooLarge = (most: number): Refusal => httpRefusal('request_too_large', `the body is larger than ${most} bytes`);

/** Uses events, because an async iterator costs more than everything else. Throws `request_too_large` and drops what it read. */
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
    // Every request closes eventually. The error is made only if needed, because its stack costs as much as reading the body.
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

/** The text of a response, decompressed; undefined if it is larger than `most` bytes, and then the rest is not read. */
export async function textWithin(response: Response, most: number): Promise<string | undefined> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of response.body ?? []) {
    bytes += chunk.byteLength;
    if (bytes > most) return undefined;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

/** Milliseconds from a Retry-After header, which holds seconds or a date; 0 if it asks for none. */
export function retryAfterMs(header: string): number {
  const seconds = Number(header);
  const wait = Number.isFinite(seconds) ? seconds * 1000 : Date.parse(header) - Date.now();
  return Number.isFinite(wait) ? Math.max(0, wait) : 0;
}

const JSON_TYPE = /^application\/(?:[\w.+-]+\+)?json(?:\s*;\s*charset\s*=\s*"?utf-?8"?)?\s*;?$/i;
/** Keeps a byte order mark, which JSON does not allow. */
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** The text of a JSON body. Checks the headers first, so that unusable bodies are refused unread. */
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

/** Throws REQUEST_INVALID if the bytes are not UTF-8. */
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

interface JsonLimits {
  readonly nesting: number;
  readonly values?: number;
}

/** What a number that overflows has: such an exponent, or this many digits in a row. Each run of digits is tried only from its start. */
const MAY_OVERFLOW = /\de\+?\d{3}|(?<!\d)\d{200}/i;

/** Throws REQUEST_INVALID if the text is not JSON, is nested too deeply, or has too many values or too large a number. */
export function parseJson(text: string, most: JsonLimits): unknown {
  const { nesting, values } = sizeOfJson(text);
  if (nesting > most.nesting) throw unreadable(`the body is nested deeper than ${most.nesting} levels`);
  if (values > (most.values ?? Infinity))
    throw unreadable(`the body holds some ${values} values; at most ${most.values} are read`);
  try {
    const value: unknown = JSON.parse(text);
    if (!MAY_OVERFLOW.test(text) || asJson(value, Infinity) !== undefined) return value;
  } catch (thrown) {
    const found = text === '' ? 'it is empty' : messageOf(thrown).slice(0, 200);
    throw unreadable(`the body is not valid JSON: ${found}`);
  }
  throw unreadable('the body holds a number that is too large');
}

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

/** The common case, a URL and a text body, needs no Request. */
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
        else controller.enqueue(typeof text === 'string' ? encoder.encode(text) : Uint8Array.from(text));
        if (stream.drained) stream.delivered();
      },
      cancel: leave,
    },
    // Takes nothing before it is read: what a reader leaves behind was not delivered.
    { highWaterMark: 0 },
  );
}

/**
 * Routes are data. In a path, `{name}` matches one segment, `{name+}` one or more. A path without parameters wins over patterns; among
 * those, the first match wins. GET routes also serve HEAD.
 */
export interface RoutePattern {
  readonly method: string;
  readonly path: string;
}

export interface RouteMatch<R extends RoutePattern> {
  readonly routes: readonly R[];
  /** By parameter name, percent-encoded as in the path. */
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

  /** Undefined if no route has this path, whatever the method. */
  match(path: string): RouteMatch<R> | undefined {
    const exact = this.#exact.get(path);
    if (exact !== undefined) return exact;
    for (const { pattern, routes } of this.#patterns) {
      const found = pattern.exec(path);
      if (found !== null) return { routes, segments: found.groups ?? {} };
    }
    return undefined;
  }

  /** Throws `not_found` or `method_not_allowed`. */
  find(method: string, path: string): { readonly route: R; readonly segments: Readonly<Record<string, string>> } {
    const match = this.match(path);
    if (match === undefined) throw httpRefusal('not_found', `no route ${method} ${path.slice(0, 200)}`);
    const segments = Object.entries(match.segments).map(([name, segment]) => [name, decoded(segment)] as const);
    return { route: routeFor(match, method, path), segments: Object.fromEntries(segments) };
  }
}

type BodyLimits = JsonLimits & { readonly bodyBytes: number };

/** The JSON of a body. `empty`: what a request without a body says. Throws as `readText` and `parseJson` do. */
export async function readJson(request: HttpRequest, most: BodyLimits, empty?: object): Promise<unknown> {
  const text = await readText(request, most.bodyBytes);
  return text === '' && empty !== undefined ? empty : parseJson(text, most);
}

/** Throws `method_not_allowed` with an Allow header. */
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

/** Percent-decodes a path segment. Throws `malformed_http`. */
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
