/** The Tinker server over HTTP, on loopback unless somebody chose the key. */
import { yieldToEventLoop } from '../../core/async.ts';
import { type HttpHandler, type Listener, serve } from '../../http/http-server.ts';
import type { HttpReply } from '../../http/message.ts';
import { TINKER_LIMITS } from './limits.ts';
import type { TinkerReply } from './message.ts';
import type { TinkerServer } from './server.ts';

export interface ListenOptions {
  readonly host: string;
  readonly port: number;
  /** The key, where somebody chose it. */
  readonly chosenKey?: string | undefined;
}

/** Milliseconds. `request` is for the whole of a large batch over a slow line. */
const TIMEOUTS = { request: 120_000, keepAlive: 75_000 };

export async function listen(server: TinkerServer, { host, port, chosenKey }: ListenOptions): Promise<Listener> {
  const handler: HttpHandler = {
    answer: async (request) => {
      await yieldToEventLoop();
      const body = (): Promise<Uint8Array> => request.body(TINKER_LIMITS.bodyBytes) as Promise<Uint8Array>;
      const url = request.path + request.query;
      return httpReply(await server.answer({ ...request, address: request.address, url, body, signal: request.signal! }));
    },
    refuse: (refusal) => httpReply(server.refuse(refusal, '/')),
  };
  return await serve(handler, { host, port, secret: { name: 'key', value: chosenKey }, timeouts: TIMEOUTS });
}

function httpReply({ status, type, body }: TinkerReply): HttpReply {
  return { status, headers: { 'content-type': type, ...(status === 429 ? { 'retry-after': '1' } : {}) }, body };
}
