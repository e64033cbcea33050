/**
 * The origin that a caller is told to use: the one it used itself, where that is certainly this machine. A `Host` header is whatever the
 * sender likes; one that names something else must not end in a URL that keys are sent to.
 */
import { networkInterfaces } from 'node:os';
import { isLoopback } from '../http/guard.ts';

const HOST = /^(\[[0-9a-f:.]+\]|[\w.-]+):(\d{1,5})$/i;

export function originFor(bound: string, host: string | null | undefined): string {
  const [, name, port] = HOST.exec(host ?? '') ?? [];
  const { port: own } = new URL(bound);
  if (name === undefined || port !== own) return bound;
  return isLoopback(name) || isOwnAddress(name) ? `http://${name}:${port}` : bound;
}

function isOwnAddress(name: string): boolean {
  const bare = name.replace(/^\[|\]$/g, '');
  return Object.values(networkInterfaces()).some((addresses) => addresses?.some(({ address }) => address === bare));
}
