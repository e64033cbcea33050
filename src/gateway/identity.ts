/**
 * Keys, and the one place where a key, a path and headers become a caller in a rollout. The key decides what is allowed. A rollout's own
 * key needs nothing else; a key of the whole run names its rollout by path or `x-rollout-id`. A header that contradicts the key or path
 * gets 403. The path of a rollout that the key is not for gets 404, whether or not that rollout exists.
 */
import { createHmac, createSecretKey, hash, type KeyObject, randomBytes } from 'node:crypto';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { ClientRequest } from 'node:http';
import { currentRollout } from '../core/context.ts';
import { TrainyardError } from '../core/errors.ts';
import { isSameSecret } from '../http/guard.ts';
import type { HttpRequest } from '../http/message.ts';
import { decoded } from '../http/message.ts';
import type { Refusal } from '../http/refusal.ts';
import { type Caller, type LiveSession, type SessionTable, sealed } from './sessions.ts';
import { type Capability, GATEWAY_LIMITS, refused } from './wire-protocol.ts';

export interface Grant {
  readonly capability: Capability;
  /** If absent, the caller names the rollout. */
  readonly rollout?: string | undefined;
  readonly role?: string | undefined;
  /** The session the key was made for. A later session of the same rollout has other keys. */
  readonly session?: number | undefined;
}

/**
 * Unforgeable ids: JSON values, signed with a secret that lives as long as this object, unless one is given.
 *
 *     <prefix>-<payload, base64url>.<HMAC-SHA256 of what stands before it, base64url>
 *
 * The signature is verified, in constant time, before anything in an id is read.
 */
export class SignedIds<Fields extends readonly unknown[]> {
  readonly #prefix: string;
  readonly #secret: KeyObject;

  /** `secret`: makes ids outlive this object. */
  constructor(prefix: string, secret: Uint8Array = randomBytes(32)) {
    this.#prefix = prefix;
    this.#secret = createSecretKey(secret);
  }

  make(fields: Fields): string {
    const payload = Buffer.from(JSON.stringify(fields)).toString('base64url');
    return `${this.#prefix}-${payload}.${this.#sign(payload)}`;
  }

  read(id: string): Fields | undefined {
    const [, prefix, payload = '', signature = ''] = /^([a-z]+)-([\w-]+)\.([\w-]{43})$/.exec(id) ?? [];
    // Comparing bytes would not be enough: base64 can spell some of them in several ways.
    if (prefix !== this.#prefix || !isSameSecret(this.#sign(payload), signature)) return undefined;
    return JSON.parse(Buffer.from(payload, 'base64url').toString()) as Fields;
  }

  #sign(payload: string): string {
    // With the prefix: ids of several kinds may have one secret.
    return createHmac('sha256', this.#secret).update(`${this.#prefix}-${payload}`).digest('base64url');
  }
}

/** Verified keys to cache: verifying one costs ten times as much as a lookup. */
const MOST_REMEMBERED = 10_000;

/** The gateway's keys. They are not stored: a rollout's key names its session and becomes invalid when that session ends. */
export class Keyring {
  readonly #ids: SignedIds<readonly [grant: Grant, number: number]>;
  /** By digest, so that neither lookup nor comparison time reveals how much of a guess was right. */
  readonly #tokens = new Map<string, Grant>();
  readonly #verified = new Map<string, Grant>();
  #made = 0;

  constructor(secret?: Uint8Array) {
    this.#ids = new SignedIds('ty', secret);
  }

  make(grant: Grant): string {
    const key = this.#ids.make([grant, this.#made++]);
    this.#remember(digest(key), grant);
    return key;
  }

  accept(token: string, grant: Grant): void {
    this.#tokens.set(digest(token), grant);
  }

  /** Undefined if the key is not ours. */
  read(key: string): Grant | undefined {
    const digested = digest(key);
    const known = this.#verified.get(digested) ?? this.#tokens.get(digested);
    if (known !== undefined) return known;
    const [grant] = this.#ids.read(key) ?? [];
    if (grant === undefined) return undefined;
    this.#remember(digested, grant);
    return grant;
  }

