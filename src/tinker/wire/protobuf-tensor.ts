/**
 * Tensors in a protobuf message: stretches of little-endian numbers as typed arrays. Always copies: a stretch lies at any offset, and
 * an array that shared the body's memory would keep all of it alive.
 */
import { checkShape } from './lengths.ts';
import type { ProtobufReader } from './protobuf-reader.ts';
import type { ProtobufWriter } from './protobuf-writer.ts';
import type { Tensor } from './types.ts';
import { WireError } from './wire-error.ts';

/** The wire's numbers for what a tensor is made of. */
export const DTYPE = { float32: 1, int64: 2, int32: 3, bfloat16: 4 } as const;

/** Bytes of one number. */
const WIDTHS: Readonly<Record<number, number>> = { [DTYPE.float32]: 4, [DTYPE.int64]: 8, [DTYPE.int32]: 4, [DTYPE.bfloat16]: 2 };

export function widthOf(dtype: number, where: string): number {
  const width = WIDTHS[dtype];
  if (width === undefined) throw new WireError(`${where}.dtype`, 'float32, int64, int32 or bfloat16 (1 to 4)', String(dtype));
  return width;
}

export function putTensor(out: ProtobufWriter, tensor: Tensor, where: string): void {
  checkShape(tensor.shape, tensor.data.length, where);
  if (tensor.dtype === 'int64') out.int64s(1, tensor.data);
  else out.bytes(1, tensor.data);
  out.count(3, DTYPE[tensor.dtype]);
  if (tensor.shape !== undefined && tensor.shape.length > 0) out.counts(4, tensor.shape);
}

/** A tensor as it is read: its parts come in any order, and again. */
export class RawTensor {
  #dense: Uint8Array = new Uint8Array(0);
  #isSparse = false;
  #dtype = 0;
  readonly #shape: number[] = [];

  read(reader: ProtobufReader): void {
    while (reader.next()) {
      if (reader.field === 1) {
        this.#dense = reader.bytes('dense');
        this.#isSparse = false;
      } else if (reader.field === 2) {
        reader.skip();
        this.#isSparse = true;
      } else if (reader.field === 3) this.#dtype = reader.int32('dtype');
      else if (reader.field === 4) reader.counts('shape', this.#shape);
      else reader.skip();
    }
  }

  tensor(where: string): Tensor {
    if (this.#isSparse) throw new WireError(where, 'a dense tensor', 'a sparse one');
    const tensor = tensorOf(this.#dtype, this.#dense, this.#shape, where);
    checkShape(tensor.shape, tensor.data.length, where);
    return tensor;
  }
}

/** One entry of a map; returns its key. `readValue` is called when the reader has come to the value, and again should it come again. */
export function readEntry(entry: ProtobufReader, readValue: () => void): string {
  let key = '';
  while (entry.next()) {
    if (entry.field === 1) key = entry.text('');
    else if (entry.field === 2) readValue();
    else entry.skip();
  }
  return key;
}

/** Numbers of any width become the two that tensors have here: bfloat16 is exact in float32, int32 in int64. */
export function tensorOf(dtype: number, bytes: Uint8Array, shape: readonly number[], where: string): Tensor {
  const width = widthOf(dtype, where);
  if (bytes.length % width !== 0) throw new WireError(where, `numbers of ${width} bytes`, `${bytes.length} bytes`);
  const shaped = shape.length === 0 ? {} : { shape };
  if (dtype === DTYPE.int64) return { dtype: 'int64', data: narrowed(bytes, where), ...shaped };
  if (dtype === DTYPE.int32) return { dtype: 'int64', data: int32sOf(bytes, where), ...shaped };
  if (dtype === DTYPE.bfloat16) return { dtype: 'float32', data: widened(bytes), ...shaped };
  return { dtype: 'float32', data: float32sOf(bytes, where), ...shaped };
}

export function float32sOf(bytes: Uint8Array, where: string): Float32Array {
  if (bytes.length % 4 !== 0) throw new WireError(where, 'numbers of 4 bytes', `${bytes.length} bytes`);
  return filled(new Float32Array(bytes.length / 4), bytes);
}

export function int32sOf(bytes: Uint8Array, where: string): Int32Array {
  if (bytes.length % 4 !== 0) throw new WireError(where, 'numbers of 4 bytes', `${bytes.length} bytes`);
  return filled(new Int32Array(bytes.length / 4), bytes);
}

/** int64 as int32; what does not fit is refused. Through a view, since the bytes need not be aligned. */
function narrowed(bytes: Uint8Array, where: string): Int32Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const out = new Int32Array(bytes.length / 8);
  for (let i = 0; i < out.length; i++) {
    const low = view.getInt32(8 * i, true);
    if (view.getInt32(8 * i + 4, true) !== low >> 31) {
      throw new WireError(`${where}[${i}]`, 'an integer of 32 bits', 'a greater one');
    }
    out[i] = low;
  }
  return out;
}

/** A bfloat16 is the upper half of a float32. */
function widened(bytes: Uint8Array): Float32Array {
  const halves = filled(new Uint16Array(bytes.length / 2), bytes);
  const words = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; i++) words[i] = halves[i]! << 16;
  return new Float32Array(words.buffer);
}

function filled<T extends Float32Array | Int32Array | Uint16Array>(numbers: T, bytes: Uint8Array): T {
  new Uint8Array(numbers.buffer).set(bytes);
  return numbers;
}
