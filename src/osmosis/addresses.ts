/**
 * Which addresses belong to this machine or to somebody's inner network, and are therefore nobody else's to name. Mapped addresses count as
 * what they stand for.
 */
import { BlockList, isIPv4 } from 'node:net';
import { networkInterfaces } from 'node:os';

const LOOPBACK: readonly (readonly [string, number])[] = [
  ['127.0.0.0', 8],
  ['::1', 128],
];

/** Unspecified, private, shared, link-local (cloud metadata lives there), documentation, multicast, reserved; and what tunnels to them. */
const INNER: readonly (readonly [string, number])[] = [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.0.2.0', 24],
  ['192.88.99.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['224.0.0.0', 4],
  ['240.0.0.0', 4],
  // Unspecified, and IPv4 addresses in older spellings.
  ['::', 96],
  ['::ffff:0:0:0', 96],
  ['64:ff9b::', 96],
  ['64:ff9b:1::', 48],
  ['100::', 64],
  ['2001::', 23],
  ['2001:db8::', 32],
  ['2002::', 16],
  ['fc00::', 7],
  ['fe80::', 10],
  ['fec0::', 10],
  ['ff00::', 8],
];

const loopback = listOf(LOOPBACK);
const inner = listOf(INNER);

export type Reach = 'loopback' | 'inner' | 'public';

export function reachOf(address: string): Reach {
  const bare = address.split('%', 1)[0]!;
  const family = isIPv4(bare) ? 'ipv4' : 'ipv6';
  if (loopback.check(bare, family)) return 'loopback';
  return inner.check(bare, family) ? 'inner' : 'public';
}

/** Whether whoever connects to the address reaches this machine. */
export function isOwn(address: string): boolean {
  if (reachOf(address) === 'loopback' || ['0.0.0.0', '::', '::ffff:0:0', '::ffff:0.0.0.0'].includes(address)) return true;
  const mine = new BlockList();
  for (const { address: own } of Object.values(networkInterfaces()).flatMap((all) => all ?? [])) {
    mine.addAddress(own.split('%', 1)[0]!, isIPv4(own) ? 'ipv4' : 'ipv6');
  }
  return mine.check(address.split('%', 1)[0]!, isIPv4(address) ? 'ipv4' : 'ipv6');
}

function listOf(subnets: readonly (readonly [string, number])[]): BlockList {
  const list = new BlockList();
  for (const [net, prefix] of subnets) list.addSubnet(net, prefix, isIPv4(net) ? 'ipv4' : 'ipv6');
  return list;
}
