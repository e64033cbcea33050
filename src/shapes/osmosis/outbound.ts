/**
 * HTTP client for URLs that callers name, and the only way out of the server. Callers are untrusted and requests carry keys, so a URL is
 * checked as written and again for each address its name resolves to. The connection goes to exactly the checked address, so DNS rebinding
 * gains nothing. No redirects, compression, cookies or proxies.
 */
import { lookup as systemLookup } from 'node:dns/promises';
import { Agent, type IncomingMessage, request as requestHttp } from 'node:http';
import { request as requestHttps, Agent as SecureAgent } from 'node:https';
import { BlockList, isIP, isIPv4, type LookupFunction } from 'node:net';
import { networkInterfaces } from 'node:os';
import { Readable } from 'node:stream';

export interface OutboundRules {
  /** `host` or `host:port`: only these may be reached, even if private. Absent: any public address. */
  readonly allowedHosts?: readonly string[] | undefined;
  /** Whether URLs may name this machine's loopback. */
  readonly loopback: () => boolean;
  readonly ownPort: () => number | undefined;
  readonly resolve?: (name: string) => Promise<readonly Address[]>;
}

interface Address {
  readonly address: string;
  readonly family: number;
}

export class ForbiddenAddress extends Error {
  override readonly name = 'ForbiddenAddress';
  readonly code = 'EHOSTFORBIDDEN';
}

const RESOLVE_MS = 2000;
const AGENT = { keepAlive: true, maxSockets: Number.POSITIVE_INFINITY, maxFreeSockets: 256 };
const WITHOUT_BODY = new Set([204, 205, 304]);
/** Headers that belong to the connection; callers cannot set them. */
const OWN_HEADERS = ['accept-encoding', 'connection', 'content-length', 'host', 'transfer-encoding', 'keep-alive', 'upgrade'];

export class Outbound {
  readonly #rules: OutboundRules;
  readonly #plain = new Agent(AGENT);
  readonly #secure = new SecureAgent(AGENT);

  constructor(rules: OutboundRules) {
    this.#rules = rules;
  }

  /** What is wrong with a URL as written, without resolving its name. */
  fault(text: string): string | undefined {
    if (!URL.canParse(text)) return 'is not a URL';
    const url = new URL(text);
    if (url.protocol !== 'http:' && url.protocol !== 'https:') return `is ${url.protocol} and not http or https`;
    if (url.username !== '' || url.password !== '') return 'holds a user name or password; keys go into the request';
    const { allowedHosts } = this.#rules;
    if (allowedHosts !== undefined && !allowedHosts.some((allowed) => isHost(allowed, url))) {
      return `names ${url.host}, which is not one of the allowed hosts`;
    }
    const literal = literalOf(url);
    return literal === undefined ? undefined : this.#faultOfAddress(literal, url);
  }

  /** Also checks the addresses that the name resolves to now. A name that does not resolve passes here and fails when used. */
  async faultNow(text: string): Promise<string | undefined> {
    const fault = this.fault(text);
    if (fault !== undefined) return fault;
    const url = new URL(text);
    if (literalOf(url) !== undefined) return undefined;
    const timeout = new Promise<readonly Address[]>((resolve) => setTimeout(resolve, RESOLVE_MS, []).unref());
    return this.#faultOfAll(await Promise.race([this.#resolve(nameOf(url)).catch(() => []), timeout]), url);
  }

  /** Like the global `fetch`, but sends the body whole. Throws ForbiddenAddress. */
  readonly fetch = async (input: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const request = new Request(input, init);
    const fault = this.fault(request.url);
    if (fault !== undefined) throw new ForbiddenAddress(`${new URL(request.url).origin} ${fault}`);
    return await this.#send(request);
  };

  close(): void {
    this.#plain.destroy();
    this.#secure.destroy();
  }

