/**
 * Signed ids, and the keys of the gateway, which are some: what a caller may do, and for which rollout. Knows nothing of HTTP.
 *
 *     <prefix>-<payload, base64url>.<HMAC-SHA256 of the payload, base64url>
 *
 * The signature is verified, in constant time, before anything in an id is looked at. Keys are not stored: a key of a rollout names
 * the session it was made for, and is worth nothing when that is over.
 */
import { createHmac, createSecretKey, hash, type KeyObject, randomBytes, timingSafeEqual } from 'node:crypto';
import type { Capability } from './wire-protocol.ts';

/** What a key stands for. */
export interface Grant {
  readonly capability: Capability;
  /** The one rollout it is for; without it, its caller says which. */
  readonly rollout?: string | undefined;
  readonly role?: string | undefined;
  /** Of the session it was made for: another session of the same rollout has other keys. */
  readonly session?: number | undefined;
}

/** Verified keys remembered, by digest: to verify one costs several times as much as to find it. */
const MOST_REMEMBERED = 10_000;

/** Ids that nobody else can make: values of JSON, signed with a secret that lives as long as this object. */
export class SignedIds<Fields extends readonly unknown[]> {
  readonly #prefix: string;
  readonly #secret: KeyObject = createSecretKey(randomBytes(32));

  constructor(prefix: string) {
    this.#prefix = prefix;
  }

  make(fields: Fields): string {
    const payload = Buffer.from(JSON.stringify(fields)).toString('base64url');
    return `${this.#prefix}-${payload}.${this.#sign(payload).toString('base64url')}`;
  }

  /** Undefined where the id is none of ours. */
  read(id: string): Fields | undefined {
    const [, prefix, payload = '', signature = ''] = /^([a-z]+)-([\w-]+)\.([\w-]{43})$/.exec(id) ?? [];
    if (prefix !== this.#prefix) return undefined;
    const given = Buffer.from(signature, 'base64url');
    // Not the bytes alone: base64 has several spellings for some of them.
    if (given.toString('base64url') !== signature || !timingSafeEqual(given, this.#sign(payload))) return undefined;
    return JSON.parse(Buffer.from(payload, 'base64url').toString()) as Fields;
  }

  #sign(payload: string): Buffer {
    return createHmac('sha256', this.#secret).update(payload).digest();
  }
}

type KeyFields = readonly [
  capability: Capability,
  rollout: string | null,
  role: string | null,
  session: number | null,
  number: number,
];

export class Keyring {
  readonly #ids = new SignedIds<KeyFields>('ty');
  /** By digest, so that neither this table nor a comparison tells how much of a guess was right. */
  readonly #verified = new Map<string, Grant>();
  readonly #tokens = new Map<string, Grant>();
  #made = 0;

  /** No two keys are the same. */
  make({ capability, rollout, role, session }: Grant): string {
    return this.#ids.make([capability, rollout ?? null, role ?? null, session ?? null, this.#made++]);
  }

  /** A secret of someone else's making that is as good as a key. */
  accept(token: string, grant: Grant): void {
    this.#tokens.set(digest(token), grant);
  }

  /** What the key stands for, or undefined if it is none of ours. */
  read(key: string): Grant | undefined {
    const digested = digest(key);
    const known = this.#verified.get(digested) ?? this.#tokens.get(digested);
    if (known !== undefined) return known;
    const fields = this.#ids.read(key);
    if (fields === undefined) return undefined;
    const [capability, rollout, role, session] = fields;
    const grant = { capability, rollout: rollout ?? undefined, role: role ?? undefined, session: session ?? undefined };
    for (const oldest of this.#verified.keys()) {
      if (this.#verified.size < MOST_REMEMBERED) break;
      this.#verified.delete(oldest);
    }
    this.#verified.set(digested, grant);
    return grant;
  }
}

function digest(key: string): string {
  return hash('sha256', key, 'base64');
}
