/**
 * Passes and samples as JSON, for servers without protobuf, and for sample requests to any server. Encoding refuses NaN and infinities,
 * which JSON would turn into null. Decoding accepts null only in prompt log-probabilities, where the wire uses it for "none". It is strict,
 * names the place of an error, and refuses what it would otherwise ignore silently: images, sparse tensors, text settings, and kinds of
 * log-probabilities that Trainyard does not compute.
 */
import { z } from 'zod';
import { mapYielding } from '../../../core/async.ts';
import { isObject } from '../../../core/json.ts';
import { checkLogprobs, checkShape, joinTokens, readAs, WireError } from './codec.ts';
import type { Datum, PassRequest, PassResult, SampleReply, Tensor, Tensors } from './tinker-messages.ts';

type JsonObject = Readonly<Record<string, unknown>>;

export function passRequestToJson({ modelId, seqId, data, loss, lossSettings, forwardOnly }: PassRequest): JsonObject {
  const input = { data: data.map(datumToJson), loss_fn: loss, loss_fn_config: numbersToJson(lossSettings, 'loss_fn_config') };
  return { model_id: modelId, seq_id: seqId, [forwardOnly ? 'forward_input' : 'forward_backward_input']: input };
}

/** The same as text, written a datum at a time: a batch takes a while, and agents are served by the same event loop. */
export async function passRequestToText(request: PassRequest): Promise<string> {
  const data = await mapYielding(request.data, (datum, i) => JSON.stringify(datumToJson(datum, i)));
  const rest = JSON.stringify(passRequestToJson({ ...request, data: [] }));
  return rest.replace('"data":[]', () => `"data":[${data.join()}]`);
}

function datumToJson({ tokens, inputs }: Datum, i: number): JsonObject {
  return { model_input: modelInputToJson(tokens), loss_fn_inputs: tensorsToJson(inputs, `data[${i}].loss_fn_inputs`) };
}

export function passResultToJson(result: PassResult): JsonObject {
  return {
    loss_fn_output_type: result.outputType,
    loss_fn_outputs: result.outputs.map((output, i) => tensorsToJson(output, `loss_fn_outputs[${i}]`)),
    metrics: numbersToJson(result.metrics, 'metrics'),
  };
}

export function sampleReplyToJson({ sequences, promptLogprobs }: SampleReply): JsonObject {
  return {
    sequences: sequences.map(({ stopReason, tokens, logprobs }, i) => ({
      stop_reason: stopReason,
      tokens: Array.from(tokens),
      logprobs: logprobs && finiteNumbers(logprobs, `sequences[${i}].logprobs`),
    })),
    prompt_logprobs:
      promptLogprobs &&
      Array.from(promptLogprobs, (value, i) => (Number.isNaN(value) ? null : finite(value, `prompt_logprobs[${i}]`))),
    type: 'sample',
  };
}

export function modelInputToJson(tokens: Int32Array): JsonObject {
  return { chunks: [{ type: 'encoded_text', tokens: Array.from(tokens) }] };
}

function tensorsToJson(tensors: Tensors, where: string): JsonObject {
  return Object.fromEntries(Object.entries(tensors).map(([name, tensor]) => [name, tensorToJson(tensor, `${where}.${name}`)]));
}

function tensorToJson(tensor: Tensor, where: string): JsonObject {
  checkShape(tensor.shape, tensor.data.length, where);
  const data = tensor.dtype === 'int64' ? Array.from(tensor.data) : finiteNumbers(tensor.data, `${where}.data`);
  return { data, dtype: tensor.dtype, shape: tensor.shape ?? [data.length] };
}

function numbersToJson(numbers: Readonly<Record<string, number>>, where: string): JsonObject {
  for (const [name, value] of Object.entries(numbers)) finite(value, `${where}.${name}`);
  return numbers;
}

/** JSON writes NaN and infinities as null, and a reader that takes null for 0 would train on it. */
function finite(value: number, where: string): number {
  if (!Number.isFinite(value)) throw new WireError(where, 'a finite number', String(value));
  return value;
}