  /** Uses node:http because the global `fetch` accepts no custom lookup. Rejects with the signal's reason or the connection's error. */
  async #send(request: Request): Promise<Response> {
    const { signal, method } = request;
    signal.throwIfAborted();
    const body = Buffer.from(await request.arrayBuffer());
    const url = new URL(request.url);
    const headers = new Headers(request.headers);
    for (const name of OWN_HEADERS) headers.delete(name);
    if (body.length > 0) headers.set('content-length', String(body.length));
    const [connect, agent] = url.protocol === 'https:' ? [requestHttps, this.#secure] : [requestHttp, this.#plain];
    const options = { method, headers: Object.fromEntries(headers), lookup: this.#lookupFor(url), signal, agent };
    return await new Promise((resolve, reject) => {
      const outgoing = connect(url, options, (incoming) => resolve(responseOf(incoming)));
      outgoing.once('error', (thrown) => reject(signal.aborted ? signal.reason : thrown));
      outgoing.end(body);
    });
  }

  #lookupFor(url: URL): LookupFunction {
    return (name, options, callback) => {
      this.#resolve(name).then(
        (found) => {
          const fault = this.#faultOfAll(found, url);
          const [first] = found;
          if (fault !== undefined) callback(new ForbiddenAddress(`${url.origin} ${fault}`), '', 0);
          else if (first === undefined)
            callback(Object.assign(new Error(`${name} has no address`), { code: 'ENOTFOUND' }), '', 0);
          else if (options.all) callback(null, [...found]);
          else callback(null, first.address, first.family);
        },
        (thrown: NodeJS.ErrnoException) => callback(thrown, '', 0),
      );
    };
  }

  #resolve(name: string): Promise<readonly Address[]> {
    return this.#rules.resolve?.(name) ?? systemLookup(name, { all: true });
  }

  #faultOfAll(found: readonly Address[], url: URL): string | undefined {
    return found.map(({ address }) => this.#faultOfAddress(address, url)).find((fault) => fault !== undefined);
  }

  #faultOfAddress(address: string, url: URL): string | undefined {
    const { allowedHosts, loopback, ownPort } = this.#rules;
    if (portOf(url) === ownPort() && isOwn(address)) return 'is this server itself';
    if (allowedHosts !== undefined) return undefined;
    const isLoopback = isIn(LOOPBACK, address);
    if (isLoopback ? loopback() : !isIn(INNER, address)) return undefined;
    return `leads to ${address}, which is ${isLoopback ? 'this machine' : 'not a public address'}; list it in allowedHosts if it is meant`;
  }
}

function responseOf(incoming: IncomingMessage): Response {
  const { statusCode: status = 502, statusMessage: statusText = '' } = incoming;
  const pairs = Object.entries(incoming.headersDistinct).flatMap(([name, values = []]) => values.map((value) => [name, value]));
  const init = { status, statusText, headers: pairs as [string, string][] };
  if (!WITHOUT_BODY.has(status)) return new Response(Readable.toWeb(incoming) as ReadableStream<Uint8Array<ArrayBuffer>>, init);
  incoming.resume();
  return new Response(null, init);
}

const nameOf = (url: URL): string => url.hostname.replace(/^\[|\]$/g, '');

/** The address in the URL, if it holds one; the URL parser has normalised 127.1 and 0x7f.1. `localhost` is loopback by definition. */
function literalOf(url: URL): string | undefined {
  const name = nameOf(url);
  if (/(?:^|\.)localhost\.?$/.test(name)) return '127.0.0.1';
  return isIP(name) === 0 ? undefined : name;
}

function portOf({ port, protocol }: URL): number {
  return port === '' ? (protocol === 'https:' ? 443 : 80) : Number(port);
}

function isHost(allowed: string, url: URL): boolean {
  const wanted = allowed.toLowerCase();
  const name = url.hostname.replace(/\.$/, '');
  return wanted === name || wanted === nameOf(url) || wanted === `${name}:${portOf(url)}`;
}

// An IPv4-mapped IPv6 address counts as its IPv4 address.

const LOOPBACK = blockList(['127.0.0.0/8', '::1/128']);

/** Unspecified, private, shared, link-local (cloud metadata), documentation, multicast, reserved; and what tunnels to them. */
const INNER = blockList([
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
  // The first two cover the unspecified address and older notations of IPv4 addresses.
  '::/96',
  '::ffff:0:0:0/96',
  '64:ff9b::/96',
  '64:ff9b:1::/48',
  '100::/64',
  '2001::/23',
  '2001:db8::/32',
  '2002::/16',
  'fc00::/7',
  'fe80::/10',
  'fec0::/10',
  'ff00::/8',
]);

function blockList(subnets: readonly string[]): BlockList {
  const list = new BlockList();
  for (const subnet of subnets) {
    const [net, prefix] = subnet.split('/') as [string, string];
    list.addSubnet(net, Number(prefix), isIPv4(net) ? 'ipv4' : 'ipv6');
  }
  return list;
}

function isIn(list: BlockList, address: string): boolean {
  const bare = address.split('%', 1)[0]!;
  return list.check(bare, isIPv4(bare) ? 'ipv4' : 'ipv6');
}

/** Whether a connection to the address reaches this machine. */
function isOwn(address: string): boolean {
  if (isIn(LOOPBACK, address) || ['0.0.0.0', '::', '::ffff:0:0', '::ffff:0.0.0.0'].includes(address)) return true;
  const own = Object.values(networkInterfaces()).flatMap((all) => all ?? []);
  return isIn(blockList(own.map((one) => `${one.address.split('%', 1)[0]}/${isIPv4(one.address) ? 32 : 128}`)), address);
}
