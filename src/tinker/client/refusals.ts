/**
 * What a reply of a Tinker server that is no result means, as an error: whose fault it is and what to do.
 *
 * The server's own words are quoted, shortened and without what cannot be printed. The API key never leaves in a message, even where
 * the server sends it back. Which replies are worth another try is not decided here.
 */
import { type ErrorCode, TrainyardError } from '../../core/errors.ts';
import type { FailureCategory } from '../wire/verbs.ts';
import type { HttpReply } from './http.ts';

/** Servers without a status for it say so in words. */
const LOST = /\bmodel\b.{0,120}\bnot (loaded|found)\b|\bunknown (model|session|sampling session)\b/i;

/** As many letters of a key are no accident. */
const KEY_START = 12;

export class Refusals {
  readonly #apiKey: string;
  readonly #address: string;

  constructor(apiKey: string, address: string) {
    this.#apiKey = apiKey;
    this.#address = address;
  }

  /** A reply with a status of 300 or more. */
  ofStatus(reply: HttpReply, verb: string): TrainyardError {
    const { status } = reply;
    const words = this.#wordsOf(reply);
    const found = `the server answered ${status} to ${verb}${words === undefined ? '' : `: ${words}`}`;
    const details = { status };
    if (status < 400) {
      return new TrainyardError('POLICY_REFUSED', `the server at ${this.#address} answered ${verb} with a redirect (${status})`, {
        hint: 'give the address that the server itself listens at',
        details,
      });
    }
    if (status === 401 || status === 403) {
      return new TrainyardError('POLICY_REFUSED', found, { hint: 'check TINKER_API_KEY', details });
    }
    if (status === 402) return new TrainyardError('POLICY_REFUSED', found, { hint: 'check the billing of the account', details });
    if (words === undefined) return this.garbled(reply, verb);
    if (status === 404 || status === 410 || LOST.test(words)) return lost(found, details);
    return new TrainyardError('POLICY_REFUSED', found, { details });
  }

  /** A request that was accepted and then failed. */
  ofFailure(error: string, category: FailureCategory, verb: string, code: ErrorCode): TrainyardError {
    const words = this.quote(error, 500);
    const found = `${verb} failed at the server: ${words}`;
    if (LOST.test(words)) return lost(found, { category });
    return new TrainyardError(category === 'user' ? 'POLICY_REFUSED' : code, found, { details: { category } });
  }

  /** A reply that is not what the API says. */
  garbled({ status, contentType, body }: HttpReply, verb: string, why = 'not JSON'): TrainyardError {
    const start = this.quote(body.subarray(0, 400).toString('utf8'), 100);
    const kind = contentType === '' ? 'no content-type' : this.quote(contentType, 60);
    return new TrainyardError('POLICY_GARBLED', `the reply to ${verb} (${status}, ${kind}) is ${why}; it begins: ${start}`, {
      hint: `check that ${this.#address} is a Tinker server`,
    });
  }

  /** Printable, on one line, shortened. */
  quote(text: string, length: number): string {
    const plain = this.#withoutKey(text)
      .replace(/[\p{C}\s]+/gu, ' ')
      .trim();
    return plain.length > length ? `${plain.slice(0, length)}…` : plain;
  }

  /** The key may stand there as JSON writes it, or be cut off: then what is left of it goes too. */
  #withoutKey(text: string): string {
    const written = JSON.stringify(this.#apiKey).slice(1, -1);
    const whole = text.replaceAll(this.#apiKey, '***').replaceAll(written, '***');
    const parts = whole.split(this.#apiKey.slice(0, KEY_START));
    return parts.map((part, i) => (i === 0 ? part : part.replace(/^[^\s"'<]*/, ''))).join('***');
  }

  #wordsOf({ body }: HttpReply): string | undefined {
    const value = parseJson(body);
    if (typeof value !== 'object' || value === null) return undefined;
    const { detail, error, message } = value as Record<string, unknown>;
    const said = detail ?? error ?? message ?? value;
    return this.quote(typeof said === 'string' ? said : JSON.stringify(said), 500);
  }
}

/** Undefined for what is not JSON. */
export function parseJson(body: Uint8Array): unknown {
  try {
    return JSON.parse(Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString('utf8'));
  } catch {
    return undefined;
  }
}

/** `details`: of what the server said; without them, it said nothing of the kind, and what became of a request is unknown. */
export function lost(found: string, details?: Readonly<Record<string, string | number>>): TrainyardError {
  return new TrainyardError('POLICY_LOST', found, {
    hint: 'go on from what was saved last: the server has dropped the rest, or cannot say what became of it',
    ...(details && { details }),
  });
}
