/**
 * Passes and samples as protobuf (proto3), the encoding that current clients use for passes and results. Decoding accepts fields in any
 * order, ignores unknown ones, and uses the last of repeated singular fields. It refuses what it would otherwise drop silently: images,
 * audio, sparse tensors and text settings. Arrays are copied whole and their values are not checked: NaN passes through, since the
 * log-probability of a prompt's first token is NaN by definition.
 */
import {
  checkLogprobs,
  checkShape,
  joinTokens,
  type ProtobufMessage as Message,
  MOST_ROWS,
  measureMessage,
  messageIn,
  numberOf,
  readMap,
  shown,
  WireError,
  type ProtobufWriter as Writer,
  writeMessage,
} from './codec.ts';
import type { Datum, PassRequest, PassResult, SampledSequence, SampleReply, Tensor, Tensors } from './tinker-messages.ts';

if (new Uint8Array(new Uint16Array([1]).buffer)[0] !== 1) {
  throw new Error('this machine keeps the high byte of a number first; the wire has the low byte first, and arrays are copied');
}

const GREATEST_INT32 = 2 ** 31 - 1;

// Tensors are little-endian byte ranges. Decoding copies: a range may be unaligned, and a view would keep the whole body alive.

/** Indexed by the wire's dtype number. */
const DTYPES = [undefined, 'float32', 'int64', 'int32', 'bfloat16'] as const;
const WIDTHS = { float32: 4, int64: 8, int32: 4, bfloat16: 2 } as const;

function dtypeOf(message: Message, where: string): keyof typeof WIDTHS {
  const found = message.int32(3, 'dtype');
  const dtype = DTYPES[found];
  if (dtype === undefined) throw new WireError(`${where}.dtype`, 'float32, int64, int32 or bfloat16 (1 to 4)', String(found));
  return dtype;
}

/** Widens to the two supported dtypes without loss: bfloat16 to float32, int32 to int64. */
function tensorOf(dtype: keyof typeof WIDTHS, bytes: Uint8Array, shape: readonly number[], where: string): Tensor {
  const shaped = shape.length === 0 ? {} : { shape };
  const tensor: Tensor =
    dtype === 'int64' || dtype === 'int32'
      ? { dtype: 'int64', data: dtype === 'int64' ? narrowed(bytes, where) : copied(Int32Array, bytes, where), ...shaped }
      : { dtype: 'float32', data: dtype === 'float32' ? copied(Float32Array, bytes, where) : widened(bytes, where), ...shaped };
  checkShape(tensor.shape, tensor.data.length, where);
  return tensor;
}

interface NumberArray<T> {
  new (buffer: ArrayBuffer): T;
  readonly BYTES_PER_ELEMENT: number;
}

function copied<T>(type: NumberArray<T>, bytes: Uint8Array, where: string): T {
  const width = type.BYTES_PER_ELEMENT;
  if (bytes.length % width !== 0) throw new WireError(where, `numbers of ${width} bytes`, `${bytes.length} bytes`);
  return new type(new Uint8Array(bytes).buffer);
}

