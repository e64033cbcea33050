/**
 * What is checked of a request's head before it becomes a call: that it is well-formed, says one thing only, and comes neither from a
 * web page nor by a name that someone else's DNS points here.
 */
import type { IncomingMessage } from 'node:http';
import { Refusal } from './http-errors.ts';
import { SINGLE_HEADERS } from './identity.ts';
import { GATEWAY_LIMITS } from './limits.ts';

const SINGLE = new Set<string>([...SINGLE_HEADERS, 'host', 'content-type', 'content-encoding', 'content-length', 'origin']);
const SINGLE_LENGTHS = new Set([...SINGLE].map((name) => name.length));
const TARGET = /^\/[\x21\x23-\x5b\x5d-\x7e]*$/;
/** Empty and dot segments, NUL, and percent signs that encode nothing. */
const BAD_PATH = /\/(?=\/)|\/(?:\.|%2e){1,2}(?=\/|$)|%00|%(?![0-9a-f]{2})/i;
const HOST = /^(\[[0-9a-f:.]+\]|[\w.-]+)(?::\d{1,5})?$/i;
const LOOPBACK = /^(?:localhost|[\w-]+\.localhost|127(?:\.\d{1,3}){3}|::1|\[::1\])$/i;

export const isLoopback = (host: string): boolean => LOOPBACK.test(host);

/** Throws a Refusal. `local`: the server is bound to loopback only. */
export function checkHead(incoming: IncomingMessage, local: boolean): void {
  const { rawHeaders, headers, url = '' } = incoming;
  if (rawHeaders.length / 2 > GATEWAY_LIMITS.headers) {
    throw new Refusal('headers_too_large', `${rawHeaders.length / 2} headers; at most ${GATEWAY_LIMITS.headers} are read`);
  }
  checkSingle(rawHeaders);
  if (!TARGET.test(url) || BAD_PATH.test(url.split('?', 1)[0]!)) {
    throw malformed('the request target is not a plain path');
  }
  checkHost(headers.host, local);
  checkOrigin(incoming);
}

function checkSingle(rawHeaders: readonly string[]): void {
  const seen: string[] = [];
  for (let i = 0; i < rawHeaders.length; i += 2) {
    if (!SINGLE_LENGTHS.has(rawHeaders[i]!.length)) continue;
    const name = rawHeaders[i]!.toLowerCase();
    if (!SINGLE.has(name)) continue;
    if (seen.includes(name)) throw malformed(`two ${name} headers`);
    seen.push(name);
  }
}

function checkHost(host: string | undefined, local: boolean): void {
  const [, name] = HOST.exec(host ?? '') ?? [];
  if (name === undefined) throw malformed('the Host header is missing or malformed');
  if (!local || isLoopback(name)) return;
  throw new Refusal('forbidden_origin', `Host ${host} is not a name of this machine’s loopback`, 'use 127.0.0.1 or localhost');
}

/** There is no page of ours that calls the gateway, so whatever a browser sends is not meant well, or not for us. */
function checkOrigin({ headers }: IncomingMessage): void {
  const { origin, host } = headers;
  const site = headers['sec-fetch-site'];
  const isForeign = (origin !== undefined && origin !== `http://${host}`) || site === 'cross-site' || site === 'same-site';
  if (isForeign) throw new Refusal('forbidden_origin', 'the request comes from a web page of another origin');
}

function malformed(message: string): Refusal {
  return new Refusal('malformed_http', message);
}
