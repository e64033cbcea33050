/**
 * The layer below `protobuf.ts`: fields of a message, read and written by `pbf`. It knows wire types and places, not what fields mean.
 */
import { isUtf8 } from 'node:buffer';
import { PbfReader, PbfWriter } from 'pbf';
import { WireError } from './tinker-messages.ts';

/** Fields of one message, rows among them. Far beyond any batch; a message of empty rows would otherwise take a hundred times its size. */
export const MOST_ROWS = 65_536;
/** Inputs of a datum, settings of a loss, metrics: each is a name that somebody knows. */
const MOST_NAMES = 1024;
/** Tags that mean something are less than this: no message has more than seven fields. */
const TAGS = 64;
const NO_BYTES = new Uint8Array(0);
const encoder = new TextEncoder();
const [VARINT, FIXED64, BYTES] = [0, 1, 2];
/** What `pbf` skips; proto3 has no groups. */
const WIRE_TYPES = ['a varint', '8 bytes', 'a stretch of bytes', undefined, undefined, '4 bytes'];

/**
 * The fields of one message in bytes of unknown origin. The constructor goes over all of them and checks that they end where the message
 * ends, which `pbf` does not: nothing is read or allocated beyond it. A field that is absent has proto3's default.
 */
export class ProtobufMessage {
  readonly where: string;
  readonly #pbf: PbfReader;
  /** Of each value, in order: where it begins, times 64, plus its tag. */
  readonly #values: number[] = [];

  constructor(pbf: PbfReader, where: string, start: number, end: number) {
    this.#pbf = pbf;
    this.where = where;
    pbf.pos = start;
    while (pbf.pos < end) {
      const tag = pbf.readVarint();
      const at = pbf.pos;
      const type = WIRE_TYPES[tag & 7];
      if (type === undefined) throw new WireError(where, 'a field', `wire type ${tag & 7}, which proto3 has not`);
      if (tag < 8 || tag > 0xffffffff) throw new WireError(where, 'a field', 'a tag that no field has');
      pbf.skip(tag & 7);
      if (!(pbf.pos <= end)) throw new WireError(where, `${type} in field ${tag >>> 3}`, 'the end of the message');
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
      const end = isPacked ? this.#pbf.readVarint() + this.#pbf.pos : this.#pbf.pos + 1;
      while (this.#pbf.pos < end) all.push(this.#int32(name));
    }
    return all;
  }

  double(field: number, name: string): number {
    return this.#enter(field, FIXED64, name) ? this.#pbf.readDouble() : 0;
  }

  text(field: number, name: string): string {
    const found = this.bytes(field, name);
    if (!isUtf8(found)) throw new WireError(this.#place(name), 'UTF-8 text', `${found.length} bytes that are not`);
    return Buffer.from(found.buffer, found.byteOffset, found.length).toString();
  }

  /** A view, not a copy: it shares the body's memory and may lie at any offset. */
  bytes(field: number, name: string): Uint8Array {
    return this.#enter(field, BYTES, name) ? this.#pbf.readBytes() : NO_BYTES;
  }

  /** Each has its index in its place where `indexed` says so. */
  messages(field: number, name: string, indexed = true): ProtobufMessage[] {
    const place = this.#place(name);
    return this.#all(field).map((value, i) => this.#message(value, name, indexed ? `${place}[${i}]` : place));
  }

  message(field: number, name: string): ProtobufMessage {
    const value = this.#last(field);
    const place = this.#place(name);
    return value === undefined ? new ProtobufMessage(this.#pbf, place, 0, 0) : this.#message(value, name, place);
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
    const length = this.#pbf.readVarint();
    return new ProtobufMessage(this.#pbf, where, this.#pbf.pos, this.#pbf.pos + length);
  }

  /** Moves to the last value of a field; false where it has none. */
  #enter(field: number, type: number, name: string): boolean {
    const value = this.#last(field);
    if (value !== undefined) this.#move(value, type, name);
    return value !== undefined;
  }

  #move(value: number, type: number, name: string): void {
    if (value % 8 !== type) throw new WireError(this.#place(name), WIRE_TYPES[type]!, WIRE_TYPES[value % 8]!);
    this.#pbf.pos = Math.floor(value / TAGS);
  }

  #int32(name: string): number {
    const value = this.#pbf.readVarint(true);
    if (value !== (value | 0)) throw new WireError(this.#place(name), 'an integer of 32 bits', 'a greater one');
    return value;
  }

  #place(name: string): string {
    return this.where === '' || name === '' ? this.where + name : `${this.where}.${name}`;
  }
}

/** `read` gets the message that the bytes are; a WireError where they are none. */
export function decodeMessage<T>(bytes: Uint8Array, read: (body: ProtobufMessage) => T): T {
  try {
    return read(new ProtobufMessage(new PbfReader(bytes), '', 0, bytes.length));
  } catch (thrown) {
    // The one error that pbf has for what it reads here.
    const isLong = thrown instanceof Error && thrown.message.startsWith('Expected varint');
    throw isLong ? new WireError('', 'varints of at most 64 bits', 'a longer one') : thrown;
  }
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

export function writeMessage(write: (out: PbfWriter) => void): Uint8Array<ArrayBuffer> {
  const out = new PbfWriter();
  write(out);
  return out.finish() as Uint8Array<ArrayBuffer>;
}

export function putMessage(out: PbfWriter, field: number, write: () => void): void {
  out.writeMessage(field, write, undefined);
}

/** Not by `pbf`'s own writer: its version 5.1.2 writes U+20000 and its like wrong. */
export function putText(out: PbfWriter, field: number, text: string, where: string): void {
  if (!text.isWellFormed()) throw new WireError(where, 'text', 'half a character (a lone surrogate)');
  out.writeBytesField(field, encoder.encode(text));
}

export function putBytes(out: PbfWriter, field: number, data: ArrayBufferView): void {
  out.writeBytesField(field, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
}

export function putNumbers(out: PbfWriter, field: number, numbers: Readonly<Record<string, number>>, where: string): void {
  for (const [name, value] of Object.entries(numbers)) {
    putMessage(out, field, () => {
      putText(out, 1, name, where);
      out.writeDoubleField(2, value);
    });
  }
}