/** Converts int64 to int32 and refuses values that do not fit. A DataView allocates less than copying first. */
function narrowed(bytes: Uint8Array, where: string): Int32Array {
  if (bytes.length % 8 !== 0) throw new WireError(where, 'numbers of 8 bytes', `${bytes.length} bytes`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const out = new Int32Array(bytes.length / 8);
  for (let i = 0; i < out.length; i++) {
    out[i] = view.getInt32(8 * i, true);
    if (view.getInt32(8 * i + 4, true) === out[i]! >> 31) continue;
    throw new WireError(`${where}[${i}]`, 'an integer of 32 bits', 'a greater one');
  }
  return out;
}

/** A bfloat16 is the upper half of a float32. */
function widened(bytes: Uint8Array, where: string): Float32Array {
  return new Float32Array(Uint32Array.from(copied(Uint16Array, bytes, where), (half) => half << 16).buffer);
}

function putNumbersOf(out: Writer, { dtype, data }: Tensor): void {
  if (dtype === 'float32') out.put(data);
  else out.putInt64s(data);
}

export function encodePassRequest(request: PassRequest): Uint8Array<ArrayBuffer> {
  const { modelId, seqId, data, loss, lossSettings, forwardOnly } = request;
  // proto3 cannot distinguish 0 from an absent number.
  if (seqId !== undefined && !(Number.isInteger(seqId) && seqId >= 1 && seqId <= GREATEST_INT32)) {
    throw new WireError('seq_id', `1 to ${GREATEST_INT32}`, String(seqId));
  }
  return writeMessage((out) => {
    if (modelId !== '') out.text(1, modelId, 'model_id');
    if (seqId !== undefined) out.count(2, seqId);
    for (let i = 0; i < data.length; i++) putDatum(out, data[i]!, `data[${i}]`);
    if (loss !== '') out.text(4, loss, 'loss_fn');
    out.numbers(5, lossSettings, 'loss_fn_config');
    if (forwardOnly) out.count(6, 1);
    // Repeats the settings in the field that newer servers read first.
    for (const [name, value] of Object.entries(lossSettings)) {
      out.message(7, () => {
        out.text(1, name, 'loss_fn_config');
        out.message(2, () => out.double(1, value));
      });
    }
  });
}

export function encodedBytes(datum: Datum): number {
  return measureMessage((out) => putDatum(out, datum, 'datum'));
}

export function decodePassRequest(bytes: Uint8Array): PassRequest {
  const body = messageIn(bytes);
  const oldSettings = readMap(body, 5, 'loss_fn_config', numberOf);
  const newSettings = readMap(body, 7, 'loss_fn_config_v2', readSetting);
  return {
    ...headOf(body),
    data: body.messages(3, 'data').map(readDatum),
    loss: body.text(4, 'loss_fn'),
    lossSettings: Object.keys(newSettings).length > 0 ? newSettings : oldSettings,
    forwardOnly: body.int32(6, 'forward_only') !== 0,
  };
}

/** Reads only model and seq_id, so the rest of the body may be invalid. */
export function decodePassHead(bytes: Uint8Array): Pick<PassRequest, 'modelId' | 'seqId'> {
  return headOf(messageIn(bytes));
}

function headOf(body: Message): Pick<PassRequest, 'modelId' | 'seqId'> {
  const seqId = body.int32(2, 'seq_id');
  if (seqId < 0) throw new WireError('seq_id', '1 or more, or nothing', String(seqId));
  return { modelId: body.text(1, 'model_id'), seqId: seqId === 0 ? undefined : seqId };
}

function putDatum(out: Writer, datum: Datum, where: string): void {
  out.message(3, () => {
    out.message(1, () => out.message(1, () => out.bytes(1, datum.tokens)));
    for (const name of Object.keys(datum.inputs)) {
      const at = `${where}.loss_fn_inputs.${name}`;
      out.message(2, () => {
        out.text(1, name, at);
        out.message(2, () => putTensor(out, datum.inputs[name]!, at));
      });
    }
  });
}

function putTensor(out: Writer, tensor: Tensor, where: string): void {
  checkShape(tensor.shape, tensor.data.length, where);
  // Their length is known, which saves a closure for each of thousands of tensors.
  if (tensor.dtype === 'float32') out.bytes(1, tensor.data);
  else out.int64s(1, tensor.data);
  out.count(3, DTYPES.indexOf(tensor.dtype));
  if (tensor.shape !== undefined) out.counts(4, tensor.shape);
}

function readDatum(datum: Message): Datum {
  const chunks = datum.messages(1, 'model_input.chunks').map(readChunk);
  if (chunks.length === 0) throw new WireError(datum.where, 'a model_input', 'none');
  const inputs = readMap(datum, 2, 'loss_fn_inputs', (entry, where) => readTensor(entry.message(2, ''), where));
  return { tokens: joinTokens(chunks), inputs };
}

function readChunk(chunk: Message): Int32Array {
  const kind = chunk.lastUpTo(3);
  if (kind === 1) return copied(Int32Array, chunk.message(1, 'encoded_text').bytes(1, 'tokens'), `${chunk.where}.tokens`);
  throw new WireError(chunk.where, 'encoded_text, the only kind spoken here', ['nothing', '', 'image', 'dmel'][kind]!);
}

function readTensor(tensor: Message, where: string): Tensor {
  if (tensor.lastUpTo(2) === 2) throw new WireError(where, 'a dense tensor', 'a sparse one');
  return tensorOf(dtypeOf(tensor, where), tensor.bytes(1, 'dense'), tensor.int32s(4, 'shape'), where);
}

function readSetting(entry: Message, where: string): number {
  const value = entry.message(2, '');
  if (value.lastUpTo(2) !== 1) throw new WireError(where, 'a number', 'words, or nothing');
  return value.double(1, 'number');
}

/*
 * A pass result's record holds datums with the same fields. Each field stores all datums' numbers in one byte range, with the offset of
 * each. Other servers may send several records.
 */

export function encodePassResult({ outputType, outputs, metrics }: PassResult): Uint8Array<ArrayBuffer> {
  checkAlike(outputs);
  return writeMessage((out) => {
    if (outputType !== '') out.text(1, outputType, 'loss_fn_output_type');
    if (outputs.length > 0) out.message(2, () => putRecord(out, outputs, outputType));
    out.numbers(3, metrics, 'metrics');
  });
}

export function decodePassResult(bytes: Uint8Array): PassResult {
  const body = messageIn(bytes);
  const outputs: Tensors[] = [];
  for (const record of body.messages(2, 'loss_fn_outputs', false)) readRecord(record, outputs);
  return { outputType: body.text(1, 'loss_fn_output_type'), outputs, metrics: readMap(body, 3, 'metrics', numberOf) };
}

const trailingShape = (tensor: Tensor) => tensor.shape?.slice(1) ?? [];

/** Throws unless all outputs have the same fields, dtypes and trailing shapes. */
function checkAlike(outputs: readonly Tensors[]): void {
  const kindOf = (output: Tensors) =>
    Object.entries(output)
      .map(([name, tensor]) => `${name} ${tensor.dtype} [${trailingShape(tensor)}]`)
      .join();
  const first = kindOf(outputs[0] ?? {});
  for (const [i, output] of outputs.entries()) {
    const found = kindOf(output);
    if (found !== first) throw new WireError(`loss_fn_outputs[${i}]`, `the fields of the first (${first})`, shown(found));
    for (const [name, { shape, data }] of Object.entries(output)) {
      checkShape(shape, data.length, `loss_fn_outputs[${i}].${name}`);
    }
  }
}

function putRecord(out: Writer, record: readonly Tensors[], tag: string): void {
  if (tag !== '') out.text(1, tag, 'type_tag');
  for (const name of Object.keys(record[0]!)) {
    out.message(2, () => {
      out.text(1, name, 'loss_fn_outputs');
      const tensors = record.map((output) => output[name]!);
      out.message(2, () => putBatch(out, tensors));
    });
  }
  out.count(3, record.length);
}

function putBatch(out: Writer, tensors: readonly Tensor[]): void {
  const offsets = new BigInt64Array(tensors.length + 1);
  for (const [i, { dtype, data }] of tensors.entries()) offsets[i + 1] = offsets[i]! + BigInt(WIDTHS[dtype] * data.length);
  out.message(1, () => {
    for (const tensor of tensors) putNumbersOf(out, tensor);
  });
  out.bytes(2, offsets);
  out.count(3, DTYPES.indexOf(tensors[0]!.dtype));
  out.counts(4, trailingShape(tensors[0]!));
}

function readRecord(record: Message, outputs: Tensors[]): void {
  const fields = Object.entries(readMap(record, 2, 'fields', (entry, where) => readBatch(entry.message(2, ''), where)));
  const told = record.int32(3, 'num_datums');
  // Older servers omit the count. A record without fields has nothing but the count.
  const count = told === 0 ? (fields[0]?.[1].length ?? 0) : told;
  if (count < 0 || outputs.length + count > MOST_ROWS) throw new WireError(record.where, `at most ${MOST_ROWS}`, 'more');
  for (const [name, { length }] of fields) {
    if (length !== count) throw new WireError(`${record.where}.${name}`, `one for each of ${count}`, String(length));
  }
  for (let i = 0; i < count; i++) outputs.push(Object.fromEntries(fields.map(([name, tensors]) => [name, tensors[i]!])));
}

/** Offsets are in bytes and must not decrease, so datums never overlap. */
function readBatch(batch: Message, where: string): Tensor[] {
  const data = batch.bytes(1, 'data');
  const dtype = dtypeOf(batch, where);
  const width = WIDTHS[dtype];
  const offsets = copied(BigInt64Array, batch.bytes(2, 'offsets'), `${where}.offsets`);
  if (offsets.length > MOST_ROWS + 1) throw new WireError(`${where}.offsets`, `at most ${MOST_ROWS + 1}`, 'more');
  const trailing = batch.int32s(4, 'trailing_shape');
  const row = trailing.reduce((product, size) => product * size, 1);
  return Array.from(offsets.subarray(1), (end, i) => {
    const start = offsets[i]!;
    if (start < 0n || end < start || end > BigInt(data.length) || Number(start) % width !== 0) {
      throw new WireError(`${where}.offsets`, `places in ${data.length} bytes that do not go back`, `${start} to ${end}`);
    }
    const part = data.subarray(Number(start), Number(end));
    // A one-dimensional tensor needs no shape.
    const shape = trailing.length === 0 ? [] : [row === 0 ? 0 : Math.floor(part.length / width / row), ...trailing];
    return tensorOf(dtype, part, shape, `${where}[${i}]`);
  });
}

const STOP_REASONS = ['stop', 'length'] as const;

export function encodeSampleReply(reply: SampleReply): Uint8Array<ArrayBuffer> {
  return writeMessage((out) => {
    for (const { stopReason, tokens, logprobs } of reply.sequences) {
      out.message(1, () => {
        if (stopReason !== 'stop') out.count(1, STOP_REASONS.indexOf(stopReason));
        out.bytes(2, tokens);
        if (logprobs !== undefined) out.bytes(3, logprobs);
      });
    }
    if (reply.promptLogprobs !== undefined) out.bytes(2, reply.promptLogprobs);
  });
}

/** Empty prompt log-probabilities mean none, since a prompt is never empty. */
export function decodeSampleReply(bytes: Uint8Array): SampleReply {
  const body = messageIn(bytes);
  const sequences = body.messages(1, 'sequences').map(readSequence);
  const prompt = body.bytes(2, 'prompt_logprobs');
  return prompt.length === 0 ? { sequences } : { sequences, promptLogprobs: copied(Float32Array, prompt, 'prompt_logprobs') };
}

function readSequence(message: Message): SampledSequence {
  const { where } = message;
  const reason = message.int32(1, 'stop_reason');
  const stopReason = STOP_REASONS[reason];
  if (stopReason === undefined) throw new WireError(`${where}.stop_reason`, 'stop (0) or length (1)', String(reason));
  const tokens = copied(Int32Array, message.bytes(2, 'tokens'), `${where}.tokens`);
  const found = message.bytes(3, 'logprobs');
  // Some servers send an empty field if they have no log-probabilities.
  const none = !message.has(3) || (found.length === 0 && tokens.length > 0);
  const logprobs = none ? undefined : copied(Float32Array, found, `${where}.logprobs`);
  checkLogprobs(tokens, logprobs, where);
  return { stopReason, tokens, logprobs };
}
