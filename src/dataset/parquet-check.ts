/**
 * What a Parquet file says about itself, held against the bytes that it has, before anything is made of it: a footer that is not whole,
 * and a page that claims to be far larger unpacked than any honest one, are found here and not by running out of memory.
 */
import { invalid, MAX_ROWS } from './rows.ts';

const MAGIC = 'PAR1';
const MAX_FOOTER_BYTES = 64 * 2 ** 20;
const MAX_PAGE_BYTES = 256 * 2 ** 20;
const MAX_GROUP_BYTES = 2 ** 31;
const MAX_GROUP_ROWS = 2 ** 21;

/** Throws DATASET_INVALID where `read` gives bytes that are no whole footer. */
export async function checkFooter(
  path: string,
  size: number,
  read: (start: number, end: number) => Promise<Uint8Array>,
): Promise<void> {
  const tail = await read(Math.max(0, size - 8), size);
  if (tail.length < 8 || Buffer.from(tail.subarray(4)).toString('latin1') !== MAGIC) {
    throw broken(path, 'it does not end like a Parquet file');
  }
  const length = new DataView(tail.buffer, tail.byteOffset).getUint32(0, true);
  if (length > Math.min(size - 12, MAX_FOOTER_BYTES)) throw broken(path, `its footer claims ${length} bytes of ${size}`);
  const footer = await read(size - 8 - length, size - 8);
  try {
    new ThriftReader(footer).struct();
  } catch (cause) {
    throw broken(path, 'its footer is damaged', cause);
  }
}

interface ColumnChunk {
  readonly name: string;
  readonly values: number;
}

/** The sizes that the footer gives for one group of rows. */
export function checkGroup(path: string, rows: number, unpacked: number, before: number): void {
  if (!(rows >= 0 && rows <= MAX_GROUP_ROWS) || before + rows > MAX_ROWS) {
    throw broken(path, `a group claims ${rows} rows, expected at most ${MAX_GROUP_ROWS}, and ${MAX_ROWS} in all`);
  }
  if (!(unpacked >= 0 && unpacked <= MAX_GROUP_BYTES)) {
    throw broken(path, `a group claims ${unpacked} bytes unpacked, expected at most ${MAX_GROUP_BYTES}`);
  }
}

/** Walks the headers of the pages of a column; none is unpacked. Returns the bytes they claim to be unpacked. */
export function checkPages(path: string, column: ColumnChunk, bytes: Uint8Array): number {
  const wrong = (what: string, cause?: unknown): Error => broken(path, `column ${column.name}: ${what}`, cause);
  const reader = new ThriftReader(bytes);
  let [values, unpacked] = [0, 0];
  // To the last byte, as whoever decodes it does: what lies behind the last value counts, too.
  while (reader.offset < bytes.length - 1) {
    let header: ThriftStruct;
    try {
      header = reader.struct();
    } catch (cause) {
      throw wrong('the header of a page is damaged', cause);
    }
    const [large, packed] = [header[2], header[3]];
    if (!isCount(packed) || packed > bytes.length - reader.offset) throw wrong('a page is longer than its column');
    if (!isCount(large) || large > MAX_PAGE_BYTES) {
      throw wrong(`a page claims ${String(large)} bytes unpacked, expected at most ${MAX_PAGE_BYTES}`);
    }
    const dictionary = numberIn(header[7], 1);
    const held = numberIn(header[5], 1) ?? numberIn(header[8], 1) ?? 0;
    // A dictionary has an entry for what occurs, in at least a bit of the page; a page has its share of the column's values.
    if (
      (dictionary !== undefined && !(dictionary >= 0 && dictionary <= 8 * large)) ||
      !(held >= 0 && values + held <= column.values)
    ) {
      throw wrong(`a page claims ${dictionary ?? held} values, more than there can be`);
    }
    values += held;
    unpacked += large;
    reader.offset += packed;
  }
  return unpacked;
}

function isCount(value: ThriftValue): value is number {
  return typeof value === 'number' && value >= 0;
}

function numberIn(struct: ThriftValue, field: number): number | undefined {
  const value = typeof struct === 'object' && !Array.isArray(struct) ? (struct as ThriftStruct)[field] : undefined;
  return typeof value === 'number' ? value : undefined;
}

export function broken(path: string, what: string, cause?: unknown): Error {
  return invalid(`${path} cannot be read as Parquet: ${what}`, {
    cause,
    hint: 'was it written or copied to its end? Write it again',
  });
}

/** Fields by their id. */
interface ThriftStruct {
  readonly [field: number]: ThriftValue;
}
type ThriftValue = number | ThriftStruct | readonly ThriftValue[] | undefined;

const MAX_DEPTH = 32;

/**
 * Thrift's compact protocol, as far as Parquet uses it: no count and no length is believed beyond the bytes that are there. What is read is
 * numbers and structs; texts are passed over.
 */
class ThriftReader {
  readonly #view: DataView;
  offset = 0;

  constructor(bytes: Uint8Array) {
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Throws RangeError for what is not whole. */
  struct(depth = 0): ThriftStruct {
    if (depth > MAX_DEPTH) throw new RangeError('nested too deeply');
    const fields: Record<number, ThriftValue> = {};
    for (let id = 0; ; ) {
      const head = this.#byte();
      if (head === 0) return fields;
      id = head >> 4 === 0 ? this.#zigzag() : id + (head >> 4);
      fields[id] = this.#value(head & 15, depth);
    }
  }

  #value(type: number, depth: number): ThriftValue {
    switch (type) {
      case 1:
      case 2:
        return type === 1 ? 1 : 0;
      case 3:
        return this.#byte();
      case 4:
      case 5:
      case 6:
        return this.#zigzag();
      case 7:
        return this.#skip(8);
      case 8:
        return this.#skip(this.#varint());
      case 9:
      case 10:
        return this.#list(depth);
      case 12:
        return this.struct(depth + 1);
      default:
        throw new RangeError(`unknown type ${type}`);
    }
  }

  #list(depth: number): readonly ThriftValue[] {
    const head = this.#byte();
    const count = head >> 4 === 15 ? this.#varint() : head >> 4;
    // An element takes a byte at least.
    if (count > this.#view.byteLength - this.offset) throw new RangeError(`a list of ${count} in fewer bytes`);
    const type = head & 15;
    return Array.from({ length: count }, () => (type <= 2 ? this.#byte() : this.#value(type, depth + 1)));
  }

  #skip(bytes: number): undefined {
    if (bytes > this.#view.byteLength - this.offset) throw new RangeError(`${bytes} bytes where fewer are left`);
    this.offset += bytes;
  }

  #byte(): number {
    return this.#view.getUint8(this.offset++);
  }

  /** Beyond 2^53 not exact, and then too large for everything that it is compared with. */
  #varint(): number {
    let [value, scale] = [0, 1];
    for (let i = 0; i < 10; i++) {
      const byte = this.#byte();
      value += (byte & 127) * scale;
      if (byte < 128) return value;
      scale *= 128;
    }
    throw new RangeError('a number of more than 10 bytes');
  }

  #zigzag(): number {
    const value = this.#varint();
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  }
}
