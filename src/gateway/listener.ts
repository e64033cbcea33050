/** The gateway over HTTP: on the loopback interface, unless whoever binds it elsewhere brings a token. */
import { type Listener, serve, type Timeouts } from '../http/http-server.ts';
import type { Gateway } from './gateway.ts';
import { nameCallers } from './name-callers.ts';

export type { Listener };

export interface ListenOptions {
  /** 127.0.0.1 unless given. */
  readonly host?: string;
  readonly port?: number;
  /** As good as an admin key. Anything but loopback is only bound with one. */
  readonly token?: string;
  readonly timeouts?: Partial<Timeouts>;
}

/** Listens, and makes the gateway's base URLs point there. */
export async function listen(gateway: Gateway, { token, ...options }: ListenOptions = {}): Promise<Listener> {
  const listener = await serve(gateway, { ...options, secret: { name: 'token', value: token } });
  if (token !== undefined) gateway.acceptToken(token, 'admin');
  gateway.origin = listener.origin;
  const naming = nameCallers(gateway, listener.origin);
  const close = async (): Promise<void> => {
    naming[Symbol.dispose]();
    await listener[Symbol.asyncDispose]();
  };
  return { origin: listener.origin, [Symbol.asyncDispose]: close };
}
