/**
 * What the codecs of all messages share: the one error, JSON bodies read by a schema, and the fields of protobuf messages read and written.
 * It knows wire types and places, not what fields mean.
 *
 * Protobuf is written by hand because it has to be fast: bodies are megabytes of numbers, which are copied by whole arrays into one
 * allocation. The same messages by `pbf` took three times as long to write (bench/LOG.md).
 */
import { isUtf8 } from 'node:buffer';
import type { z } from 'zod';

/** A body that is not what it should be. A client says that the server garbled its reply, a server that the request is refused. */
export class WireError extends Error {
  override readonly name = 'WireError';

  /** `where`: such as `data[3].loss_fn_inputs.advantages`; empty for the whole body. */
  constructor(where: string, expected: string, found: string) {
    super(`${where === '' ? 'the body' : where}: expected ${expected}, found ${found}`);
  }
}

const LONGEST_SHOWN = 60;

/** A value as an error shows it: short, whatever was sent. */
export function shown(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === 'object' && value !== null) return 'an object';
  if (typeof value !== 'string') return String(value);
  return JSON.stringify(value.length > LONGEST_SHOWN ? `${value.slice(0, LONGEST_SHOWN)}…` : value);
}

/** `value` as `schema` has it, or a WireError that names the first place where it is not. */
export function readAs<T>(schema: z.ZodType<T>, value: unknown): T {
  const result = schema.safeParse(value, { reportInput: true });
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  const keys = issue?.path.map((key) => (typeof key === 'number' ? `[${key}]` : `.${String(key)}`)) ?? [];
  // Zod's `Invalid input: expected number, received string`, without what was received: a WireError says that itself.
  const message = issue?.message ?? 'another body';
  const expected = /expected (.*?)(?:, received .*)?$/s.exec(message)?.[1] ?? message;
  throw new WireError(keys.join('').replace(/^\./, ''), expected, shown(issue?.input));
}

/** No shape means one dimension. */
export function checkShape(shape: readonly number[] | undefined, length: number, where: string): void {
  if (shape === undefined) return;
  const bad = shape.find((size) => !Number.isSafeInteger(size) || size < 0);
  if (bad !== undefined) throw new WireError(`${where}.shape`, 'sizes of 0 or more', String(bad));
  if (shape.reduce((product, size) => product * size, 1) === length) return;
  throw new WireError(`${where}.shape`, `a shape of ${length} numbers`, `[${shape.slice(0, 8).join(', ')}]`);
}

/** With one missing, every log-probability after the gap would belong to another token. */
export function checkLogprobs(tokens: Int32Array, logprobs: Float32Array | undefined, where: string): void {
  if (logprobs === undefined || logprobs.length === tokens.length) return;
  throw new WireError(`${where}.logprobs`, `one for each of ${tokens.length} tokens`, String(logprobs.length));
}

/** Chunks of one text follow each other without anything between them. */
export function joinTokens(chunks: readonly Int32Array[]): Int32Array {
  if (chunks.length === 1) return chunks[0]!;
  const all = new Int32Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all;
}

// ── protobuf, read ───────────────────────────────────────────────────────────────────────────────────────────────────────

/** Fields of one message, rows among them. Far beyond any batch; a message of empty rows would otherwise take a hundred times its size. */
export const MOST_ROWS = 65_536;
/** Inputs of a datum, settings of a loss, metrics: each is a name that somebody knows. */
const MOST_NAMES = 1024;
/** Tags that mean something are less than this: no message has more than seven fields. */
const TAGS = 64;
const NO_BYTES = new Uint8Array(0);
const encoder = new TextEncoder();
const [VARINT, FIXED64, BYTES] = [0, 1, 2];
/** proto3 has no groups. */
const WIRE_TYPES = ['a varint', '8 bytes', 'a stretch of bytes', undefined, undefined, '4 bytes'];

