/**
 * Passes and samples as JSON values: the form that servers without protobuf take, and that every server takes for samples.
 *
 * NaN and infinities are never written, since JSON would turn them into null; null is read only where the wire means "none" by it, in the
 * log-probabilities of a prompt. Reading is strict, names the place, and refuses what would be ignored in silence: images, sparse tensors,
 * settings in words, kinds of log-probabilities that nobody here computes. Plain loops: a batch is millions of numbers, for which a schema
 * is too slow.
 */
import {
  checkLogprobs,
  checkShape,
  type Datum,
  joinTokens,
  type PassRequest,
  type PassResult,
  type SampleCall,
  type SampledSequence,
  type SampleReply,
  type SampleSource,
  shown,
  type Tensor,
  type Tensors,
  WireError,
} from './messages.ts';

type JsonObject = Readonly<Record<string, unknown>>;

export function passRequestToJson(request: PassRequest): JsonObject {
  const input = {
    data: request.data.map((datum, i) => datumToJson(datum, `data[${i}]`)),
    loss_fn: request.loss,
    loss_fn_config: numbersToJson(request.lossSettings, 'loss_fn_config'),
  };
  return {
    model_id: request.modelId,
    ...(request.seqId === undefined ? {} : { seq_id: request.seqId }),
    ...(request.forwardOnly ? { forward_input: input } : { forward_backward_input: input }),
  };
}

/** `forwardOnly`: by the address the request came to; the input has another name there. */
export function passRequestFromJson(value: unknown, forwardOnly: boolean): PassRequest {
  const body = readObject(value, '');
  const name = forwardOnly ? 'forward_input' : 'forward_backward_input';
  const input = readObject(body[name], name);
  const data = readArray(input['data'], `${name}.data`);
  return {
    modelId: readText(body['model_id'], 'model_id'),
    seqId: readMaybe(body['seq_id'], 'seq_id', (found, where) => readInteger(found, where, 1)),
    data: data.map((datum, i) => datumFromJson(datum, `data[${i}]`)),
    loss: readText(input['loss_fn'], 'loss_fn'),
    lossSettings: readMaybe(input['loss_fn_config'], 'loss_fn_config', numbersFromJson) ?? {},
    forwardOnly,
  };
}

export function passResultToJson(result: PassResult): JsonObject {
  return {
    loss_fn_output_type: result.outputType,
    loss_fn_outputs: result.outputs.map((output, i) => tensorsToJson(output, `loss_fn_outputs[${i}]`)),
    metrics: numbersToJson(result.metrics, 'metrics'),
  };
}

export function passResultFromJson(value: unknown): PassResult {
  const body = readObject(value, '');
  const outputs = readArray(body['loss_fn_outputs'], 'loss_fn_outputs');
  return {
    outputType: readText(body['loss_fn_output_type'], 'loss_fn_output_type'),
    outputs: outputs.map((output, i) => tensorsFromJson(output, `loss_fn_outputs[${i}]`)),
    metrics: readMaybe(body['metrics'], 'metrics', numbersFromJson) ?? {},
  };
}

export function sampleCallToJson(call: SampleCall): JsonObject {
  return {
    ...sourceToJson(call.source),
    num_samples: call.count,
    prompt: modelInputToJson(call.prompt),
    sampling_params: {
      ...(call.maxTokens === undefined ? {} : { max_tokens: call.maxTokens }),
      ...(call.seed === undefined ? {} : { seed: call.seed }),
      ...(call.stop.length === 0 ? {} : { stop: call.stop }),
      temperature: finiteNumber(call.temperature, 'sampling_params.temperature'),
      top_k: call.topK,
      top_p: finiteNumber(call.topP, 'sampling_params.top_p'),
    },
    prompt_logprobs: call.wantsPromptLogprobs,
    type: 'sample',
  };
}