function finiteNumbers(values: Float32Array, where: string): number[] {
  const bad = values.findIndex((value) => !Number.isFinite(value));
  if (bad >= 0) finite(values[bad]!, `${where}[${bad}]`);
  return Array.from(values);
}

const isFloat32 = (value: number) => Number.isFinite(Math.fround(value));
const int32s = numberArray(Int32Array, (value) => (value | 0) === value, 'an integer of 32 bits');
const float32s = numberArray(Float32Array, isFloat32, 'a number that fits float32');
/** Reads null as NaN. */
const maybeFloat32s = numberArray(Float32Array, isFloat32, 'a number that fits float32', Number.NaN);

/** A plain loop: a batch holds millions of numbers, too many for one schema check each. */
function numberArray<T extends Int32Array | Float32Array>(
  type: new (length: number) => T,
  fits: (value: number) => boolean,
  expected: string,
  forNull?: number,
) {
  return z.custom<readonly unknown[]>(Array.isArray, 'expected an array').transform((values, { issues }) => {
    const out = new type(values.length);
    for (let i = 0; i < values.length; i++) {
      const value = values[i];
      if (typeof value === 'number' && fits(value)) out[i] = value;
      else if (value === null && forNull !== undefined) out[i] = forNull;
      else {
        issues.push({ code: 'custom', message: `expected ${expected}`, path: [i], input: value });
        return z.NEVER;
      }
    }
    return out;
  });
}

const otherwise = <T>(schema: z.ZodType<T>, value: T) => schema.nullish().transform((found) => found ?? value);
const orNone = <T>(schema: z.ZodType<T>) => schema.nullish().transform((found) => found ?? undefined);

/** Not `z.record`, which drops `__proto__`. */
function mapOf<T>(schema: z.ZodType<T>) {
  return z
    .custom<JsonObject>((value) => isObject(value), 'expected an object')
    .transform((object, { issues }) => {
      const entries = Object.entries(object).map(([name, value]) => {
        const read = schema.safeParse(value, { reportInput: true });
        for (const issue of read.error?.issues ?? []) issues.push({ ...issue, path: [name, ...issue.path] } as never);
        return [name, read.data as T] as const;
      });
      return Object.fromEntries(entries);
    });
}

const dense = { shape: orNone(z.array(z.int().min(0))), sparse_crow_indices: z.null('expected a dense tensor').optional() };
const tensor = z
  .discriminatedUnion(
    'dtype',
    [
      z.object({ dtype: z.literal('int64'), data: int32s, ...dense }),
      z.object({ dtype: z.literal('float32'), data: float32s, ...dense }),
    ],
    'expected float32 or int64',
  )
  .transform(({ dtype, data, shape }, { issues }): Tensor => {
    const size = shape?.reduce((product, length) => product * length, 1) ?? data.length;
    const message = `expected a shape of ${data.length} numbers`;
    if (size !== data.length) issues.push({ code: 'custom', path: ['shape'], message, input: shape });
    return { dtype, data, ...(shape && { shape }) } as Tensor;
  });

/** The only supported kind of chunk. Some clients omit `type`. */
const encodedText = z.object({ type: z.literal('encoded_text').optional(), tokens: int32s });
const modelInput = z
  .object({ chunks: z.array(encodedText) })
  .transform(({ chunks }) => joinTokens(chunks.map(({ tokens }) => tokens)));
const datum = z
  .object({ model_input: modelInput, loss_fn_inputs: mapOf(tensor) })
  .transform(({ model_input: tokens, loss_fn_inputs: inputs }): Datum => ({ tokens, inputs }));
const passInput = z.object({ data: z.array(datum), loss_fn: z.string(), loss_fn_config: otherwise(mapOf(z.number()), {}) });
const head = { model_id: z.string(), seq_id: orNone(z.int().min(1)) };
const forwardRequest = z.object({ ...head, forward_input: passInput });
const forwardBackwardRequest = z.object({ ...head, forward_backward_input: passInput });