/** A place in bytes. Reading beyond their end gives zeros and moves on: the reader checks the place. */
class Cursor {
  pos = 0;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  /** Beyond 2^53 not exact, and then greater than everything it is compared with. */
  varint(): number {
    let [value, scale] = [0, 1];
    for (let i = 0; i < 10; i++, scale *= 128) {
      const byte = this.#bytes[this.pos++] ?? 0;
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
    throw new WireError('', 'varints of at most 64 bits', 'a longer one');
  }

  /** A varint of 64 bits with a sign. */
  signed(): number {
    let [low, high] = [0, 0];
    for (let i = 0; i < 10; i++) {
      const byte = this.#bytes[this.pos++] ?? 0;
      if (i < 5) low |= (byte & 127) << (7 * i);
      if (i === 4) high |= (byte & 127) >> 4;
      if (i > 4) high |= (byte & 127) << (7 * i - 32);
      if (byte < 128) return high * 2 ** 32 + (low >>> 0);
    }
    throw new WireError('', 'varints of at most 64 bits', 'a longer one');
  }

  double(): number {
    this.pos += 8;
    return this.#view.getFloat64(this.pos - 8, true);
  }

  /** A view that begins with its length. */
  stretch(): Uint8Array {
    const length = this.varint();
    this.pos += length;
    return this.#bytes.subarray(this.pos - length, this.pos);
  }

  skip(type: number): void {
    if (type === VARINT) this.varint();
    else if (type === BYTES) this.stretch();
    else this.pos += type === FIXED64 ? 8 : 4;
  }
}

/**
 * The fields of one message in bytes of unknown origin. The constructor goes over all of them and checks that they end where the message
 * ends, so nothing is read or allocated beyond it. A field that is absent has proto3's default.
 */
export class ProtobufMessage {
  readonly where: string;
  readonly #cursor: Cursor;
  /** Of each value, in order: where it begins, times 64, plus its tag. */
  readonly #values: number[] = [];