export function sampleCallFromJson(value: unknown): SampleCall {
  const body = readObject(value, '');
  refuseUnspoken(body);
  const params = readObject(body['sampling_params'], 'sampling_params');
  const integer = (found: unknown, where: string) => readInteger(found, where);
  const [noTruncation, all] = [-1, 1];
  return {
    source: sourceFromJson(body),
    prompt: modelInputFromJson(body['prompt'], 'prompt'),
    count: readMaybe(body['num_samples'], 'num_samples', (found, where) => readInteger(found, where, 1)) ?? 1,
    maxTokens: readMaybe(params['max_tokens'], 'sampling_params.max_tokens', integer),
    seed: readMaybe(params['seed'], 'sampling_params.seed', integer),
    temperature: readMaybe(params['temperature'], 'sampling_params.temperature', readNumber) ?? 1,
    topK: readMaybe(params['top_k'], 'sampling_params.top_k', integer) ?? noTruncation,
    topP: readMaybe(params['top_p'], 'sampling_params.top_p', readNumber) ?? all,
    stop: readMaybe(params['stop'], 'sampling_params.stop', stopFromJson) ?? [],
    wantsPromptLogprobs: readMaybe(body['prompt_logprobs'], 'prompt_logprobs', readFlag) ?? false,
  };
}

export function sampleReplyToJson(reply: SampleReply): JsonObject {
  const sequences = reply.sequences.map(({ stopReason, tokens, logprobs }, i) => ({
    stop_reason: stopReason,
    tokens: Array.from(tokens),
    ...(logprobs === undefined ? {} : { logprobs: finiteNumbers(logprobs, `sequences[${i}].logprobs`) }),
  }));
  const { promptLogprobs } = reply;
  if (promptLogprobs === undefined) return { sequences, type: 'sample' };
  return { sequences, prompt_logprobs: promptLogprobsToJson(promptLogprobs), type: 'sample' };
}

export function sampleReplyFromJson(value: unknown): SampleReply {
  const body = readObject(value, '');
  const sequences = readArray(body['sequences'], 'sequences').map((found, i) => sequenceFromJson(found, `sequences[${i}]`));
  const promptLogprobs = readMaybe(body['prompt_logprobs'], 'prompt_logprobs', (found, where) =>
    readFloats(found, where, Number.NaN),
  );
  return promptLogprobs === undefined ? { sequences } : { sequences, promptLogprobs };
}

function datumToJson(datum: Datum, where: string): JsonObject {
  return {
    model_input: modelInputToJson(datum.tokens),
    loss_fn_inputs: tensorsToJson(datum.inputs, `${where}.loss_fn_inputs`),
  };
}

function datumFromJson(value: unknown, where: string): Datum {
  const datum = readObject(value, where);
  return {
    tokens: modelInputFromJson(datum['model_input'], `${where}.model_input`),
    inputs: tensorsFromJson(datum['loss_fn_inputs'], `${where}.loss_fn_inputs`),
  };
}

function modelInputToJson(tokens: Int32Array): JsonObject {
  return { chunks: [{ type: 'encoded_text', tokens: Array.from(tokens) }] };
}

function modelInputFromJson(value: unknown, where: string): Int32Array {
  const chunks = readArray(readObject(value, where)['chunks'], `${where}.chunks`).map((found, i) => {
    const at = `${where}.chunks[${i}]`;
    const chunk = readObject(found, at);
    const type = chunk['type'] ?? ('tokens' in chunk ? 'encoded_text' : undefined);
    if (type !== 'encoded_text') throw new WireError(`${at}.type`, 'encoded_text, the only kind spoken here', shown(type));
    return readInt32s(chunk['tokens'], `${at}.tokens`);
  });
  return joinTokens(chunks);
}

function tensorsToJson(tensors: Tensors, where: string): JsonObject {
  return Object.fromEntries(Object.entries(tensors).map(([name, tensor]) => [name, tensorToJson(tensor, `${where}.${name}`)]));
}

