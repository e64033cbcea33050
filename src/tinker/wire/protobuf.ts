/**
 * Passes and samples as protobuf (proto3): the form that current clients send passes in and ask for results in.
 *
 * Reading takes fields in any order, passes over those it does not know, and lets the last of several stand. It refuses what would be
 * lost in silence: images, sound, sparse tensors, settings in words. Only the form is checked: NaN goes through, since the
 * log-probability of a prompt's first token is NaN by rule.
 */
import { checkLogprobs } from './lengths.ts';
import { decodeOutputs, putRecord, recordsOf } from './protobuf-outputs.ts';
import { ProtobufReader } from './protobuf-reader.ts';
import { float32sOf, int32sOf, putTensor, RawTensor, readEntry } from './protobuf-tensor.ts';
import { measureMessage, type ProtobufWriter, writeMessage } from './protobuf-writer.ts';
import type { Datum, PassRequest, PassResult, SampledSequence, SampleReply, Tensor } from './types.ts';
import { WireError } from './wire-error.ts';

/** Rows in one message. Far beyond any batch; a message of empty rows would otherwise take a hundred times its size. */
const MOST_ROWS = 65_536;
/** Inputs of a datum, settings of a loss, metrics: each is a name that somebody knows. */
const MOST_NAMES = 1024;
const GREATEST_INT32 = 2 ** 31 - 1;

function checkRows(count: number, name: string): void {
  if (count > MOST_ROWS) throw new WireError(name, `at most ${MOST_ROWS}`, 'more');
}

function checkNames({ size }: ReadonlyMap<string, unknown>, where: string): void {
  if (size > MOST_NAMES) throw new WireError(where, `at most ${MOST_NAMES} names`, 'more');
}

// A pass, asked for.

export function encodePassRequest(request: PassRequest): Uint8Array<ArrayBuffer> {
  const { modelId, seqId, data, loss, lossSettings, forwardOnly } = request;
  checkSeqId(seqId);
  return writeMessage((out) => {
    if (modelId !== '') out.text(1, modelId, 'model_id');
    if (seqId !== undefined) out.count(2, seqId);
    for (let i = 0; i < data.length; i++) putDatum(out, data[i]!, `data[${i}]`);
    if (loss !== '') out.text(4, loss, 'loss_fn');
    putNumbers(out, 5, lossSettings, 'loss_fn_config');
    if (forwardOnly) out.count(6, 1);
    putNewSettings(out, lossSettings);
  });
}

/** Bytes that a datum adds to a request. */
export function estimatedBytes(datum: Datum): number {
  return measureMessage((out) => putDatum(out, datum, 'datum'));
}

export function decodePassRequest(bytes: Uint8Array): PassRequest {
  const reader = new ProtobufReader(bytes);
  const data: Datum[] = [];
  const oldSettings = new Map<string, number>();
  const newSettings = new Map<string, number>();
  let [modelId, loss, seqId, forwardOnly] = ['', '', 0, false];
  while (reader.next()) {
    if (reader.field === 1) modelId = reader.text('model_id');
    else if (reader.field === 2) seqId = reader.int32('seq_id');
    else if (reader.field === 3) {
      checkRows(data.length + 1, 'data');
      data.push(readDatum(reader.message(`data[${data.length}]`)));
    } else if (reader.field === 4) loss = reader.text('loss_fn');
    else if (reader.field === 5) readNumberEntry(reader.message('loss_fn_config'), oldSettings);
    else if (reader.field === 6) forwardOnly = reader.flag('forward_only');
    else if (reader.field === 7) readNewSetting(reader.message('loss_fn_config_v2'), newSettings);
    else reader.skip();
  }
  if (seqId < 0) throw new WireError('seq_id', '1 or more, or nothing', String(seqId));
  const lossSettings = Object.fromEntries(newSettings.size > 0 ? newSettings : oldSettings);
  return { modelId, seqId: seqId === 0 ? undefined : seqId, data, loss, lossSettings, forwardOnly };
}

/** An absent number is 0 on the wire, so that 0 cannot be said. */
function checkSeqId(seqId: number | undefined): void {
  if (seqId === undefined || (Number.isInteger(seqId) && seqId >= 1 && seqId <= GREATEST_INT32)) return;
  throw new WireError('seq_id', `1 to ${GREATEST_INT32}`, String(seqId));
}

