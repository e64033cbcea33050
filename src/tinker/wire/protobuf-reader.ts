/**
 * The lowest layer of protobuf, reading: tags, varints, and stretches of bytes, from bytes nobody vouches for.
 *
 * Nothing is read outside the message, and nothing is allocated by a length before that many bytes are known to be there. Every call
 * moves on or throws a WireError, so reading ends. Groups are refused: proto3 has none. What fields mean is not known here.
 */
import { WireError } from './wire-error.ts';

const [VARINT, FIXED64, BYTES, FIXED32] = [0, 1, 2, 5];
const WIRE_NAMES = ['a varint', '8 bytes', 'a stretch of bytes', 'a group', 'a group', '4 bytes'];
const LONGEST_VARINT = 10;
const TWO_TO_32 = 2 ** 32;

/** ignoreBOM keeps a leading U+FEFF: it is part of the text. */
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** One message inside `bytes`. `while (reader.next())` comes to each field; then exactly one of the other calls takes or skips it. */
export class ProtobufReader {
  /** Of the field that `next` came to. */
  field = 0;
  readonly where: string;
  readonly #bytes: Uint8Array;
  readonly #end: number;
  #at: number;
  #wireType = 0;
  /** The last varint, as two unsigned words. */
  #low = 0;
  #high = 0;

  constructor(bytes: Uint8Array, where = '', start = 0, end = bytes.length) {
    this.#bytes = bytes;
    this.where = where;
    this.#at = start;
    this.#end = end;
  }

  /** False at the end of the message. */
  next(): boolean {
    if (this.#at === this.#end) return false;
    this.#readVarint(this.where);
    this.field = this.#low >>> 3;
    this.#wireType = this.#low & 7;
    if (this.#high !== 0 || this.field === 0) throw new WireError(this.where, 'a field', 'a tag that no field has');
    return true;
  }

  skip(): void {
    if (this.#wireType === VARINT) this.#readVarint(this.where);
    else if (this.#wireType === BYTES) this.#stretch(this.where);
    else if (this.#wireType === FIXED64) this.#take(8, this.where);
    else if (this.#wireType === FIXED32) this.#take(4, this.where);
    else throw new WireError(this.where, 'a field', `wire type ${this.#wireType}, which proto3 has not`);
  }

  /** Also for enumerations. */
  int32(name: string): number {
    this.#expect(VARINT, name);
    this.#readVarint(this.#place(name));
    const value = this.#low | 0;
    if (this.#high !== (value < 0 ? 0xffffffff : 0))
      throw new WireError(this.#place(name), 'an integer of 32 bits', 'a greater one');
    return value;
  }

  flag(name: string): boolean {
    this.#expect(VARINT, name);
    this.#readVarint(this.#place(name));
    return this.#low !== 0 || this.#high !== 0;
  }

  /** An int64 that counts something. */
  count(name: string): number {
    this.#expect(VARINT, name);
    return this.#readCount(name);
  }

  /** Adds to `into` what this occurrence of a repeated int64 holds: one, or, packed, any number. */
  counts(name: string, into: number[]): void {
    if (this.#wireType === VARINT) {
      into.push(this.#readCount(name));
      return;
    }
    const packed = this.message(name);
    while (packed.#at < packed.#end) into.push(packed.#readCount(''));
  }

  double(name: string): number {
    this.#expect(FIXED64, name);
    const at = this.#take(8, this.#place(name));
    return new DataView(this.#bytes.buffer, this.#bytes.byteOffset + at, 8).getFloat64(0, true);
  }

  text(name: string): string {
    const found = this.bytes(name);
    try {
      return utf8.decode(found);
    } catch {
      throw new WireError(this.#place(name), 'UTF-8 text', `${found.length} bytes that are not`);
    }
  }

  /** A view, not a copy: it shares the message's memory and may lie at any offset. */
  bytes(name: string): Uint8Array {
    this.#expect(BYTES, name);
    const start = this.#stretch(this.#place(name));
    return this.#bytes.subarray(start, this.#at);
  }

  message(name: string): ProtobufReader {
    this.#expect(BYTES, name);
    const where = this.#place(name);
    const start = this.#stretch(where);
    return new ProtobufReader(this.#bytes, where, start, this.#at);
  }

  #place(name: string): string {
    if (name === '') return this.where;
    return this.where === '' ? name : `${this.where}.${name}`;
  }

  #expect(wireType: number, name: string): void {
    if (this.#wireType === wireType) return;
    const found = WIRE_NAMES[this.#wireType] ?? `wire type ${this.#wireType}`;
    throw new WireError(this.#place(name), WIRE_NAMES[wireType]!, found);
  }

  #take(length: number, where: string): number {
    const left = this.#end - this.#at;
    if (length > left) throw new WireError(where, `${length} bytes`, `${left} until the end of the message`);
    const start = this.#at;
    this.#at += length;
    return start;
  }

  /** Moves over a length and as many bytes; returns where they start. */
  #stretch(where: string): number {
    this.#readVarint(where);
    return this.#take(this.#high * TWO_TO_32 + this.#low, where);
  }

  #readCount(name: string): number {
    this.#readVarint(this.#place(name));
    const value = this.#high * TWO_TO_32 + this.#low;
    if (value > Number.MAX_SAFE_INTEGER) throw new WireError(this.#place(name), 'a count', 'a negative or vast number');
    return value;
  }

  #readVarint(where: string): void {
    let low = 0;
    let high = 0;
    for (let i = 0; i < LONGEST_VARINT; i++) {
      if (this.#at === this.#end) throw new WireError(where, 'the rest of a varint', 'the end of the message');
      const byte = this.#bytes[this.#at++]!;
      const bits = byte & 0x7f;
      if (i < 4) low |= bits << (7 * i);
      else if (i === 4) {
        low |= bits << 28;
        high = bits >>> 4;
      } else high |= bits << (7 * i - 32);
      if (byte < 0x80) {
        if (i === LONGEST_VARINT - 1 && byte > 1) break;
        this.#low = low >>> 0;
        this.#high = high >>> 0;
        return;
      }
    }
    throw new WireError(where, 'a varint of at most 64 bits', 'a longer one');
  }
}
