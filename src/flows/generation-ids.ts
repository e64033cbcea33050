/**
 * Ids of generations that nobody else can make: which turn of which session it was, signed.
 *
 *     gen-<payload, base64url>.<HMAC-SHA256 of the payload, base64url>
 */
import { createHmac, createSecretKey, randomBytes, timingSafeEqual } from 'node:crypto';

export interface GenerationName {
  readonly rollout: string;
  /** Number of the session. */
  readonly session: number;
  readonly turn: number;
}

const SIGNED = /^gen-([\w-]+)\.([\w-]{43})$/;

export class GenerationIds {
  readonly #secret = createSecretKey(randomBytes(32));

  make({ rollout, session, turn }: GenerationName): string {
    const payload = Buffer.from(JSON.stringify([rollout, session, turn])).toString('base64url');
    return `gen-${payload}.${this.#sign(payload).toString('base64url')}`;
  }

  /** Undefined where it is none of ours. */
  read(id: string): GenerationName | undefined {
    const [, payload, signature] = SIGNED.exec(id) ?? [];
    if (payload === undefined || signature === undefined) return undefined;
    const given = Buffer.from(signature, 'base64url');
    if (given.toString('base64url') !== signature || !timingSafeEqual(given, this.#sign(payload))) return undefined;
    const [rollout, session, turn] = JSON.parse(Buffer.from(payload, 'base64url').toString()) as [string, number, number];
    return { rollout, session, turn };
  }

  #sign(payload: string): Buffer {
    return createHmac('sha256', this.#secret).update(payload).digest();
  }
}
