/**
 * The lowest layer of protobuf, writing. A message is described once and gone through twice: first to measure it and every message
 * inside it, then to write it into one allocation. Numbers are copied by whole arrays.
 *
 * Fields that have their default are for the caller to leave out; nothing is left out here. Counts are not negative.
 */
import { WireError } from './wire-error.ts';

if (new Uint8Array(new Uint16Array([1]).buffer)[0] !== 1) {
  throw new Error(
    'this machine keeps the high byte of a number first; arrays are copied to the wire as they are, low byte first',
  );
}

const [VARINT, FIXED64, BYTES] = [0, 1, 2];
const encoder = new TextEncoder();

/** Pairs of words, low first. Small enough to stay in the nearest cache while it is filled and copied. */
const pairs = new Int32Array(2 * 2048);

/** `describe` is called twice and must do the same both times. */
export function writeMessage(describe: (out: ProtobufWriter) => void): Uint8Array<ArrayBuffer> {
  const writer = new ProtobufWriter();
  describe(writer);
  const bytes = writer.startWriting();
  describe(writer);
  if (writer.size !== bytes.length) throw new Error(`a message of ${bytes.length} bytes was written as ${writer.size}`);
  return bytes;
}

export function measureMessage(describe: (out: ProtobufWriter) => void): number {
  const writer = new ProtobufWriter();
  describe(writer);
  return writer.size;
}

export class ProtobufWriter {
  /** Undefined while measuring. */
  #bytes: Uint8Array<ArrayBuffer> | undefined;
  #at = 0;
  /** Of every stretch that is not a single array, in the order in which they begin. */
  readonly #lengths: number[] = [];
  #lengthsUsed = 0;
  /** The same few names come with every row. */
  readonly #texts = new Map<string, Uint8Array>();

  get size(): number {
    return this.#at;
  }

  startWriting(): Uint8Array<ArrayBuffer> {
    // Not zeroed: every byte is written, and zeroing megabytes takes longer than writing them.
    const bytes = new Uint8Array(Buffer.allocUnsafeSlow(this.#at).buffer);
    this.#bytes = bytes;
    this.#at = 0;
    return bytes;
  }

  /** Also for flags and enumerations. */
  count(field: number, value: number): void {
    this.#tag(field, VARINT);
    this.#varint(value);
  }

  double(field: number, value: number): void {
    this.#tag(field, FIXED64);
    this.#put(new Float64Array([value]));
  }

  text(field: number, text: string, where: string): void {
    this.bytes(field, this.#encoded(text, where));
  }

  bytes(field: number, data: ArrayBufferView): void {
    this.#tag(field, BYTES);
    this.#varint(data.byteLength);
    this.#put(data);
  }

  /** Each number as 8 bytes. */
  int64s(field: number, data: Int32Array): void {
    this.#tag(field, BYTES);
    this.#varint(8 * data.length);
    this.putInt64s(data);
  }

  /** Packed. */
  counts(field: number, values: readonly number[]): void {
    this.message(field, () => {
      for (const value of values) this.#varint(value);
    });
  }

  /** A message inside this one, or any stretch that `describe` puts together. */
  message(field: number, describe: () => void): void {
    this.#tag(field, BYTES);
    if (this.#bytes !== undefined) {
      this.#varint(this.#lengths[this.#lengthsUsed++]!);
      describe();
      return;
    }
    const index = this.#lengths.push(0) - 1;
    const start = this.#at;
    describe();
    const length = this.#at - start;
    this.#lengths[index] = length;
    this.#varint(length);
  }

  /** Without a tag: part of a stretch. */
  putNumbers(data: Float32Array | Int32Array): void {
    this.#put(data);
  }

  /** Without a tag: part of a stretch. */
  putInt64s(data: Int32Array): void {
    if (this.#bytes === undefined) {
      this.#at += 8 * data.length;
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
      this.#put(pairs.subarray(0, 2 * count));
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

  #put(data: ArrayBufferView): void {
    if (this.#bytes !== undefined) {
      this.#bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), this.#at);
    }
    this.#at += data.byteLength;
  }

  #tag(field: number, wireType: number): void {
    this.#varint((field << 3) | wireType);
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
    if (this.#bytes !== undefined) this.#bytes[this.#at] = value;
    this.#at++;
  }
}
