/** A rollout server over HTTP, on loopback unless somebody chose a token. */
import { type HttpHandler, type Listener, serve } from '../http/http-server.ts';

export interface ListenAddress {
  /** 127.0.0.1 unless given. */
  readonly host?: string;
  /** A free one unless given. */
  readonly port?: number;
}

export async function listen(server: HttpHandler, address: ListenAddress, token?: string): Promise<Listener> {
  return await serve(server, { ...address, secret: { name: 'token', value: token } });
}
