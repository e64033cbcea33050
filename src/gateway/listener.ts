/**
 * The gateway over HTTP: a node:http server that turns sockets into calls. On the loopback interface, unless whoever binds it
 * elsewhere brings a token.
 *
 * A client that hangs up cancels its call. A reply that could not be delivered is reported back, so that a retry is answered again
 * rather than sampled again. Of a stream, one text at a time is under way: a client that reads slowly is waited for without
 * collecting anything here, and at the latest until its rollout ends. Bodies are not read before their sender is known.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { TrainyardError } from '../core/errors.ts';
import { bind, checkSecret, close } from './bind.ts';
import { contentTypeOf, type Reply } from './call.ts';
import type { EventStream } from './event-stream.ts';
import type { Gateway } from './gateway.ts';
import { Refusal } from './http-errors.ts';
import { checkHead, isLoopback } from './http-guard.ts';
import { GATEWAY_LIMITS, tooLarge } from './limits.ts';
import { nameCallers } from './name-callers.ts';
import { endWith, refusalOf, upgradeRequired } from './raw-reply.ts';
import { wholeBody } from './whole-body.ts';

export interface Listener extends AsyncDisposable {
  readonly origin: string;
}

export interface ListenOptions {
  /** 127.0.0.1 unless given. */
  readonly host?: string;
  readonly port?: number;
  /** As good as an admin key. Anything but loopback is only bound with one. */
  readonly token?: string;
  readonly timeouts?: Partial<Timeouts>;
}

/** Milliseconds. */
export interface Timeouts {
  /** From the connection, or the request before, to the end of the headers. */
  readonly headers: number;
  /** To the end of the body. */
  readonly request: number;
  /** Between two requests. */
  readonly keepAlive: number;
  /** For a client to read a reply: why it was refused while it is still sending, or an answer before it counts as read. */
  readonly linger: number;
}

export const TIMEOUTS: Timeouts = { headers: 10_000, request: 60_000, keepAlive: 60_000, linger: 1000 };
/** Unread bodies up to this size are read and dropped, so that the connection can be used again. */
const DROPPED_BYTES = 1024 * 1024;

/** Listens, and makes the gateway's base URLs point there. */
export async function listen(gateway: Gateway, options: ListenOptions = {}): Promise<Listener> {
  const { host = '127.0.0.1', port = 0, token } = options;
  checkSecret(host, token, 'token');
  if (token !== undefined) gateway.acceptToken(token, 'admin');
  const timeouts = { ...TIMEOUTS, ...options.timeouts };
  const server = serverOf(gateway, isLoopback(host), timeouts);
  const origin = await bind(server, host, port);
  gateway.origin = origin;
  const naming = nameCallers(gateway, origin);
  const end = (): Promise<void> => {
    naming[Symbol.dispose]();
    return close(server);
  };
  return { origin, [Symbol.asyncDispose]: end };
}

function serverOf(gateway: Gateway, local: boolean, timeouts: Timeouts): Server {
  const settings = {
    headersTimeout: timeouts.headers,
    requestTimeout: timeouts.request,
    keepAliveTimeout: timeouts.keepAlive,
    connectionsCheckingInterval: Math.ceil(Math.min(timeouts.headers, timeouts.request) / 2),
    maxHeaderSize: GATEWAY_LIMITS.headerBytes,
    // Missing ones are refused as JSON, with the malformed.
    requireHostHeader: false,
  };
  const take = (incoming: IncomingMessage, outgoing: ServerResponse): void =>
    void serve({ gateway, local, timeouts, incoming, outgoing });
  const server = createServer(settings, take);
  server.on('checkContinue', take);
  server.on('checkExpectation', take);
  server.on('upgrade', (_, socket) => endWith(upgradeRequired(), socket, timeouts.linger));
  server.on('connect', (_, socket) => endWith(new Refusal('malformed_http', 'this is no proxy'), socket, timeouts.linger));
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    // A client that closes with a reply unread resets the connection. Much later, it is an idle connection that someone cut.
    const since = performance.now() - timeouts.linger;
    if (error.code === 'ECONNRESET') for (const { miss, sentAt } of unread.get(socket) ?? []) if (sentAt > since) miss();
    // In the midst of a reply there is no place for another.
    if (answering.get(socket)?.headersSent || !socket.writable) socket.destroy();
    else endWith(refusalOf(error), socket, timeouts.linger);
  });
  return server;
}

