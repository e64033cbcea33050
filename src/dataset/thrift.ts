/**
 * Thrift's compact protocol, as far as Parquet uses it, for files that may be damaged or made to do harm: no count and no length is
 * believed beyond the bytes that are there. What is read is numbers and structs; texts are passed over.
 */

/** Fields by their id. */
export interface ThriftStruct {
  readonly [field: number]: ThriftValue;
}
export type ThriftValue = number | ThriftStruct | readonly ThriftValue[] | undefined;

const MAX_DEPTH = 32;

export class ThriftReader {
  readonly #view: DataView;
  offset: number;

  constructor(bytes: Uint8Array, offset = 0) {
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.offset = offset;
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