  #remember(digested: string, grant: Grant): void {
    if (this.#verified.size >= MOST_REMEMBERED) this.#verified.clear();
    this.#verified.set(digested, grant);
  }
}

function digest(key: string): string {
  return hash('sha256', key, 'base64');
}

type Headers = Pick<HttpRequest, 'header'>;

const KEY_HEADERS = ['x-api-key', 'x-goog-api-key'] as const;
const VISIBLE = /^[\x21-\x7e]+$/;
const SAMPLE_ID = new RegExp(`^[\\x20-\\x7e]{1,${GATEWAY_LIMITS.sampleIdLength}}$`);

export function authorize(keyring: Keyring, call: Headers, who: readonly Capability[]): Grant {
  const grant = keyring.read(credentialOf(call));
  if (grant === undefined) {
    throw new TrainyardError(
      'SESSION_UNKNOWN',
      'this is not a key of this gateway',
      'use the base URL and key that were given together, and only while the rollout runs; keys change with every start, unless a server has the same --run',
    );
  }
  if (who.includes(grant.capability)) return grant;
  throw new TrainyardError(
    'CAPABILITY_MISSING',
    `a key for ${grant.capability} may not do this`,
    `it takes a key for ${who.join(' or ')}`,
  );
}

/** The caller of a model call. `pathSegment`: the rollout in the path, still percent-encoded. */
export function callerOf(sessions: SessionTable, grant: Grant, pathSegment: string | undefined, call: Headers): Caller {
  const session = sessionOf(sessions, grant, pathSegment, call);
  const role = grant.role ?? 'default';
  const thread = call.header('x-sample-id') ?? role;
  checkRollout({ session, role, thread });
  checkThread(session, grant.role, thread);
  return { session, role, thread };
}

/**
 * Throws if code known to run in one rollout calls with another rollout's model handle: the turn would be trained as the other's. The
 * rollout whose code made the call keeps it as a failed call.
 */
export function checkRollout({ session, role, thread }: Caller): void {
  const other = session.neighbour(currentRollout()?.rolloutId ?? session.rolloutId);
  if (other === undefined) return;
  const found = `code of rollout ${other.rolloutId} called with the model handle of rollout ${session.rolloutId}`;
  const queue = 'a queue that rollouts share must run each call in the context it came from (AsyncResource.bind)';
  const refusal = refused('identity_conflict', found, { hint: `take ctx.model() anew in each rollout; ${queue}` });
  void other.calling({ session: other, role, thread }, undefined, () => Promise.reject(refusal)).catch(() => {});
  throw refusal;
}

/** Throws REQUEST_INVALID if the thread is no valid name or belongs to another role. `role`: that of the caller's key, if it has one. */
export function checkThread(session: LiveSession, role: string | undefined, thread: string): void {
  if (thread === (role ?? 'default')) return;
  if (!SAMPLE_ID.test(thread)) {
    const found = 'x-sample-id: not a name that is printed in at most 128 characters';
    throw new TrainyardError('REQUEST_INVALID', found, { param: 'x-sample-id' });
  }
  // Otherwise one role could speak in another's conversation.
  if (role !== undefined && Object.hasOwn(session.spec.roles, thread)) {
    throw contradiction('x-sample-id', thread, `role ${JSON.stringify(role)}`);
  }
}

function sessionOf(sessions: SessionTable, grant: Grant, pathSegment: string | undefined, call: Headers): LiveSession {
  const inHeader = call.header('x-rollout-id');
  const inPath = pathSegment?.includes('%') ? decoded(pathSegment) : pathSegment;
  if (grant.rollout !== undefined && inPath !== undefined && inPath !== grant.rollout) throw noRollout(inPath);
  const named = grant.rollout ?? inPath;
  if (inHeader !== undefined && named !== undefined && inHeader !== named) {
    throw contradiction('x-rollout-id', inHeader, grant.rollout === undefined ? 'the path' : 'its key');
  }
  const rollout = named ?? inHeader;
  if (rollout === undefined) {
    throw new TrainyardError(
      'REQUEST_INVALID',
      'the request does not say which rollout it belongs to',
      'put /r/<rollout> into the base URL, or send x-rollout-id',
    );
  }
  const session = sessions.get(rollout);
  if (session !== undefined && (grant.session === undefined || grant.session === session.number)) return session;
  // Keys are made only for open rollouts, so this one was open before.
  if (grant.rollout !== undefined || sessions.hasEnded(rollout)) throw sealed(rollout);
  throw noRollout(rollout);
}

function credentialOf(call: Headers): string {
  const authorization = call.header('authorization')?.trim() || undefined;
  const bearer = authorization && /^Bearer(?: +(.*))?$/i.exec(authorization);
  if (authorization !== undefined && !bearer) throw noKey('the Authorization header is not Bearer');
  const [key, ...others] = new Set([bearer?.[1], ...KEY_HEADERS.map((name) => call.header(name)?.trim())].filter(Boolean));
  if (others.length > 0) throw malformed('Authorization, x-api-key and x-goog-api-key are of different keys');
  if (key === undefined) throw noKey('the request carries no key');
  if (!VISIBLE.test(key)) throw malformed('the key has characters that no key has');
  return key;
}

function noKey(message: string): TrainyardError {
  return new TrainyardError('SESSION_UNKNOWN', message, 'send it as Authorization: Bearer <key> or as x-api-key');
}

function malformed(message: string): TrainyardError {
  return new TrainyardError('REQUEST_INVALID', message);
}

function noRollout(rollout: string): Refusal {
  return refused('not_found', `no rollout ${JSON.stringify(rollout.slice(0, 100))} for this key`);
}

function contradiction(header: string, value: string, other: string): Refusal {
  const found = `${header} ${JSON.stringify(value.slice(0, 100))} contradicts ${other}`;
  return refused('identity_conflict', found, { hint: 'leave one out' });
}

interface FetchRequest {
  readonly origin: string;
  readonly headers: unknown;
  addHeader(name: string, value: string): void;
}

const NAME = 'x-rollout-id';

/**
 * Adds `x-rollout-id` to requests that a rollout's code makes, in this process, to the gateway's own listener. Node publishes each request
 * before sending it, in the context of the code that makes it. If that code uses a client with another rollout's key, the request
 * contradicts itself and is refused; otherwise its turns would be trained as the wrong rollout's. Other processes do not send the header.
 */
export function nameCallers(isOpen: (rolloutId: string) => boolean, origin: string): Disposable {
  const callingRollout = (): string | undefined => {
    const rolloutId = currentRollout()?.rolloutId;
    return rolloutId !== undefined && isOpen(rolloutId) ? rolloutId : undefined;
  };
  const byFetch = (message: unknown): void => {
    const { request } = message as { readonly request: FetchRequest };
    const rolloutId = request.origin === origin ? callingRollout() : undefined;
    if (rolloutId !== undefined && !JSON.stringify(request.headers).includes(NAME)) request.addHeader(NAME, rolloutId);
  };
  const byHttp = (message: unknown): void => {
    const { request } = message as { readonly request: ClientRequest };
    const rolloutId = `http://${request.getHeader('host')}` === origin ? callingRollout() : undefined;
    if (rolloutId !== undefined && !request.hasHeader(NAME) && !request.headersSent) request.setHeader(NAME, rolloutId);
  };
  subscribe('undici:request:create', byFetch);
  subscribe('http.client.request.created', byHttp);
  const dispose = (): void => {
    unsubscribe('undici:request:create', byFetch);
    unsubscribe('http.client.request.created', byHttp);
  };
  return { [Symbol.dispose]: dispose };
}
