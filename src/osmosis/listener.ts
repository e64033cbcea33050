/** A rollout server over HTTP: a node:http server that turns sockets into calls, on loopback unless somebody chose a token. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { bind, checkSecret, close } from '../gateway/bind.ts';
import type { UnreadCall } from '../gateway/call.ts';
import { checkHead, isLoopback } from '../gateway/http-guard.ts';
import { GATEWAY_LIMITS, tooLarge } from '../gateway/limits.ts';
import { type Listener, TIMEOUTS } from '../gateway/listener.ts';
import { plainServer, sendWhole } from '../gateway/plain-server.ts';
import { wholeBody } from '../gateway/whole-body.ts';
import { Denial, type Reply, replyOf } from './refusals.ts';

export interface ListenAddress {
  /** 127.0.0.1 unless given. */
  readonly host?: string;
  /** A free one unless given. */
  readonly port?: number;
}

interface Answers {
  answer(call: UnreadCall): Promise<Reply>;
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export async function listen(
  server: Answers,
  { host = '127.0.0.1', port = 0 }: ListenAddress,
  token?: string,
): Promise<Listener> {
  checkSecret(host, token, 'token');
  const local = isLoopback(host);
  const take = (incoming: IncomingMessage, outgoing: ServerResponse): void => void exchange(server, local, incoming, outgoing);
  const http = plainServer(take, TIMEOUTS, GATEWAY_LIMITS.headerBytes);
  const origin = await bind(http, host, port);
  return { origin, [Symbol.asyncDispose]: () => close(http) };
}

async function exchange(server: Answers, local: boolean, incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
  const header = (name: string): string | undefined => incoming.headers[name] as string | undefined;
  const reply = await replyTo(server, local, incoming, {
    method: incoming.method ?? 'GET',
    path: incoming.url!.split('?', 1)[0]!,
    header,
    body: () => {
      if (header('expect') !== undefined) outgoing.writeContinue();
      return textOf(incoming);
    },
    // What was asked for goes on, whether or not whoever asked is still there.
    signal: undefined,
    address: incoming.socket.remoteAddress,
  });
  if (!outgoing.destroyed) send(reply, incoming, outgoing);
}

async function replyTo(server: Answers, local: boolean, incoming: IncomingMessage, call: UnreadCall): Promise<Reply> {
  try {
    checkHead(incoming, local);
  } catch (thrown) {
    return replyOf(thrown);
  }
  return await server.answer(call);
}

async function textOf(incoming: IncomingMessage): Promise<string> {
  const body = await wholeBody(incoming, GATEWAY_LIMITS.bodyBytes, tooLarge);
  try {
    return utf8.decode(body);
  } catch {
    throw new Denial(422, 'the body is not UTF-8');
  }
}

function send({ status, body, headers }: Reply, incoming: IncomingMessage, outgoing: ServerResponse): void {
  const all = { ...headers, 'content-type': 'application/json' };
  sendWhole({ status, headers: all, body: JSON.stringify(body) }, incoming, outgoing, TIMEOUTS.linger);
}
