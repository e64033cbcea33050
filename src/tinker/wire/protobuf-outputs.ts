/**
 * What a pass says of each datum, as protobuf has it: not datum by datum but field by field, the numbers of all datums in one stretch
 * with the places where each begins. One record holds datums whose fields are alike; several records follow each other.
 *
 * Every datum has the same names, since readers of other makes put records together name by name.
 */
import { checkShape } from './lengths.ts';
import type { ProtobufReader } from './protobuf-reader.ts';
import { DTYPE, readEntry, tensorOf, widthOf } from './protobuf-tensor.ts';
import type { ProtobufWriter } from './protobuf-writer.ts';
import type { Tensor } from './types.ts';
import { shown, WireError } from './wire-error.ts';

type Output = Readonly<Record<string, Tensor>>;

const trailingShape = (tensor: Tensor): readonly number[] => tensor.shape?.slice(1) ?? [];

/** Outputs of one kind that follow each other, as one record each. */
export function recordsOf(outputs: readonly Output[]): readonly (readonly Output[])[] {
  const names = Object.keys(outputs[0] ?? {});
  const records: Output[][] = [];
  let kindBefore: string | undefined;
  for (const [i, output] of outputs.entries()) {
    checkOutput(output, names, `loss_fn_outputs[${i}]`);
    const kind = names.map((name) => `${output[name]!.dtype}:${trailingShape(output[name]!)}`).join();
    if (kind !== kindBefore) records.push([]);
    kindBefore = kind;
    records.at(-1)!.push(output);
  }
  return records;
}

function checkOutput(output: Output, names: readonly string[], where: string): void {
  const found = Object.keys(output);
  const alike = found.length === names.length && names.every((name) => Object.hasOwn(output, name));
  if (!alike) throw new WireError(where, `the fields of the first (${names.join(', ')})`, shown(found.join(', ')));
  for (const name of names) checkShape(output[name]!.shape, output[name]!.data.length, `${where}.${name}`);
}

export function putRecord(out: ProtobufWriter, record: readonly Output[], tag: string): void {
  if (tag !== '') out.text(1, tag, 'type_tag');
  for (const name of Object.keys(record[0]!)) {
    out.message(2, () => {
      out.text(1, name, 'loss_fn_outputs');
      out.message(2, () =>
        putBatch(
          out,
          record.map((output) => output[name]!),
        ),
      );
    });
  }
  out.count(3, record.length);
}

function putBatch(out: ProtobufWriter, tensors: readonly Tensor[]): void {
  const offsets = new BigInt64Array(tensors.length + 1);
  let end = 0;
  for (const [i, { dtype, data }] of tensors.entries()) {
    end += dtype === 'int64' ? 8 * data.length : data.byteLength;
    offsets[i + 1] = BigInt(end);
  }
  out.message(1, () => {
    for (const { dtype, data } of tensors) {
      if (dtype === 'int64') out.putInt64s(data);
      else out.putNumbers(data);
    }
  });
  out.bytes(2, offsets);
  out.count(3, DTYPE[tensors[0]!.dtype]);
  const trailing = trailingShape(tensors[0]!);
  if (trailing.length > 0) out.counts(4, trailing);
}

/** Adds the datums of one record to `outputs`, which may come to hold `most`. */
export function decodeOutputs(reader: ProtobufReader, outputs: Output[], most: number): void {
  const fields = new Map<string, readonly Tensor[]>();
  let told = 0;
  while (reader.next()) {
    if (reader.field === 2) {
      const entry = reader.message('fields');
      const raw: RawBatch = { data: new Uint8Array(0), offsets: new Uint8Array(0), dtype: 0, trailing: [] };
      const name = readEntry(entry, () => readBatch(entry.message(''), raw));
      fields.set(name, splitBatch(raw, most, `${reader.where}.${name}`));
    } else if (reader.field === 3) told = reader.count('num_datums');
    else reader.skip();
  }
  // Older servers leave the number out; without any field it is all there is.
  const count = told === 0 ? (fields.values().next().value?.length ?? 0) : told;
  if (outputs.length + count > most) throw new WireError(reader.where, `at most ${most}`, 'more');
  for (const [name, tensors] of fields) {
    if (tensors.length !== count)
      throw new WireError(`${reader.where}.${name}`, `one for each of ${count}`, String(tensors.length));
  }
  const names = [...fields.keys()];
  for (let i = 0; i < count; i++) outputs.push(Object.fromEntries(names.map((name) => [name, fields.get(name)![i]!])));
}

interface RawBatch {
  data: Uint8Array;
  offsets: Uint8Array;
  dtype: number;
  readonly trailing: number[];
}

function readBatch(reader: ProtobufReader, into: RawBatch): void {
  while (reader.next()) {
    if (reader.field === 1) into.data = reader.bytes('data');
    else if (reader.field === 2) into.offsets = reader.bytes('offsets');
    else if (reader.field === 3) into.dtype = reader.int32('dtype');
    else if (reader.field === 4) reader.counts('trailing_shape', into.trailing);
    else reader.skip();
  }
}

/** Offsets are bytes, and never go back: no number belongs to two datums. */
function splitBatch(batch: RawBatch, most: number, where: string): Tensor[] {
  const { data, offsets, dtype, trailing } = batch;
  const width = widthOf(dtype, where);
  if (offsets.length % 8 !== 0) throw new WireError(`${where}.offsets`, 'numbers of 8 bytes', `${offsets.length} bytes`);
  if (offsets.length / 8 > most + 1) throw new WireError(`${where}.offsets`, `at most ${most + 1}`, 'more');
  const view = new DataView(offsets.buffer, offsets.byteOffset, offsets.length);
  const tensors: Tensor[] = [];
  for (let at = 8; at < offsets.length; at += 8) {
    const [start, end] = [view.getBigInt64(at - 8, true), view.getBigInt64(at, true)];
    if (start < 0n || end < start || end > BigInt(data.length) || Number(start) % width !== 0) {
      throw new WireError(`${where}.offsets`, `places in ${data.length} bytes that do not go back`, `${start} to ${end}`);
    }
    const part = data.subarray(Number(start), Number(end));
    tensors.push(tensorOf(dtype, part, wholeShape(trailing, part.length / width, where), `${where}[${tensors.length}]`));
  }
  return tensors;
}

/** One dimension needs no shape. */
function wholeShape(trailing: readonly number[], length: number, where: string): readonly number[] {
  if (trailing.length === 0) return [];
  const row = trailing.reduce((product, size) => product * size, 1);
  const shape = [row === 0 ? 0 : Math.floor(length / row), ...trailing];
  checkShape(shape, Math.floor(length), where);
  return shape;
}
