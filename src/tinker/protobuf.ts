/**
 * Passes and samples as protobuf (proto3): the form that current clients send passes in and ask for results in.
 *
 * Reading takes fields in any order, passes over those it does not know, and lets the last of several stand. It refuses what would be
 * lost in silence: images, sound, sparse tensors, settings in words. Only the form is checked: NaN goes through, since the
 * log-probability of a prompt's first token is NaN by rule.
 */
import { checkLogprobs } from './lengths.ts';
import { decodeOutputs, encodeOutputs } from './protobuf-outputs.ts';
import { ProtobufReader } from './protobuf-reader.ts';
import { float32sOf, int32sOf, RawTensor, readEntry, tensorParts } from './protobuf-tensor.ts';
import {
  bytesField,
  countField,
  doubleField,
  messageField,
  numbersField,
  type Part,
  textField,
  writeMessage,
} from './protobuf-writer.ts';
import type { Datum, PassRequest, PassResult, SampledSequence, SampleReply, Tensor } from './types.ts';
import { WireError } from './wire-error.ts';

/** Rows in one message. Far beyond any batch; a message of empty rows would otherwise take a hundred times its size. */
const MOST_ROWS = 65_536;
const GREATEST_INT32 = 2 ** 31 - 1;

function checkRows(count: number, name: string): void {
  if (count > MOST_ROWS) throw new WireError(name, `at most ${MOST_ROWS}`, 'more');
}

// A pass, asked for.

export function encodePassRequest(request: PassRequest): Uint8Array<ArrayBuffer> {
  return writeMessage([
    ...textParts(1, request.modelId, 'model_id'),
    ...seqIdParts(request.seqId),
    ...request.data.map((datum, i) => datumField(datum, `data[${i}]`)),
    ...textParts(4, request.loss, 'loss_fn'),
    ...settingsParts(request.lossSettings),
    ...(request.forwardOnly ? [countField(6, 1)] : []),
    ...newSettingsParts(request.lossSettings),
  ]);
}

/** Bytes that a datum adds to a request. */
export function estimatedBytes(datum: Datum): number {
  return datumField(datum, 'datum').size;
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
function seqIdParts(seqId: number | undefined): Part[] {
  if (seqId === undefined) return [];
  if (!Number.isInteger(seqId) || seqId < 1 || seqId > GREATEST_INT32) {
    throw new WireError('seq_id', `1 to ${GREATEST_INT32}`, String(seqId));
  }
  return [countField(2, seqId)];
}

function datumField(datum: Datum, where: string): Part {
  const text = messageField(1, [numbersField(1, [datum.tokens], 4)]);
  const inputs = Object.entries(datum.inputs).map(([name, tensor]) => {
    const at = `${where}.loss_fn_inputs.${name}`;
    return messageField(2, [textField(1, name, at), messageField(2, tensorParts(tensor, at))]);
  });
  return messageField(3, [messageField(1, [text]), ...inputs]);
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

function settingsParts(settings: Readonly<Record<string, number>>): Part[] {
  return Object.entries(settings).map(([name, value]) =>
    messageField(5, [textField(1, name, 'loss_fn_config'), doubleField(2, value)]),
  );
}

/** The same again where newer servers look first. */
function newSettingsParts(settings: Readonly<Record<string, number>>): Part[] {
  return Object.entries(settings).map(([name, value]) =>
    messageField(7, [textField(1, name, 'loss_fn_config'), messageField(2, [doubleField(1, value)])]),
  );
}

function readNumberEntry(entry: ProtobufReader, into: Map<string, number>): void {
  let value = 0;
  const name = readEntry(entry, () => {
    value = entry.double('');
  });
  into.set(name, value);
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
}

function textParts(field: number, text: string, where: string): Part[] {
  return text === '' ? [] : [textField(field, text, where)];
}

// A pass, answered.

export function encodePassResult(result: PassResult): Uint8Array<ArrayBuffer> {
  return writeMessage([
    ...textParts(1, result.outputType, 'loss_fn_output_type'),
    ...encodeOutputs(result.outputs, result.outputType),
    ...Object.entries(result.metrics).map(([name, value]) =>
      messageField(3, [textField(1, name, 'metrics'), doubleField(2, value)]),
    ),
  ]);
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
  const { promptLogprobs } = reply;
  return writeMessage([
    ...reply.sequences.map((sequence) =>
      messageField(1, [
        ...(sequence.stopReason === 'stop' ? [] : [countField(1, STOP_REASONS.indexOf(sequence.stopReason))]),
        bytesField(2, sequence.tokens),
        ...(sequence.logprobs === undefined ? [] : [bytesField(3, sequence.logprobs)]),
      ]),
    ),
    ...(promptLogprobs === undefined ? [] : [bytesField(2, promptLogprobs)]),
  ]);
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
