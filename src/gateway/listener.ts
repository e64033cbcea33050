/**
 * The gateway over HTTP: a node:http server on the loopback interface that turns sockets into Requests.
 *
 * A client that hangs up cancels its request. A response that could not be delivered is reported back, so that a retry is
 * answered again rather than sampled again.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type Gateway, MAX_BODY_BYTES } from './gateway.ts';

export interface Listener extends AsyncDisposable {
  readonly origin: string;
}

/** Listens on 127.0.0.1 and makes the gateway's base URLs point there. */
export async function listen(gateway: Gateway, port = 0): Promise<Listener> {
  const server = createServer((incoming, outgoing) => void serve(gateway, incoming, outgoing));
  server.headersTimeout = 10_000;
  server.requestTimeout = 60_000;
  server.keepAliveTimeout = 60_000;
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, '127.0.0.1', resolve);
  });
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  gateway.origin = origin;
  return { origin, [Symbol.asyncDispose]: () => close(server) };
}

async function serve(gateway: Gateway, incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
  const hangUp = new AbortController();
  outgoing.once('close', () => {
    if (!outgoing.writableFinished) hangUp.abort();
  });
  try {
    const body = await collect(incoming);
    if (body === undefined) return void outgoing.writeHead(413, { connection: 'close' }).end();
    const request = new Request(`http://localhost${incoming.url ?? '/'}`, {
      method: incoming.method ?? 'GET',
      headers: headersOf(incoming),
      signal: hangUp.signal,
      ...(incoming.method === 'GET' || incoming.method === 'HEAD' ? {} : { body }),
    });
    const response = await gateway.fetch(request);
    const text = await response.text();
    if (hangUp.signal.aborted) return gateway.undelivered(response);
    outgoing.once('close', () => {
      if (!outgoing.writableFinished) gateway.undelivered(response);
    });
    outgoing.writeHead(response.status, Object.fromEntries(response.headers));
    outgoing.end(text);
  } catch {
    // Only a request line that is no path, or a body that broke off, gets here.
    if (outgoing.headersSent) outgoing.destroy();
    else outgoing.writeHead(400, { connection: 'close' }).end();
  }
}

/** The whole body, or undefined if it is larger than a request may be. */
async function collect(incoming: IncomingMessage): Promise<Buffer<ArrayBuffer> | undefined> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of incoming as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > MAX_BODY_BYTES) return undefined;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function headersOf(incoming: IncomingMessage): Headers {
  const headers = new Headers();
  for (const [name, value] of Object.entries(incoming.headers)) {
    if (typeof value === 'string') headers.set(name, value);
  }
  return headers;
}

async function close(server: Server): Promise<void> {
  server.closeAllConnections();
  await new Promise<void>((resolve) => server.close(() => resolve()));
}
