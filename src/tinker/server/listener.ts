/**
 * The Tinker server over HTTP: a node:http server that turns sockets into requests, on loopback unless somebody chose the key.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { bind, checkSecret, close } from '../../gateway/bind.ts';
import { checkHead, isLoopback } from '../../gateway/http-guard.ts';
import { plainServer, sendWhole } from '../../gateway/plain-server.ts';
import { wholeBody } from '../../gateway/whole-body.ts';
import { Turns } from '../client/turns.ts';
import { TINKER_LIMITS } from './limits.ts';
import { type TinkerReply, tooLarge } from './message.ts';
import type { TinkerServer } from './server.ts';

export interface ListenOptions {
  readonly host: string;
  readonly port: number;
  /** The key, where somebody chose it. */
  readonly chosenKey?: string | undefined;
}

/** Milliseconds. `request` is for the whole of a large batch over a slow line. */
const TIMEOUTS = { headers: 10_000, request: 120_000, keepAlive: 75_000, linger: 1000 };
const HEADER_BYTES = 16 * 1024;

export async function listen(
  server: TinkerServer,
  { host, port, chosenKey }: ListenOptions,
): Promise<AsyncDisposable & { readonly origin: string }> {
  checkSecret(host, chosenKey, 'key');
  const local = isLoopback(host);
  const take = (incoming: IncomingMessage, outgoing: ServerResponse): void => void exchange(server, local, incoming, outgoing);
  const http = plainServer(take, TIMEOUTS, HEADER_BYTES);
  const origin = await bind(http, host, port);
  return { origin, [Symbol.asyncDispose]: () => close(http) };
}

const GONE = 'the client hung up';

const turns = new Turns();

async function exchange(
  server: TinkerServer,
  local: boolean,
  incoming: IncomingMessage,
  outgoing: ServerResponse,
): Promise<void> {
  const hangUp = new AbortController();
  outgoing.once('close', () => {
    // With a reason of its own: the one that would be made for each costs more than the rest of a small request.
    if (!outgoing.writableFinished) hangUp.abort(GONE);
  });
  await new Promise<void>((begin) => turns.enter(begin));
  const header = (name: string): string | undefined => incoming.headers[name] as string | undefined;
  const reply = await replyTo(server, local, incoming, {
    method: incoming.method ?? 'GET',
    url: incoming.url ?? '/',
    header,
    body: () => {
      if (header('expect') !== undefined) outgoing.writeContinue();
      return wholeBody(incoming, TINKER_LIMITS.bodyBytes, tooLarge);
    },
    signal: hangUp.signal,
    address: incoming.socket.remoteAddress,
  });
  if (!outgoing.destroyed) send(reply, incoming, outgoing);
}

async function replyTo(
  server: TinkerServer,
  local: boolean,
  incoming: IncomingMessage,
  request: Parameters<TinkerServer['answer']>[0],
): Promise<TinkerReply> {
  try {
    checkHead(incoming, local);
  } catch (thrown) {
    return server.refuse(thrown, '/');
  }
  return await server.answer(request);
}

function send({ status, type, body }: TinkerReply, incoming: IncomingMessage, outgoing: ServerResponse): void {
  const headers = { 'content-type': type, ...(status === 429 ? { 'retry-after': '1' } : {}) };
  sendWhole({ status, headers, body }, incoming, outgoing, TIMEOUTS.linger);
}
