/**
 * A `fetch` whose connections go where its owner says: node:http with a lookup of one's own, which the global `fetch` does not offer.
 * Bodies are sent whole and read as they come. No redirects, no compression, no cookies, no proxies.
 */
import { Agent, type IncomingMessage, request as requestHttp } from 'node:http';
import { request as requestHttps, Agent as SecureAgent } from 'node:https';
import type { LookupFunction } from 'node:net';
import { Readable } from 'node:stream';

const AGENT = { keepAlive: true, maxSockets: Number.POSITIVE_INFINITY, maxFreeSockets: 256 };
const WITHOUT_BODY = new Set([204, 205, 304]);
/** Not the caller's to say: they belong to the connection. */
const OWN_HEADERS = ['accept-encoding', 'connection', 'content-length', 'host', 'transfer-encoding', 'keep-alive', 'upgrade'];

export class HttpClient {
  readonly #lookup: (url: URL) => LookupFunction;
  readonly #plain = new Agent(AGENT);
  readonly #secure = new SecureAgent(AGENT);

  constructor(lookup: (url: URL) => LookupFunction) {
    this.#lookup = lookup;
  }

  /** Rejects as `fetch` does: with the signal's reason, or with what the connection said. */
  async send(request: Request): Promise<Response> {
    request.signal.throwIfAborted();
    const body = Buffer.from(await request.arrayBuffer());
    const url = new URL(request.url);
    const headers = new Headers(request.headers);
    for (const name of OWN_HEADERS) headers.delete(name);
    const isSecure = url.protocol === 'https:';
    const options = {
      method: request.method,
      headers: { ...Object.fromEntries(headers), ...(body.length > 0 ? { 'content-length': body.length } : {}) },
      lookup: this.#lookup(url),
      signal: request.signal,
      agent: isSecure ? this.#secure : this.#plain,
    };
    return await new Promise((resolve, reject) => {
      const fail = (thrown: Error): void => reject(request.signal.aborted ? request.signal.reason : thrown);
      const outgoing = (isSecure ? requestHttps : requestHttp)(url, options, (incoming) => resolve(responseOf(incoming)));
      outgoing.once('error', fail);
      outgoing.end(body);
    });
  }

  close(): void {
    this.#plain.destroy();
    this.#secure.destroy();
  }
}

function responseOf(incoming: IncomingMessage): Response {
  const { statusCode: status = 502, statusMessage: statusText = '' } = incoming;
  const headers = new Headers();
  for (const [name, values] of Object.entries(incoming.headersDistinct)) {
    for (const value of values ?? []) headers.append(name, value);
  }
  if (WITHOUT_BODY.has(status)) {
    incoming.resume();
    return new Response(null, { status, statusText, headers });
  }
  return new Response(Readable.toWeb(incoming) as ReadableStream<Uint8Array<ArrayBuffer>>, { status, statusText, headers });
}
