/**
 * What a conversation asked last. A question says again all that was said before; what it repeats to the letter need not be written as
 * JSON, read and checked again, and stays the same objects in every turn.
 *
 * Only ever a short cut: where there is any doubt it is not taken, and whoever reads the question whole finds what is wrong with it.
 */
import { sizeOfJson } from '../core/json.ts';
import type { Json, Message, Tool } from '../core/types.ts';

/** Of JSON text. */
export interface TextSize {
  readonly bytes: number;
  readonly values: number;
}

export class Heard {
  /** As they were read. */
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
  #size: TextSize | undefined;

  constructor(messages: readonly Message[], tools: readonly Tool[], size?: TextSize) {
    this.messages = messages;
    this.tools = tools;
    this.#size = size;
  }

  /** How many bytes a request has more with these messages before its own, and these tools. */
  get size(): TextSize {
    const tools = this.tools.length === 0 ? [] : [`,"tools":${JSON.stringify(this.tools)}`];
    // Where the list would begin stands the comma after it.
    this.#size ??= sizeOf(JSON.stringify(this.messages).slice(1), ...tools);
    return this.#size;
  }

  /** Whether these are all of the same messages, then others, and the same tools. */
  isRepeatedBy(messages: unknown, tools: unknown): messages is readonly unknown[] {
    if (!Array.isArray(messages) || messages.length <= this.messages.length || 'toJSON' in messages) return false;
    if (!isWrittenAs(tools ?? [], this.tools as unknown as Json)) return false;
    return this.messages.every((message, i) => isWrittenAs(messages[i], message as unknown as Json));
  }
}

function sizeOf(...texts: readonly string[]): TextSize {
  const sizes = texts.map((text) => ({ bytes: Buffer.byteLength(text), values: sizeOfJson(text).values }));
  return sizes.reduce((sum, { bytes, values }) => ({ bytes: sum.bytes + bytes, values: sum.values + values }));
}

/**
 * Whether `JSON.stringify` writes it as this JSON, in whatever order. Not so for this very JSON: what is the caller's to change must be
 * copied.
 */
export function isWrittenAs(value: unknown, json: Json): boolean {
  if (typeof json !== 'object' || json === null) return value === json;
  if (typeof value !== 'object' || value === null || value === json || 'toJSON' in value) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  if (Array.isArray(json)) {
    if (prototype !== Array.prototype || (value as readonly unknown[]).length !== json.length) return false;
    return json.every((item, i) => isWrittenAs((value as readonly unknown[])[i], item));
  }
  if (prototype !== Object.prototype) return false;
  const given = value as Readonly<Record<string, unknown>>;
  const known = json as Readonly<Record<string, Json>>;
  let same = 0;
  for (const key of Object.keys(value)) {
    if (given[key] === undefined) continue;
    if (!Object.hasOwn(known, key) || !isWrittenAs(given[key], known[key]!)) return false;
    same++;
  }
  return same === Object.keys(known).length;
}