/** `forwardOnly` follows from the route; the input has a different key there. */
export function passRequestFromJson(value: unknown, forwardOnly: boolean): PassRequest {
  const read = forwardOnly ? readAs(forwardRequest, value) : readAs(forwardBackwardRequest, value);
  const { data, loss_fn, loss_fn_config } = 'forward_input' in read ? read.forward_input : read.forward_backward_input;
  return { modelId: read.model_id, seqId: read.seq_id, data, loss: loss_fn, lossSettings: loss_fn_config, forwardOnly };
}

const passResult = z.object({
  loss_fn_output_type: z.string(),
  loss_fn_outputs: z.array(mapOf(tensor)),
  metrics: otherwise(mapOf(z.number()), {}),
});

export function passResultFromJson(value: unknown): PassResult {
  const { loss_fn_output_type: outputType, loss_fn_outputs: outputs, metrics } = readAs(passResult, value);
  return { outputType, outputs, metrics };
}

/** Options of newer clients whose results the response would lack. */
const unsupported = z.custom((value) => !value, 'expected nothing: this is not supported').optional();
const texts = z.union([z.string().transform((text) => [text]), z.array(z.string())]);

const sampleCall = z.object({
  sampling_session_id: orNone(z.string()),
  /** A string if a number cannot hold it exactly. */
  seq_id: orNone(z.union([z.int().min(0), z.string().regex(/^\d{16,19}$/)], 'expected an integer of 0 or more')),
  base_model: orNone(z.string()),
  model_path: orNone(z.string()),
  prompt: modelInput,
  num_samples: otherwise(z.int().min(1), 1),
  sampling_params: z.object({
    max_tokens: orNone(z.int()),
    seed: orNone(z.int('expected a whole number between −2^53 and 2^53, which JSON keeps exactly')),
    temperature: otherwise(z.number(), 1),
    top_k: otherwise(z.int(), -1),
    top_p: otherwise(z.number(), 1),
    stop: otherwise<readonly number[] | readonly string[]>(
      z.union([texts, int32s.transform((ids) => Array.from(ids))], 'expected ids or texts'),
      [],
    ),
  }),
  prompt_logprobs: otherwise(z.boolean(), false),
  topk_prompt_logprobs: unsupported,
  topk_sample_logprobs: unsupported,
  target_prompt_logprobs: unsupported,
  prompt_alt_tokens_k: unsupported,
  prompt_logprobs_last_n: unsupported,
  record_stability_info: unsupported,
});

export type SampleCall = z.infer<typeof sampleCall>;

/** Throws unless the request names exactly one source of weights. */
export function sampleCallFromJson(value: unknown): SampleCall {
  const call = readAs(sampleCall, value);
  const { sampling_session_id: session, seq_id, base_model, model_path } = call;
  if (session !== undefined && seq_id === undefined) throw new WireError('seq_id', 'an integer of 0 or more', 'nothing');
  if (session !== undefined || (base_model === undefined) !== (model_path === undefined)) return call;
  const found = base_model === undefined ? 'none of them' : 'base_model and model_path';
  throw new WireError('', 'a sampling_session_id, a base_model or a model_path', found);
}

const sampleReply = z.object({
  sequences: z.array(z.object({ stop_reason: z.enum(['stop', 'length']), tokens: int32s, logprobs: orNone(float32s) })),
  prompt_logprobs: orNone(maybeFloat32s),
});

export function sampleReplyFromJson(value: unknown): SampleReply {
  const read = readAs(sampleReply, value);
  const sequences = read.sequences.map(({ stop_reason: stopReason, tokens, logprobs }, i) => {
    checkLogprobs(tokens, logprobs, `sequences[${i}]`);
    return { stopReason, tokens, logprobs };
  });
  return { sequences, ...(read.prompt_logprobs && { promptLogprobs: read.prompt_logprobs }) };
}
