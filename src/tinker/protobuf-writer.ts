/**
 * The lowest layer of protobuf, writing: a message is a list of parts that know their size, so that the whole is written into one
 * allocation. Numbers are copied by whole arrays.
 *
 * Fields that have their default are for the caller to leave out; nothing is left out here. Counts are not negative.
 */
import { WireError } from './wire-error.ts';

if (new Uint8Array(new Uint16Array([1]).buffer)[0] !== 1) {
  throw new Error(
    'this machine keeps the high byte of a number first; arrays are copied to the wire as they are, low byte first',
  );
}

/** Where parts are written, one after the other. */
interface Sink {
  readonly bytes: Uint8Array;
  at: number;
}

export interface Part {
  readonly size: number;
  put(sink: Sink): void;
}

const [VARINT, FIXED64, BYTES] = [0, 1, 2];
const encoder = new TextEncoder();

export function writeMessage(parts: readonly Part[]): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(sizeOf(parts));
  const sink: Sink = { bytes, at: 0 };
  for (const part of parts) part.put(sink);
  return bytes;
}

export function countField(field: number, value: number): Part {
  return {
    size: 1 + varintSize(value),
    put: (sink) => {
      putTag(sink, field, VARINT);
      putVarint(sink, value);
    },
  };
}

export function doubleField(field: number, value: number): Part {
  return {
    size: 9,
    put: (sink) => {
      putTag(sink, field, FIXED64);
      putBytes(sink, new Float64Array([value]));
    },
  };
}

export function textField(field: number, text: string, where: string): Part {
  if (!text.isWellFormed()) throw new WireError(where, 'text', 'half a character (a lone surrogate)');
  return stretch(field, [bytesPart(encoder.encode(text))]);
}

export function bytesField(field: number, data: ArrayBufferView): Part {
  return stretch(field, [bytesPart(data)]);
}

export function messageField(field: number, parts: readonly Part[]): Part {
  return stretch(field, parts);
}

/** Several stretches of numbers as one. */
export function numbersField(field: number, arrays: readonly (Float32Array | Int32Array)[], width: 4 | 8): Part {
  return stretch(
    field,
    arrays.map((data) => (width === 8 && data instanceof Int32Array ? int64Part(data) : bytesPart(data))),
  );
}

/** Packed. */
export function countsField(field: number, values: readonly number[]): Part {
  const size = values.reduce((sum, value) => sum + varintSize(value), 0);
  const packed: Part = {
    size,
    put: (sink) => {
      for (const value of values) putVarint(sink, value);
    },
  };
  return stretch(field, [packed]);
}

export function sizeOf(parts: readonly Part[]): number {
  let size = 0;
  for (const part of parts) size += part.size;
  return size;
}

function stretch(field: number, parts: readonly Part[]): Part {
  const length = sizeOf(parts);
  return {
    size: 1 + varintSize(length) + length,
    put: (sink) => {
      putTag(sink, field, BYTES);
      putVarint(sink, length);
      for (const part of parts) part.put(sink);
    },
  };
}

function bytesPart(data: ArrayBufferView): Part {
  return { size: data.byteLength, put: (sink) => putBytes(sink, data) };
}

/** Pairs of words, low first. Small enough to stay in the nearest cache while it is filled and copied. */
const pairs = new Int32Array(2 * 2048);

function int64Part(data: Int32Array): Part {
  return {
    size: 8 * data.length,
    put: (sink) => {
      for (let start = 0; start < data.length; start += pairs.length / 2) {
        const count = Math.min(pairs.length / 2, data.length - start);
        for (let i = 0; i < count; i++) {
          const value = data[start + i]!;
          pairs[2 * i] = value;
          pairs[2 * i + 1] = value >> 31;
        }
        putBytes(sink, pairs.subarray(0, 2 * count));
      }
    },
  };
}

function putBytes(sink: Sink, data: ArrayBufferView): void {
  sink.bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), sink.at);
  sink.at += data.byteLength;
}

/** All fields of these messages have numbers below 16: one byte. */
function putTag(sink: Sink, field: number, wireType: number): void {
  sink.bytes[sink.at++] = (field << 3) | wireType;
}

function varintSize(value: number): number {
  let size = 1;
  for (let rest = value; rest >= 128; rest = Math.floor(rest / 128)) size++;
  return size;
}

function putVarint(sink: Sink, value: number): void {
  let rest = value;
  while (rest >= 128) {
    sink.bytes[sink.at++] = (rest % 128) | 128;
    rest = Math.floor(rest / 128);
  }
  sink.bytes[sink.at++] = rest;
}