function tensorsFromJson(value: unknown, where: string): Tensors {
  const entries = Object.entries(readObject(value, where));
  return Object.fromEntries(entries.map(([name, tensor]) => [name, tensorFromJson(tensor, `${where}.${name}`)]));
}

function tensorToJson(tensor: Tensor, where: string): JsonObject {
  checkShape(tensor, where);
  const data = tensor.dtype === 'int64' ? Array.from(tensor.data) : finiteNumbers(tensor.data, `${where}.data`);
  return { data, dtype: tensor.dtype, shape: tensor.shape ?? [data.length] };
}

function tensorFromJson(value: unknown, where: string): Tensor {
  const tensor = readObject(value, where);
  if (readMaybe(tensor['sparse_crow_indices'], where, (found) => found) !== undefined) {
    throw new WireError(where, 'a dense tensor', 'a sparse one');
  }
  const dtype = tensor['dtype'];
  if (dtype !== 'float32' && dtype !== 'int64') throw new WireError(`${where}.dtype`, 'float32 or int64', shown(dtype));
  const found = readMaybe(tensor['shape'], `${where}.shape`, readInt32s);
  const shape = found === undefined ? {} : { shape: Array.from(found) };
  const typed: Tensor =
    dtype === 'int64'
      ? { dtype, data: readInt32s(tensor['data'], `${where}.data`), ...shape }
      : { dtype, data: readFloats(tensor['data'], `${where}.data`), ...shape };
  checkShape(typed, where);
  return typed;
}

function numbersToJson(numbers: Readonly<Record<string, number>>, where: string): JsonObject {
  for (const [name, value] of Object.entries(numbers)) finiteNumber(value, `${where}.${name}`);
  return numbers;
}

function numbersFromJson(value: unknown, where: string): Readonly<Record<string, number>> {
  const entries = Object.entries(readObject(value, where));
  return Object.fromEntries(entries.map(([name, found]) => [name, readNumber(found, `${where}.${name}`)]));
}

function sourceToJson(source: SampleSource): JsonObject {
  if (source.kind === 'session') return { sampling_session_id: source.samplingSessionId, seq_id: source.seqId };
  return source.kind === 'base' ? { base_model: source.baseModel } : { model_path: source.path };
}

function sourceFromJson(body: JsonObject): SampleSource {
  const samplingSessionId = readMaybe(body['sampling_session_id'], 'sampling_session_id', readText);
  if (samplingSessionId !== undefined) {
    const seqId = body['seq_id'];
    // As text where a number would not hold it.
    const isLong = typeof seqId === 'string' && /^\d{16,19}$/.test(seqId);
    return { kind: 'session', samplingSessionId, seqId: isLong ? seqId : readInteger(seqId, 'seq_id', 0) };
  }
  const baseModel = readMaybe(body['base_model'], 'base_model', readText);
  const path = readMaybe(body['model_path'], 'model_path', readText);
  if (path !== undefined && baseModel === undefined) return { kind: 'path', path };
  if (baseModel !== undefined && path === undefined) return { kind: 'base', baseModel };
  const found = path === undefined ? 'none of them' : 'base_model and model_path';
  throw new WireError('', 'a sampling_session_id, a base_model or a model_path', found);
}

/** What a newer client may ask for and would miss in the answer. */
const UNSPOKEN = [
  'topk_prompt_logprobs',
  'topk_sample_logprobs',
  'target_prompt_logprobs',
  'prompt_alt_tokens_k',
  'prompt_logprobs_last_n',
  'record_stability_info',
];

function refuseUnspoken(body: JsonObject): void {
  for (const name of UNSPOKEN) {
    if (body[name]) throw new WireError(name, 'nothing: this is not spoken here', shown(body[name]));
  }
}

