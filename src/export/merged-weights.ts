/**
 * Writes a model's weights as Hugging Face keeps them, with an adapter merged: W + (alpha / rank) · B A. Reads and writes a few rows at a
 * time, so no model is ever in memory as a whole. Does not sync or rename: callers must commit.
 */
import { type FileHandle, open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import type { ModelSource } from '../engines/embedded/model/model-source.ts';
import type { Tensor } from '../engines/embedded/model/safetensors.ts';

/** Number formats: names in safetensors and in config.json, bytes, and the first value that would be rounded to infinity. */
export const DTYPES = {
  f32: { tensor: 'F32', config: 'float32', bytes: 4, over: Infinity },
  f16: { tensor: 'F16', config: 'float16', bytes: 2, over: 65_520 },
  bf16: { tensor: 'BF16', config: 'bfloat16', bytes: 2, over: (2 - 2 ** -8) * 2 ** 127 },
} as const;
export type Dtype = keyof typeof DTYPES;

/** One module's matrices: A is [rank, inputs], B is [outputs, rank]. */
export interface Pair {
  readonly layer: number;
  /** Such as q_proj. */
  readonly part: string;
  readonly a: Tensor;
  readonly b: Tensor;
}

interface MergedWeights {
  readonly source: ModelSource;
  /** By the name of the module, such as model.layers.0.self_attn.q_proj. */
  readonly pairs: ReadonlyMap<string, Pair>;
  /** alpha / rank. */
  readonly scale: number;
  readonly dtype: Dtype;
  readonly stop?: AbortSignal | undefined;
}

/** A model that needs more gets several files. */
const FILE_BYTES = 4e9;
/** Values at a time. */
const BLOCK = 2 ** 20;

export async function writeMerged(folder: string, weights: MergedWeights, fileBytes = FILE_BYTES): Promise<void> {
  const files = split(weights, fileBytes);
  const name = (i: number): string =>
    files.length === 1 ? 'model.safetensors' : `model-${fiveDigits(i + 1)}-of-${fiveDigits(files.length)}.safetensors`;
  for (const [i, tensors] of files.entries()) {
    await using file = await open(join(folder, name(i)), 'wx');
    await writeTensors(file, tensors, weights);
  }
  if (files.length === 1) return;
  const map = Object.fromEntries(files.flatMap((tensors, i) => tensors.map((tensor) => [tensor.name, name(i)])));
  const size = files.flat().reduce((sum, { bytes }) => sum + bytes, 0);
  const index = { metadata: { total_size: size }, weight_map: map };
  await writeFile(join(folder, 'model.safetensors.index.json'), `${JSON.stringify(index, null, 2)}\n`);
}

function fiveDigits(n: number): string {
  return String(n).padStart(5, '0');
}

interface Place {
  readonly name: string;
  readonly shape: readonly number[];
  readonly bytes: number;
}

/** The tensors of each file. */
function split({ source, dtype }: MergedWeights, most: number): readonly (readonly Place[])[] {
  const files: Place[][] = [[]];
  let size = 0;
  for (const [name, shape] of source.shapes) {
    const bytes = shape.reduce((product, n) => product * n, DTYPES[dtype].bytes);
    if (size > 0 && size + bytes > most) {
      files.push([]);
      size = 0;
    }
    files.at(-1)!.push({ name, shape, bytes });
    size += bytes;
  }
  return files;
}

async function writeTensors(file: FileHandle, tensors: readonly Place[], weights: MergedWeights): Promise<void> {
  const { source, dtype, stop } = weights;
  const header: Record<string, unknown> = { __metadata__: { format: 'pt' } };
  let end = 0;
  for (const { name, shape, bytes } of tensors) {
    header[name] = { dtype: DTYPES[dtype].tensor, shape, data_offsets: [end, end + bytes] };
    end += bytes;
  }
  // The data section starts at a multiple of 8 bytes.
  const json = Buffer.from(JSON.stringify(header));
  const padded = Buffer.concat([json, Buffer.alloc(-json.length & 7, ' ')]);
  await file.writeFile(Buffer.concat([Buffer.from(BigUint64Array.of(BigInt(padded.length)).buffer), padded]));
  for (const { name, shape } of tensors) {
    const [rows = 1, ...rest] = shape;
    const block = Math.max(1, Math.floor(BLOCK / rest.reduce((product, n) => product * n, 1)));
    for (let first = 0; first < rows; first += block) {
      stop?.throwIfAborted();
      const values = await source.rows(name, first, Math.min(block, rows - first));
      addPair(values, first, weights.pairs.get(name.replace(/\.weight$/, '')), weights.scale);
      await file.writeFile(encoded(values, dtype, name));
    }
  }
}

/** In double precision, so that a weight is rounded once. */
function addPair(values: Float32Array, first: number, pair: Pair | undefined, scale: number): void {
  if (pair === undefined) return;
  const [rank, inputs] = pair.a.shape as [number, number];
  const { data: a } = pair.a;
  const { data: b } = pair.b;
  const sum = new Float64Array(inputs);
  for (let start = 0; start < values.length; start += inputs) {
    const row = values.subarray(start, start + inputs);
    sum.set(row);
    const from = (first + start / inputs) * rank;
    for (let r = 0; r < rank; r++) {
      const factor = scale * b[from + r]!;
      const of = r * inputs;
      for (let i = 0; i < inputs; i++) sum[i]! += factor * a[of + i]!;
    }
    row.set(sum);
  }
}

/** Throws MODEL_INVALID if a value has no place in the format. */
function encoded(values: Float32Array, dtype: Dtype, name: string): Uint8Array {
  const { over } = DTYPES[dtype];
  const bad = values.findIndex((value) => !(Math.abs(value) < over));
  if (bad >= 0) {
    const hint = Number.isFinite(values[bad]) ? 'give --dtype f32' : 'use another copy of the model, or an earlier checkpoint';
    throw new TrainyardError('MODEL_INVALID', `${name} would hold ${values[bad]}, expected what ${dtype} can hold`, hint);
  }
  if (dtype === 'f32') return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const halves = new Uint16Array(bits.length);
  const half = dtype === 'bf16' ? toBfloat16 : toFloat16;
  for (let i = 0; i < bits.length; i++) halves[i] = half(bits[i]!);
  return new Uint8Array(halves.buffer);
}

// Both take the bits of a float32 and round to nearest, ties to even.

function toBfloat16(bits: number): number {
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

const word = new Uint32Array(1);
const wordAsFloat = new Float32Array(word.buffer);

function toFloat16(bits: number): number {
  const sign = (bits >>> 16) & 0x8000;
  const size = bits & 0x7fff_ffff;
  if (size >= 0x3880_0000) return sign | ((size - 0x3800_0000 + 0xfff + ((size >>> 13) & 1)) >>> 13);
  // Too small for a normal number: float32 itself rounds to multiples of 2^-24 where it adds 0.5.
  word[0] = size;
  wordAsFloat[0]! += 0.5;
  return sign | (word[0]! - 0x3f00_0000);
}