  constructor(cursor: Cursor, where: string, start: number, end: number) {
    this.#cursor = cursor;
    this.where = where;
    cursor.pos = start;
    while (cursor.pos < end) {
      const tag = cursor.varint();
      const at = cursor.pos;
      const type = WIRE_TYPES[tag & 7];
      if (type === undefined) throw new WireError(where, 'a field', `wire type ${tag & 7}, which proto3 has not`);
      if (tag < 8 || tag > 0xffffffff) throw new WireError(where, 'a field', 'a tag that no field has');
      cursor.skip(tag & 7);
      if (!(cursor.pos <= end)) throw new WireError(where, `${type} in field ${tag >>> 3}`, 'the end of the message');
      if (tag >= TAGS) continue;
      if (this.#values.push(at * TAGS + tag) > MOST_ROWS) throw new WireError(where, `at most ${MOST_ROWS} fields`, 'more');
    }
  }

  /** Which field up to `most` comes last, where at most one of them counts; 0 where there is none. */
  lastUpTo(most: number): number {
    const value = this.#values.findLast((one) => (one % TAGS) >> 3 <= most);
    return value === undefined ? 0 : (value % TAGS) >> 3;
  }

  has(field: number): boolean {
    return this.#last(field) !== undefined;
  }

  /** Also for flags and enumerations. */
  int32(field: number, name: string): number {
    return this.#enter(field, VARINT, name) ? this.#int32(name) : 0;
  }

  /** Each value holds one, or, packed, any number. */
  int32s(field: number, name: string): number[] {
    const all: number[] = [];
    for (const value of this.#all(field)) {
      const isPacked = value % 8 === BYTES;
      this.#move(value, isPacked ? BYTES : VARINT, name);
      const end = isPacked ? this.#cursor.varint() + this.#cursor.pos : this.#cursor.pos + 1;
      while (this.#cursor.pos < end) all.push(this.#int32(name));
    }
    return all;
  }

  double(field: number, name: string): number {
    return this.#enter(field, FIXED64, name) ? this.#cursor.double() : 0;
  }

  text(field: number, name: string): string {
    const found = this.bytes(field, name);
    if (!isUtf8(found)) throw new WireError(this.#place(name), 'UTF-8 text', `${found.length} bytes that are not`);
    return Buffer.from(found.buffer, found.byteOffset, found.length).toString();
  }

  /** A view, not a copy: it shares the body's memory and may lie at any offset. */
  bytes(field: number, name: string): Uint8Array {
    return this.#enter(field, BYTES, name) ? this.#cursor.stretch() : NO_BYTES;
  }

  /** Each has its index in its place where `indexed` says so. */
  messages(field: number, name: string, indexed = true): ProtobufMessage[] {
    const place = this.#place(name);
    return this.#all(field).map((value, i) => this.#message(value, name, indexed ? `${place}[${i}]` : place));
  }

  message(field: number, name: string): ProtobufMessage {
    const value = this.#last(field);
    const place = this.#place(name);
    return value === undefined ? new ProtobufMessage(this.#cursor, place, 0, 0) : this.#message(value, name, place);
  }

  #all(field: number): readonly number[] {
    return this.#values.filter((value) => (value % TAGS) >> 3 === field);
  }

  #last(field: number): number | undefined {
    for (let i = this.#values.length - 1; i >= 0; i--) if ((this.#values[i]! % TAGS) >> 3 === field) return this.#values[i];
    return undefined;
  }

  #message(value: number, name: string, where: string): ProtobufMessage {
    this.#move(value, BYTES, name);
    const length = this.#cursor.varint();
    return new ProtobufMessage(this.#cursor, where, this.#cursor.pos, this.#cursor.pos + length);
  }

  /** Moves to the last value of a field; false where it has none. */
  #enter(field: number, type: number, name: string): boolean {
    const value = this.#last(field);
    if (value !== undefined) this.#move(value, type, name);
    return value !== undefined;
  }

  #move(value: number, type: number, name: string): void {
    if (value % 8 !== type) throw new WireError(this.#place(name), WIRE_TYPES[type]!, WIRE_TYPES[value % 8]!);
    this.#cursor.pos = Math.floor(value / TAGS);
  }

  #int32(name: string): number {
    const value = this.#cursor.signed();
    if (value !== (value | 0)) throw new WireError(this.#place(name), 'an integer of 32 bits', 'a greater one');
    return value;
  }

  #place(name: string): string {
    return this.where === '' || name === '' ? this.where + name : `${this.where}.${name}`;
  }
}

/** The message that the bytes are; a WireError where they are none. */
export function messageIn(bytes: Uint8Array): ProtobufMessage {
  return new ProtobufMessage(new Cursor(bytes), '', 0, bytes.length);
}

/** The entries of a map. `read` gets an entry, whose value is its field 2. */
export function readMap<T>(
  message: ProtobufMessage,
  field: number,
  name: string,
  read: (entry: ProtobufMessage, where: string) => T,
): Record<string, T> {
  const entries = message.messages(field, name, false);
  const map = new Map<string, T>();
  for (const entry of entries) {
    const key = entry.text(1, '');
    map.set(key, read(entry, `${entry.where}.${key}`));
    if (map.size > MOST_NAMES) throw new WireError(entry.where, `at most ${MOST_NAMES} names`, 'more');
  }
  return Object.fromEntries(map);
}

export const numberOf = (entry: ProtobufMessage): number => entry.double(2, '');

// ── protobuf, written ────────────────────────────────────────────────────────────────────────────────────────────────────

/** Pairs of words, low first. Small enough to stay in the nearest cache while it is filled and copied. */
const pairs = new Int32Array(2 * 2048);

/** `describe` is called twice and must do the same both times: to measure the message and those inside it, then to write them. */
export function writeMessage(describe: (out: ProtobufWriter) => void): Uint8Array<ArrayBuffer> {
  const writer = new ProtobufWriter();
  describe(writer);
  const bytes = writer.startWriting();
  describe(writer);
  return bytes;
}

export function measureMessage(describe: (out: ProtobufWriter) => void): number {
  const writer = new ProtobufWriter();
  describe(writer);
  return writer.size;
}

/** Fields that have their default are for the caller to leave out. Counts are not negative. */
export class ProtobufWriter {
  size = 0;
  /** Undefined while measuring. */
  #bytes: Uint8Array<ArrayBuffer> | undefined;
  /** Of every message and stretch inside, in the order in which they begin. */
  readonly #lengths: number[] = [];
  #lengthsUsed = 0;
  /** The same few names come with every row. */
  readonly #texts = new Map<string, Uint8Array>();

