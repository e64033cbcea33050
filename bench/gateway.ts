/**
 * What the gateway costs: `npm run bench -- gateway`. All on loopback, each server a process of its own, this one asks.
 *
 * Compared with a bare proxy that does the least a gateway for training must do, and with Portkey's gateway as its users get it, which
 * captures nothing; the added latency of one call at a time; thousands of open streams; how a conversation's cost grows. Method:
 * `gateway/slices.ts`. The other files of that folder are the servers, the client and the conversation.
 */
import { loadavg } from 'node:os';
import { bodiesOf, FIRST_TURN, loadMaterial } from './gateway/conversation.ts';
import { growth, stitchRatio } from './gateway/growth.ts';
import { openStreams } from './gateway/open-streams.ts';
import { installPackages } from './gateway/packages.ts';
import type { Door } from './gateway/served.ts';
import { type Server, startChild, startPortkey } from './gateway/servers.ts';
import { AT_ONCE, type Contender, Lane, median, rounds, type Slice, spreadOf } from './gateway/slices.ts';

const ROUNDS = 12;
const WARM_UP_ROUNDS = 3;
/** Requests one after the other, each of so many times, direct and through the gateway in turn. */
const LATENCY_BLOCKS = 12;
const LATENCY_REQUESTS = 100;

const anyDoor: Door = { path: '/v1/chat/completions', authorization: 'Bearer key' };
const headLines = ({ path, authorization }: Door): string =>
  `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: ${authorization}\r\n`;

function ours(name: string, server: Server, bodies: readonly Buffer[]): Contender {
  const doors = async (count: number) => {
    // What earlier conversations recorded is with the store by now.
    await server.order({ kind: 'seal' });
    return server.open(count);
  };
  return { name, server, bodies, headOf: headLines, doors, remembers: true };
}

function stateless(name: string, server: Server, bodies: readonly Buffer[], extra = '', door = anyDoor): Contender {
  const doors = async (count: number) => Array.from({ length: count }, () => door);
  return { name, server, bodies, headOf: (at) => headLines(at) + extra, doors, remembers: false };
}

function printed(lane: Lane, slices: readonly Slice[]): void {
  const rate = median(slices.map(({ perSecond }) => perSecond));
  const cpu = median(slices.map(({ cpuPerRequest }) => cpuPerRequest));
  console.log(
    `${lane.contender.name.padEnd(22)} ${rate.toFixed(0).padStart(6)} requests/s  ${cpu.toFixed(0).padStart(5)} µs of CPU each`,
  );
}

interface Ratio {
  readonly median: number;
  readonly min: number;
  readonly max: number;
}

function ratioOf(a: readonly Slice[], b: readonly Slice[]): Ratio {
  return spreadOf(a.map(({ perSecond }, round) => perSecond / b[round]!.perSecond));
}

async function throughput(upstream: Server, gateway: Server): Promise<Readonly<Record<string, unknown>>> {
  const { reply } = await loadMaterial();
  using bare = await startChild('bare-proxy', upstream.port);
  using portkey = await startPortkey();
  const bodies = bodiesOf(reply, false);
  const streamed = bodiesOf(reply, true);
  const provider = `x-portkey-provider: openai\r\nx-portkey-custom-host: http://127.0.0.1:${upstream.port}/v1\r\n`;
  const lanes = [
    new Lane(ours('gateway', gateway, bodies)),
    new Lane(stateless('bare proxy', bare, bodies)),
    new Lane(stateless('Portkey', portkey, bodies, provider)),
    new Lane(ours('gateway, streamed', gateway, streamed)),
    new Lane(stateless('Portkey, streamed', portkey, streamed, provider)),
  ] as const;
  for (const lane of lanes) await lane.check(reply);
  await rounds(lanes, WARM_UP_ROUNDS);
  const measured = await rounds(lanes, ROUNDS);
  const slices = lanes.map((lane) => measured.get(lane)!);
  for (const [i, lane] of lanes.entries()) printed(lane, slices[i]!);
  const cpuRatio = (a: number, b: number): number =>
    median(slices[a]!.map(({ cpuPerRequest }, round) => slices[b]![round]!.cpuPerRequest / cpuPerRequest));
  const toBareProxy = ratioOf(slices[0]!, slices[1]!);
  const toPortkey = ratioOf(slices[0]!, slices[2]!);
  const toPortkeyStream = ratioOf(slices[3]!, slices[4]!);
  const sizes = bodies.slice(FIRST_TURN + 1).map(({ length }) => length);
  return {
    ratioToBareProxy: toBareProxy.median,
    ratioToPortkey: toPortkey.median,
    ratioToPortkeyStream: toPortkeyStream.median,
    spreads: { ratioToBareProxy: toBareProxy, ratioToPortkey: toPortkey, ratioToPortkeyStream: toPortkeyStream },
    cpuRatios: { bareProxy: cpuRatio(0, 1), portkey: cpuRatio(0, 2), portkeyStream: cpuRatio(3, 4) },
    cpuMicroseconds: Object.fromEntries(
      lanes.map((lane, i) => [lane.contender.name, median(slices[i]!.map(({ cpuPerRequest }) => cpuPerRequest))]),
    ),
    requestsPerSecond: Object.fromEntries(
      lanes.map((lane, i) => [lane.contender.name, median(slices[i]!.map(({ perSecond }) => perSecond))]),
    ),
    requestBytes: sizes.reduce((sum, size) => sum + size, 0) / sizes.length,
    atOnce: AT_ONCE,
  };
}

async function latency(
  upstream: Server,
  gateway: Server,
): Promise<{ readonly addedP50Ms: number; readonly directP50Ms: number }> {
  const { reply } = await loadMaterial();
  const bodies = bodiesOf(reply, false);
  const through = new Lane(ours('gateway', gateway, bodies));
  const direct = new Lane(stateless('upstream', upstream, bodies, '', anyDoor));
  const added: number[] = [];
  const directly: number[] = [];
  for (let block = 0; block < LATENCY_BLOCKS; block++) {
    const p50 = median(await through.latencies(LATENCY_REQUESTS));
    const directP50 = median(await direct.latencies(LATENCY_REQUESTS));
    added.push(p50 - directP50);
    directly.push(directP50);
  }
  return { addedP50Ms: median(added), directP50Ms: median(directly) };
}

export async function run(): Promise<Readonly<Record<string, unknown>>> {
  installPackages();
  const load = loadavg()[0];
  const material = await loadMaterial();
  const grown = growth(material);
  console.log(`128 turns with the tokenizer of ${material.tokenizerName}:`, grown);
  using upstream = await startChild('upstream');
  using gateway = await startChild('served', upstream.port, '/v1/chat/completions', AT_ONCE);
  const compared = await throughput(upstream, gateway);
  console.log(compared);
  const waited = await latency(upstream, gateway);
  console.log(waited);
  const opened = await openStreams(upstream, bodiesOf(material.reply, true)[FIRST_TURN]!);
  console.log(opened);
  const result = { ...compared, ...waited, ...opened, ...grown, stitchRatio: await stitchRatio(material) };
  return { ...result, tokenizer: material.tokenizerName, load };
}
