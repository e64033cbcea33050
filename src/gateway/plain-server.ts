/**
 * An HTTP server for replies that are whole before they are sent: what the servers of other protocols have in common with each other, and
 * the gateway, which streams, does not share. Knows nothing of what is served.
 */
import { createServer, type IncomingMessage, type OutgoingHttpHeaders, type Server, type ServerResponse } from 'node:http';
import type { Timeouts } from './listener.ts';
import { endWith, refusalOf, upgradeRequired } from './raw-reply.ts';

/** Unread bodies up to this size are read and dropped, so that the connection can be used again. */
const DROPPED_BYTES = 1024 * 1024;

export type Take = (incoming: IncomingMessage, outgoing: ServerResponse) => void;

export function plainServer(take: Take, timeouts: Timeouts, maxHeaderSize: number): Server {
  const server = createServer(
    {
      headersTimeout: timeouts.headers,
      requestTimeout: timeouts.request,
      keepAliveTimeout: timeouts.keepAlive,
      maxHeaderSize,
      requireHostHeader: false,
      noDelay: true,
    },
    take,
  );
  server.on('checkContinue', take);
  server.on('upgrade', (_, socket) => endWith(upgradeRequired(), socket, timeouts.linger));
  server.on('clientError', (error, socket) => {
    if (socket.writable) endWith(refusalOf(error), socket, timeouts.linger);
    else socket.destroy();
  });
  return server;
}

export interface WholeReply {
  readonly status: number;
  readonly headers: OutgoingHttpHeaders;
  readonly body: string | Uint8Array;
}

/** To a client that is still sending, the reply goes out first, and the rest of what it sends is dropped for a moment. */
export function sendWhole(
  { status, headers: given, body }: WholeReply,
  incoming: IncomingMessage,
  outgoing: ServerResponse,
  lingerMs: number,
): void {
  const headers = { ...given, 'content-length': Buffer.byteLength(body) };
  const declared = Number(incoming.headers['content-length'] ?? (incoming.headers['transfer-encoding'] ? Infinity : 0));
  if (incoming.complete || declared <= DROPPED_BYTES) {
    outgoing.writeHead(status, headers).end(body);
    return;
  }
  outgoing.writeHead(status, { ...headers, connection: 'close' }).write(body);
  const end = (): void => void outgoing.end();
  incoming.once('close', end).resume();
  incoming.once('end', end);
  setTimeout(end, lingerMs).unref();
}