/** What to call if whole replies on a socket turn out not to have been read. Several, where requests came before their replies. */
const unread = new WeakMap<Duplex, { readonly miss: () => void; readonly sentAt: number }[]>();

/** The latest reply under way on a socket. */
const answering = new WeakMap<Duplex, ServerResponse>();

interface Exchange {
  readonly gateway: Gateway;
  readonly local: boolean;
  readonly timeouts: Timeouts;
  readonly incoming: IncomingMessage;
  readonly outgoing: ServerResponse;
}

async function serve(exchange: Exchange): Promise<void> {
  const { incoming, outgoing } = exchange;
  const hangUp = new AbortController();
  let isGone = false;
  let undelivered: (() => void) | undefined;
  answering.set(incoming.socket, outgoing);
  unread.delete(incoming.socket);
  outgoing.once('close', () => {
    if (answering.get(incoming.socket) === outgoing) answering.delete(incoming.socket);
    if (outgoing.writableFinished) return;
    isGone = true;
    hangUp.abort();
    undelivered?.();
  });
  try {
    const reply = await replyTo(exchange, hangUp);
    if (isGone) return reply.undelivered?.();
    undelivered = reply.undelivered;
    const headers = { ...reply.headers, 'content-type': contentTypeOf(reply) };
    if (typeof reply.body === 'string') {
      const sent = unread.get(incoming.socket) ?? [];
      if (reply.undelivered) unread.set(incoming.socket, [...sent, { miss: reply.undelivered, sentAt: performance.now() }]);
      return finish(exchange, reply.status, headers, reply.body);
    }
    outgoing.writeHead(reply.status, headers);
    await send(reply.body, outgoing);
  } catch {
    // Only a stream that was cut gets here.
    outgoing.destroy();
  }
}

async function replyTo({ gateway, local, incoming, outgoing }: Exchange, controller: AbortController): Promise<Reply> {
  const header = (name: string): string | undefined => incoming.headers[name] as string | undefined;
  try {
    checkHead(incoming, local);
  } catch (thrown) {
    return gateway.refuse(thrown as Refusal, { path: '/', header });
  }
  const [path] = incoming.url!.split('?', 1) as [string];
  return await gateway.answer({
    method: incoming.method ?? 'GET',
    path,
    query: incoming.url!.slice(path.length),
    body: () => {
      if (header('expect') !== undefined) outgoing.writeContinue();
      return collect(incoming);
    },
    signal: controller.signal,
    controller,
    address: incoming.socket.remoteAddress,
    header,
  });
}

/** Sends a whole reply. To a client that is still sending, it says so and listens a little longer, or the reply would be lost. */
function finish({ incoming, outgoing, timeouts }: Exchange, status: number, headers: Record<string, string>, body: string): void {
  const length = { 'content-length': Buffer.byteLength(body) };
  const declared = Number(incoming.headers['content-length'] ?? (incoming.headers['transfer-encoding'] ? Infinity : 0));
  if (incoming.complete || declared <= DROPPED_BYTES) {
    outgoing.writeHead(status, { ...headers, ...length }).end(body);
    return;
  }
  outgoing.writeHead(status, { ...headers, ...length, connection: 'close' }).write(body);
  const end = (): void => void outgoing.end();
  incoming.once('close', end).resume();
  setTimeout(end, timeouts.linger).unref();
}

/** Rejects when the stream is cut or the client hangs up. */
async function send(events: EventStream, outgoing: ServerResponse): Promise<void> {
  // A client that does not read would otherwise be waited for beyond the end of its rollout.
  events.onCut = () => outgoing.destroy();
  for (let text = await events.read(); text !== undefined; text = await events.read()) {
    // Clients hang up at `[DONE]`; so the end goes with it, or an answer that arrived would look as if it had not.
    if (events.drained) {
      outgoing.end(text, () => events.delivered());
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

/** A byte order mark is kept: it is no JSON. */
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

async function collect(incoming: IncomingMessage): Promise<string> {
  const body = await wholeBody(incoming, GATEWAY_LIMITS.bodyBytes, tooLarge);
  try {
    return utf8.decode(body);
  } catch {
    throw new TrainyardError('REQUEST_INVALID', 'the body is not UTF-8');
  }
}