function stopFromJson(value: unknown, where: string): readonly number[] | readonly string[] {
  if (typeof value === 'string') return [value];
  const values = readArray(value, where);
  if (values.every((found) => typeof found === 'string')) return values;
  if (values.some((found) => typeof found === 'string')) throw new WireError(where, 'ids or texts', 'both');
  return Array.from(readInt32s(values, where));
}

function readFlag(value: unknown, where: string): boolean {
  if (typeof value !== 'boolean') throw new WireError(where, 'true or false', shown(value));
  return value;
}

function promptLogprobsToJson(values: Float32Array): (number | null)[] {
  return Array.from(values, (value, i) => (Number.isNaN(value) ? null : finiteNumber(value, `prompt_logprobs[${i}]`)));
}

function sequenceFromJson(value: unknown, where: string): SampledSequence {
  const sequence = readObject(value, where);
  const stopReason = sequence['stop_reason'];
  if (stopReason !== 'stop' && stopReason !== 'length') {
    throw new WireError(`${where}.stop_reason`, 'stop or length', shown(stopReason));
  }
  const tokens = readInt32s(sequence['tokens'], `${where}.tokens`);
  const logprobs = readMaybe(sequence['logprobs'], `${where}.logprobs`, (found, at) => readFloats(found, at));
  checkLogprobs({ stopReason, tokens, logprobs }, where);
  return { stopReason, tokens, logprobs };
}

// One value at a time.

function readObject(value: unknown, where: string): JsonObject {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new WireError(where, 'an object', shown(value));
  return value as JsonObject;
}

function readArray(value: unknown, where: string): readonly unknown[] {
  if (!Array.isArray(value)) throw new WireError(where, 'an array', shown(value));
  return value;
}

function readText(value: unknown, where: string): string {
  if (typeof value !== 'string') throw new WireError(where, 'a string', shown(value));
  return value;
}

function readNumber(value: unknown, where: string): number {
  if (typeof value !== 'number' || !Number.isFinite(value)) throw new WireError(where, 'a number', shown(value));
  return value;
}

function readInteger(value: unknown, where: string, least = Number.MIN_SAFE_INTEGER): number {
  if (!Number.isSafeInteger(value) || (value as number) < least) {
    const bound = least === Number.MIN_SAFE_INTEGER ? '' : ` of ${least} or more`;
    throw new WireError(where, `an integer${bound}`, shown(value));
  }
  return value as number;
}

/** Null counts as left out: some clients write every field they know. */
function readMaybe<T>(value: unknown, where: string, read: (value: unknown, where: string) => T): T | undefined {
  return value === undefined || value === null ? undefined : read(value, where);
}

function readInt32s(value: unknown, where: string): Int32Array {
  const values = readArray(value, where);
  const out = new Int32Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const found = values[i];
    if (typeof found !== 'number' || (found | 0) !== found) {
      throw new WireError(`${where}[${i}]`, 'an integer of 32 bits', shown(found));
    }
    out[i] = found;
  }
  return out;
}

/** `forNull`: what stands for null; without it, null is an error. */
function readFloats(value: unknown, where: string, forNull?: number): Float32Array {
  const values = readArray(value, where);
  const out = new Float32Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const found = values[i];
    if (found === null && forNull !== undefined) {
      out[i] = forNull;
      continue;
    }
    if (typeof found !== 'number' || !Number.isFinite(Math.fround(found))) {
      throw new WireError(`${where}[${i}]`, 'a number that fits float32', shown(found));
    }
    out[i] = found;
  }
  return out;
}

/** JSON has no NaN and no infinity: written, they become null, and whoever reads null as 0 trains on it. */
function finiteNumber(value: number, where: string): number {
  if (!Number.isFinite(value)) throw new WireError(where, 'a finite number', String(value));
  return value;
}

function finiteNumbers(values: Float32Array, where: string): number[] {
  for (let i = 0; i < values.length; i++) {
    if (!Number.isFinite(values[i])) throw new WireError(`${where}[${i}]`, 'a finite number', String(values[i]));
  }
  return Array.from(values);
}
