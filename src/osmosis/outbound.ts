/**
 * The only way out: HTTP to addresses that whoever sends a rollout may name. URLs come from outside and are sent keys, so each is checked as
 * it is written and again for the address that its name turns out to have, and the connection goes to that very address: a name
 * that resolves to something else a moment later gains nothing. Redirects are not followed.
 */
import { lookup as systemLookup } from 'node:dns/promises';
import { isIP, type LookupFunction } from 'node:net';
import { isOwn, reachOf } from './addresses.ts';
import { HttpClient } from './http-client.ts';

export interface OutboundRules {
  /** `host` or `host:port`: these and no others, wherever they are. Absent: whatever is public. */
  readonly allowedHosts?: readonly string[] | undefined;
  /** Whether this machine's loopback may be named. */
  readonly loopback: () => boolean;
  /** The port that this server listens on. */
  readonly ownPort: () => number | undefined;
  /** Of a name: all its addresses. */
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

export class Outbound {
  readonly #rules: OutboundRules;
  readonly #client: HttpClient;

  constructor(rules: OutboundRules) {
    this.#rules = rules;
    this.#client = new HttpClient((url) => this.#lookupFor(url));
  }

  /** What is wrong with a URL as it is written. */
  fault(text: string): string | undefined {
    let url: URL;
    try {
      url = new URL(text);
    } catch {
      return 'is not a URL';
    }
    if (url.protocol !== 'http:' && url.protocol !== 'https:') return `is ${url.protocol} and not http or https`;
    if (url.username !== '' || url.password !== '') return 'holds a user name or password; keys go into the request';
    const { allowedHosts } = this.#rules;
    if (allowedHosts !== undefined && !allowedHosts.some((allowed) => isHost(allowed, url))) {
      return `names ${url.host}, which is not one of the allowed hosts`;
    }
    const literal = literalOf(url);
    return literal === undefined ? undefined : this.#faultOfAddress(literal, url);
  }

  /** Also of the addresses that its name has now; a name that cannot be resolved is found when it is used. */
  async faultNow(text: string): Promise<string | undefined> {
    const fault = this.fault(text);
    if (fault !== undefined) return fault;
    const url = new URL(text);
    if (literalOf(url) !== undefined) return undefined;
    const timeout = new Promise<readonly Address[]>((resolve) => setTimeout(resolve, RESOLVE_MS, []).unref());
    const found = await Promise.race([this.#resolve(nameOf(url)).catch(() => []), timeout]);
    return found.map(({ address }) => this.#faultOfAddress(address, url)).find((one) => one !== undefined);
  }

  /** As the global `fetch`, for plain bodies. Throws ForbiddenAddress. */
  readonly fetch = async (input: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const request = new Request(input, init);
    const fault = this.fault(request.url);
    if (fault !== undefined) throw new ForbiddenAddress(`${new URL(request.url).origin} ${fault}`);
    return await this.#client.send(request);
  };

  close(): void {
    this.#client.close();
  }

  #faultOfAddress(address: string, url: URL): string | undefined {
    const { allowedHosts, loopback, ownPort } = this.#rules;
    if (portOf(url) === ownPort() && isOwn(address)) return 'is this server itself';
    if (allowedHosts !== undefined) return undefined;
    const reach = reachOf(address);
    if (reach === 'public' || (reach === 'loopback' && loopback())) return undefined;
    return `leads to ${address}, which is ${reach === 'loopback' ? 'this machine' : 'not a public address'}; list it in allowedHosts if it is meant`;
  }

  #lookupFor(url: URL): LookupFunction {
    return (name, options, callback) => {
      this.#resolve(name).then(
        (found) => {
          const fault = found.map(({ address }) => this.#faultOfAddress(address, url)).find((one) => one !== undefined);
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
}

const nameOf = (url: URL): string => url.hostname.replace(/^\[|\]$/g, '');

/** The address itself, where the URL holds one; the URL's parser has already read 127.1 and 0x7f.1. `localhost` is one by definition. */
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
