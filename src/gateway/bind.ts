/**
 * Where a server listens, and who may reach it there: on loopback anyone with a key, elsewhere only when somebody chose the secret.
 * Shared by every server of this package. Knows nothing of what is served.
 */
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { TrainyardError } from '../core/errors.ts';
import { isLoopback } from './http-guard.ts';

/** Shorter secrets can be guessed. */
const SHORTEST_SECRET = 16;

/** Throws USAGE where the address would be open to whoever guesses. `called`: what the user knows the secret as. */
export function checkSecret(host: string, secret: string | undefined, called: string): void {
  if (secret === undefined && !isLoopback(host)) {
    throw new TrainyardError('USAGE', `${JSON.stringify(host)} is not loopback, and no ${called} was given`, {
      hint: `anyone who can reach the port could try keys: give a ${called}, or bind 127.0.0.1`,
    });
  }
  if (secret !== undefined && (secret.length < SHORTEST_SECRET || !/^[\x21-\x7e]+$/.test(secret))) {
    throw new TrainyardError('USAGE', `the ${called} is not ${SHORTEST_SECRET} or more printable ASCII characters`, {
      hint: 'make one: openssl rand -hex 16',
    });
  }
}

/** Listens; the origin it is reached at from this machine. Throws USAGE. */
export async function bind(server: Server, host: string, port: number): Promise<string> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', (cause) => reject(cannotListen(cause, host, port)));
    server.listen(port, host, resolve);
  });
  const bound = (server.address() as AddressInfo).port;
  // Whoever binds every interface is reached on loopback too.
  const name = host === '0.0.0.0' ? '127.0.0.1' : host === '::' ? '::1' : host;
  return `http://${name.includes(':') ? `[${name}]` : name}:${bound}`;
}

export async function close(server: Server): Promise<void> {
  server.closeAllConnections();
  await new Promise<void>((resolve) => server.close(() => resolve()));
}

function cannotListen(cause: NodeJS.ErrnoException, host: string, port: number): TrainyardError {
  const taken = cause.code === 'EADDRINUSE';
  const message = taken ? `port ${port} of ${host} is taken` : `cannot listen on ${host}, port ${port}: ${cause.message}`;
  return new TrainyardError('USAGE', message, {
    cause,
    hint: taken ? 'give another port, or none for a free one' : 'give an address of this machine and a port that you may use',
  });
}
