/**
 * The gateway over HTTP: a node:http server on the loopback interface that turns sockets into calls.
 *
 * A client that hangs up cancels its call. A reply that could not be delivered is reported back, so that a retry is answered again
 * rather than sampled again. Of a stream, one text at a time is under way: a client that reads slowly is waited for without
 * collecting anything here, and at the latest until its rollout ends.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { contentTypeOf } from './call.ts';
import type { EventStream } from './event-stream.ts';
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
  let undelivered: (() => void) | undefined;
  outgoing.once('close', () => {
    if (outgoing.writableFinished) return;
    hangUp.abort();
    undelivered?.();
  });
  try {
    const body = await collect(incoming);
    if (body === undefined) return void outgoing.writeHead(413, { connection: 'close' }).end();
    const reply = await gateway.answer({
      method: incoming.method ?? 'GET',
      url: new URL(`http://localhost${incoming.url ?? '/'}`),
      body,
      signal: hangUp.signal,
      header: (name) => incoming.headers[name] as string | undefined,
    });
    if (hangUp.signal.aborted) return reply.undelivered?.();
    undelivered = reply.undelivered;
    const type = { ...reply.headers, 'content-type': contentTypeOf(reply) };
    if (typeof reply.body === 'string') {
      outgoing.writeHead(reply.status, { ...type, 'content-length': Buffer.byteLength(reply.body) }).end(reply.body);
    } else {
      outgoing.writeHead(reply.status, type);
      await send(reply.body, outgoing);
    }
  } catch {
    // Only a request line that is no path, a body that broke off, or a stream that was cut gets here.
    if (outgoing.headersSent) outgoing.destroy();
    else outgoing.writeHead(400, { connection: 'close' }).end();
  }
}

/** Rejects when the stream is cut or the client hangs up. */
async function send(events: EventStream, outgoing: ServerResponse): Promise<void> {
  // A client that does not read would otherwise be waited for beyond the end of its rollout.
  events.onCut = () => outgoing.destroy();
  for (let text = await events.read(); text !== undefined; text = await events.read()) {
    // Clients hang up at `[DONE]`; so the end goes with it, or an answer that arrived would look as if it had not.
    if (events.drained) {
      outgoing.end(text, () => {
        events.onCut = undefined;
      });
      return;
    }
    await written(outgoing, text);
  }
}

/** Resolves when the text is out of our hands; rejects when the client hangs up before. */
function written(outgoing: ServerResponse, text: string): Promise<void> {
  return new Promise((resolve, reject) => {
    outgoing.once('close', reject);
    outgoing.write(text, () => {
      outgoing.off('close', reject);
      resolve();
    });
  });
}

const utf8 = new TextDecoder();

/** The whole body, or undefined if it is larger than a request may be. By events: an async iterator costs more than the rest. */
function collect(incoming: IncomingMessage): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let size = 0;
    incoming.on('data', (chunk: Buffer) => {
      size += chunk.length;
      if (size <= MAX_BODY_BYTES) chunks.push(chunk);
      else resolve(undefined);
    });
    incoming.once('end', () => resolve(utf8.decode(chunks.length === 1 ? chunks[0] : Buffer.concat(chunks))));
    incoming.once('error', reject);
    incoming.once('close', reject);
  });
}

async function close(server: Server): Promise<void> {
  server.closeAllConnections();
  await new Promise<void>((resolve) => server.close(() => resolve()));
}