  startWriting(): Uint8Array<ArrayBuffer> {
    // Not zeroed: every byte is written, and zeroing megabytes takes longer than writing them.
    const bytes = new Uint8Array(Buffer.allocUnsafeSlow(this.size).buffer);
    this.#bytes = bytes;
    this.size = 0;
    return bytes;
  }

  /** Also for flags and enumerations. */
  count(field: number, value: number): void {
    this.#varint(field * 8 + VARINT);
    this.#varint(value);
  }

  double(field: number, value: number): void {
    this.#varint(field * 8 + FIXED64);
    this.put(new Float64Array([value]));
  }

  text(field: number, text: string, where: string): void {
    this.bytes(field, this.#encoded(text, where));
  }

  bytes(field: number, data: ArrayBufferView): void {
    this.#varint(field * 8 + BYTES);
    this.#varint(data.byteLength);
    this.put(data);
  }

  /** Packed. */
  counts(field: number, values: readonly number[]): void {
    if (values.length === 0) return;
    this.message(field, () => {
      for (const value of values) this.#varint(value);
    });
  }

  /** A message inside this one, or any stretch that `describe` puts together. */
  message(field: number, describe: () => void): void {
    this.#varint(field * 8 + BYTES);
    if (this.#bytes !== undefined) {
      this.#varint(this.#lengths[this.#lengthsUsed++]!);
      describe();
      return;
    }
    const index = this.#lengths.push(0) - 1;
    const start = this.size;
    describe();
    const length = this.size - start;
    this.#lengths[index] = length;
    this.#varint(length);
  }

  numbers(field: number, numbers: Readonly<Record<string, number>>, where: string): void {
    for (const [name, value] of Object.entries(numbers)) {
      this.message(field, () => {
        this.text(1, name, where);
        this.double(2, value);
      });
    }
  }

  /** Part of a stretch, without a tag. */
  put(data: ArrayBufferView): void {
    this.#bytes?.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), this.size);
    this.size += data.byteLength;
  }

  /** Each number as 8 bytes; part of a stretch, without a tag. */
  putInt64s(data: Int32Array): void {
    if (this.#bytes === undefined) {
      this.size += 8 * data.length;
      return;
    }
    const most = pairs.length / 2;
    for (let start = 0; start < data.length; start += most) {
      const count = Math.min(most, data.length - start);
      for (let i = 0; i < count; i++) {
        const value = data[start + i]!;
        pairs[2 * i] = value;
        pairs[2 * i + 1] = value >> 31;
      }
      this.put(pairs.subarray(0, 2 * count));
    }
  }

  #encoded(text: string, where: string): Uint8Array {
    const known = this.#texts.get(text);
    if (known !== undefined) return known;
    if (!text.isWellFormed()) throw new WireError(where, 'text', 'half a character (a lone surrogate)');
    const encoded = encoder.encode(text);
    this.#texts.set(text, encoded);
    return encoded;
  }

  #varint(value: number): void {
    let rest = value;
    while (rest >= 128) {
      this.#byte((rest % 128) | 128);
      rest = Math.floor(rest / 128);
    }
    this.#byte(rest);
  }

  #byte(value: number): void {
    if (this.#bytes !== undefined) this.#bytes[this.size] = value;
    this.size++;
  }
}
