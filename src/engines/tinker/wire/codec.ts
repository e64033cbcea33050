/**
 * Shared by the codecs of all messages: the error type, JSON bodies checked by a schema, and a protobuf reader and writer. It knows wire
 * types and places, not the meaning of fields. Protobuf is written by hand for speed: bodies are megabytes of numbers, copied as whole
 * arrays into one allocation. Writing the same messages with `pbf` took three times as long (bench/LOG.md).
 */
import { isUtf8 } from 'node:buffer';
import type { z } from 'zod';

/** An invalid body. A client reports it as a garbled response, a server as a refused request. */
export class WireError extends Error {
  override readonly name = 'WireError';

  /** `where`: a place such as `data[3].loss_fn_inputs.advantages`; empty for the whole body. */
  constructor(where: string, expected: string, found: string) {
    super(`${where === '' ? 'the body' : where}: expected ${expected}, found ${found}`);
  }
}

const LONGEST_SHOWN = 60;

/** Describes a value for an error message. Always short, whatever was sent. */
export function shown(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === 'object' && value !== null) return 'an object';
  if (typeof value !== 'string') return String(value);
  return JSON.stringify(value.length > LONGEST_SHOWN ? `${value.slice(0, LONGEST_SHOWN)}…` : value);
}

/** Parses `value`, or throws a WireError for the first place that does not match. */
export function readAs<T>(schema: z.ZodType<T>, value: unknown): T {
  const result = schema.safeParse(value, { reportInput: true });
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  const keys = issue?.path.map((key) => (typeof key === 'number' ? `[${key}]` : `.${String(key)}`)) ?? [];
  // Zod says `Invalid input: expected number, received string`. WireError adds what was found itself.
  const message = issue?.message ?? 'another body';
  const expected = /expected (.*?)(?:, received .*)?$/s.exec(message)?.[1] ?? message;
  throw new WireError(keys.join('').replace(/^\./, ''), expected, shown(issue?.input));
}

/** An undefined shape means one dimension. */
export function checkShape(shape: readonly number[] | undefined, length: number, where: string): void {
  if (shape === undefined) return;
  const bad = shape.find((size) => !Number.isSafeInteger(size) || size < 0);
  if (bad !== undefined) throw new WireError(`${where}.shape`, 'sizes of 0 or more', String(bad));
  if (shape.reduce((product, size) => product * size, 1) === length) return;
  throw new WireError(`${where}.shape`, `a shape of ${length} numbers`, `[${shape.slice(0, 8).join(', ')}]`);
}

/** If one log-probability were missing, all later ones would belong to the wrong tokens. */
export function checkLogprobs(tokens: Int32Array, logprobs: Float32Array | undefined, where: string): void {
  if (logprobs === undefined || logprobs.length === tokens.length) return;
  throw new WireError(`${where}.logprobs`, `one for each of ${tokens.length} tokens`, String(logprobs.length));
}

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

/** Fields per message, rows included. Without a limit, empty rows could take a hundred times their size in memory. */
export const MOST_ROWS = 65_536;
/** Entries per map: inputs of a datum, settings of a loss, or metrics. */
const MOST_NAMES = 1024;
/** Tags below this can have a meaning: no message has more than seven fields. */
const TAGS = 64;
const NO_BYTES = new Uint8Array(0);
const encoder = new TextEncoder();
const VARINT = 0;
const FIXED64 = 1;
const BYTES = 2;
/** Undefined for groups, which proto3 does not have. */
const WIRE_TYPES = ['a varint', '8 bytes', 'a stretch of bytes', undefined, undefined, '4 bytes'];

/** A read position. Reading past the end yields zeros and still advances; the caller must check the position. */
class Cursor {
  pos = 0;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  /** Inexact above 2^53, but then still greater than any limit it is compared with. */
  varint(): number {
    let value = 0;
    let scale = 1;
    for (let i = 0; i < 10; i++, scale *= 128) {
      const byte = this.#bytes[this.pos++] ?? 0;
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
    throw new WireError('', 'varints of at most 64 bits', 'a longer one');
  }

  /** A signed 64-bit varint. */
  signed(): number {
    let low = 0;
    let high = 0;
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

  /** A length-prefixed byte range, as a view. */
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
 * The fields of one untrusted message. The constructor checks that all end within it, so nothing beyond it is read or allocated. Absent
 * fields have proto3's defaults.
 */
export class ProtobufMessage {
  readonly where: string;
  readonly #cursor: Cursor;
  /** For each value in order: its start offset × 64 + its tag. */
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

  /** The last field present with a number up to `most`, for oneof fields; 0 if absent. */
  lastUpTo(most: number): number {
    const value = this.#values.findLast((one) => (one % TAGS) >> 3 <= most);
    return value === undefined ? 0 : (value % TAGS) >> 3;
  }

  has(field: number): boolean {
    return this.#last(field) !== undefined;
  }

  /** Also for booleans and enums. */
  int32(field: number, name: string): number {
    return this.#enter(field, VARINT, name) ? this.#int32(name) : 0;
  }

  /** Packed or not. */
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

  /** A view, not a copy: it shares the body's memory and may be unaligned. */
  bytes(field: number, name: string): Uint8Array {
    return this.#enter(field, BYTES, name) ? this.#cursor.stretch() : NO_BYTES;
  }

  /** `indexed`: whether places in errors include the index. */
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

  /** Moves to the last value of a field. False if it is absent. */
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

/** Throws a WireError if the bytes are not a message. */
export function messageIn(bytes: Uint8Array): ProtobufMessage {
  return new ProtobufMessage(new Cursor(bytes), '', 0, bytes.length);
}

/** Reads a map. `read` gets each entry, whose value is its field 2. */
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

/** Low and high words alternate. Small enough to stay in the L1 cache while it is filled and copied. */
const pairs = new Int32Array(2 * 2048);

/** Calls `describe` twice, to measure and then to write. It must do the same both times. */
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

/** Callers omit fields with default values. Counts must not be negative. */
export class ProtobufWriter {
  size = 0;
  /** Undefined while measuring. */
  #bytes: Uint8Array<ArrayBuffer> | undefined;
  /** Lengths of all nested messages and byte ranges, in the order in which they begin. */
  readonly #lengths: number[] = [];
  #lengthsUsed = 0;
  /** Cached, since the same few names occur in every row. */
  readonly #texts = new Map<string, Uint8Array>();

  startWriting(): Uint8Array<ArrayBuffer> {
    // Not zeroed: every byte gets written, and zeroing megabytes takes longer than writing them.
    const bytes = new Uint8Array(Buffer.allocUnsafeSlow(this.size).buffer);
    this.#bytes = bytes;
    this.size = 0;
    return bytes;
  }

  /** Also for booleans and enums. */
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

  /** Each number takes 8 bytes. */
  int64s(field: number, data: Int32Array): void {
    this.#varint(field * 8 + BYTES);
    this.#varint(8 * data.length);
    this.putInt64s(data);
  }

  /** Packed. */
  counts(field: number, values: readonly number[]): void {
    if (values.length === 0) return;
    this.message(field, () => {
      for (const value of values) this.#varint(value);
    });
  }

  /** A nested message, or a byte range that `describe` assembles. */
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

  /** Appends raw bytes without a tag. */
  put(data: ArrayBufferView): void {
    this.#bytes?.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), this.size);
    this.size += data.byteLength;
  }

  /** Appends each number as 8 bytes, without a tag. */
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