function putDatum(out: ProtobufWriter, datum: Datum, where: string): void {
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

function readDatum(reader: ProtobufReader): Datum {
  const texts: Uint8Array[] = [];
  const inputs = new Map<string, Tensor>();
  let chunks = 0;
  while (reader.next()) {
    if (reader.field === 1) {
      checkRows(chunks + 1, `${reader.where}.model_input.chunks`);
      const text = readChunk(reader.message(`model_input.chunks[${chunks++}]`));
      if (text.length > 0) texts.push(text);
    } else if (reader.field === 2) {
      const raw = new RawTensor();
      const entry = reader.message('loss_fn_inputs');
      const name = readEntry(entry, () => raw.read(entry.message('')));
      inputs.set(name, raw.tensor(`${entry.where}.${name}`));
      checkNames(inputs, entry.where);
    } else reader.skip();
  }
  if (chunks === 0) throw new WireError(reader.where, 'a model_input', 'none');
  return { tokens: joinedTokens(texts, reader.where), inputs: Object.fromEntries(inputs) };
}

/** The bytes of its tokens. */
function readChunk(reader: ProtobufReader): Uint8Array {
  let kind = 'nothing';
  let tokens: Uint8Array = new Uint8Array(0);
  while (reader.next()) {
    if (reader.field === 1) {
      const text = reader.message('encoded_text');
      if (kind !== 'encoded_text') tokens = new Uint8Array(0);
      kind = 'encoded_text';
      while (text.next()) {
        if (text.field === 1) tokens = text.bytes('tokens');
        else text.skip();
      }
    } else {
      if (reader.field === 2) kind = 'image';
      if (reader.field === 3) kind = 'dmel';
      reader.skip();
    }
  }
  if (kind !== 'encoded_text') throw new WireError(reader.where, 'encoded_text, the only kind spoken here', kind);
  if (tokens.length % 4 !== 0) throw new WireError(`${reader.where}.tokens`, 'numbers of 4 bytes', `${tokens.length} bytes`);
  return tokens;
}

/** Chunks of one text follow each other without anything between them. */
function joinedTokens(texts: readonly Uint8Array[], where: string): Int32Array {
  if (texts.length === 1) return int32sOf(texts[0]!, where);
  const all = new Uint8Array(texts.reduce((sum, text) => sum + text.length, 0));
  let at = 0;
  for (const text of texts) {
    all.set(text, at);
    at += text.length;
  }
  return new Int32Array(all.buffer);
}

function putNumbers(out: ProtobufWriter, field: number, numbers: Readonly<Record<string, number>>, where: string): void {
  for (const [name, value] of Object.entries(numbers)) {
    out.message(field, () => {
      out.text(1, name, where);
      out.double(2, value);
    });
  }
}

/** The same again where newer servers look first. */
function putNewSettings(out: ProtobufWriter, settings: Readonly<Record<string, number>>): void {
  for (const [name, value] of Object.entries(settings)) {
    out.message(7, () => {
      out.text(1, name, 'loss_fn_config');
      out.message(2, () => out.double(1, value));
    });
  }
}

function readNumberEntry(entry: ProtobufReader, into: Map<string, number>): void {
  let value = 0;
  const name = readEntry(entry, () => {
    value = entry.double('');
  });
  into.set(name, value);
  checkNames(into, entry.where);
}

function readNewSetting(entry: ProtobufReader, into: Map<string, number>): void {
  let value: number | undefined;
  const name = readEntry(entry, () => {
    const setting = entry.message('');
    while (setting.next()) {
      if (setting.field === 1) value = setting.double('number');
      else if (setting.field === 2) {
        setting.text('text');
        value = undefined;
      } else setting.skip();
    }
  });
  if (value === undefined) throw new WireError(`${entry.where}.${name}`, 'a number', 'words, or nothing');
  into.set(name, value);
  checkNames(into, entry.where);
}

// A pass, answered.

export function encodePassResult(result: PassResult): Uint8Array<ArrayBuffer> {
  const { outputType, outputs, metrics } = result;
  const records = recordsOf(outputs);
  return writeMessage((out) => {
    if (outputType !== '') out.text(1, outputType, 'loss_fn_output_type');
    for (const record of records) out.message(2, () => putRecord(out, record, outputType));
    putNumbers(out, 3, metrics, 'metrics');
  });
}

export function decodePassResult(bytes: Uint8Array): PassResult {
  const reader = new ProtobufReader(bytes);
  const outputs: Readonly<Record<string, Tensor>>[] = [];
  const metrics = new Map<string, number>();
  let outputType = '';
  while (reader.next()) {
    if (reader.field === 1) outputType = reader.text('loss_fn_output_type');
    else if (reader.field === 2) decodeOutputs(reader.message('loss_fn_outputs'), outputs, MOST_ROWS);
    else if (reader.field === 3) readNumberEntry(reader.message('metrics'), metrics);
    else reader.skip();
  }
  return { outputType, outputs, metrics: Object.fromEntries(metrics) };
}

// Samples.

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

/** Empty prompt log-probabilities are none: a prompt is not empty. */
export function decodeSampleReply(bytes: Uint8Array): SampleReply {
  const reader = new ProtobufReader(bytes);
  const sequences: SampledSequence[] = [];
  let prompt: Uint8Array = new Uint8Array(0);
  while (reader.next()) {
    if (reader.field === 1) {
      checkRows(sequences.length + 1, 'sequences');
      sequences.push(readSequence(reader.message(`sequences[${sequences.length}]`)));
    } else if (reader.field === 2) prompt = reader.bytes('prompt_logprobs');
    else reader.skip();
  }
  return prompt.length === 0 ? { sequences } : { sequences, promptLogprobs: float32sOf(prompt, 'prompt_logprobs') };
}

function readSequence(reader: ProtobufReader): SampledSequence {
  let reason = 0;
  let ids: Uint8Array = new Uint8Array(0);
  let found: Uint8Array | undefined;
  while (reader.next()) {
    if (reader.field === 1) reason = reader.int32('stop_reason');
    else if (reader.field === 2) ids = reader.bytes('tokens');
    else if (reader.field === 3) found = reader.bytes('logprobs');
    else reader.skip();
  }
  const stopReason = STOP_REASONS[reason];
  if (stopReason === undefined) throw new WireError(`${reader.where}.stop_reason`, 'stop (0) or length (1)', String(reason));
  const tokens = int32sOf(ids, `${reader.where}.tokens`);
  // Some servers write an empty stretch where they have none.
  const none = found === undefined || (found.length === 0 && tokens.length > 0);
  const logprobs = none ? undefined : float32sOf(found!, `${reader.where}.logprobs`);
  checkLogprobs(tokens, logprobs, reader.where);
  return { stopReason, tokens, logprobs };
}
