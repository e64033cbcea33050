/** What a Tinker server refuses, and how it says so: a status that clients understand, and where in the request the trouble is. */
import { promisify } from 'node:util';
import { zstdCompress } from 'node:zlib';
import { beforeAll, describe, expect, it } from 'vitest';
import type { Sample } from '../../src/core/types.ts';
import { TINKER_LIMITS } from '../../src/engines/tinker/server/limits.ts';
import { encodePassRequest } from '../../src/engines/tinker/wire/protobuf.ts';
import { type Datum, type PassRequest, PROTOBUF, type Tensor } from '../../src/engines/tinker/wire/tinker-messages.ts';
import { REGULAR, randomSample } from '../fixtures/nn/models.ts';
import { ADAM, BASE, datumOf, KEY, type PlainClient, passOf, useServer } from '../fixtures/tinker/server.ts';

const used = useServer();
let client: PlainClient;
let modelId: string;
beforeAll(async () => {
  client = used.client;
  modelId = await client.model();
});

const SAMPLE: Sample = randomSample(REGULAR, 12, 1, { prompt: 4 });
const floats = (...data: readonly number[]): Tensor => ({ dtype: 'float32', data: Float32Array.from(data) });
const ints = (...data: readonly number[]): Tensor => ({ dtype: 'int64', data: Int32Array.from(data) });
const zeros = (count: number): number[] => Array(count).fill(0);
const GOOD = datumOf(SAMPLE, 'importance_sampling');
const given = (inputs: Readonly<Record<string, Tensor>>): Datum => ({ ...GOOD, inputs: { ...GOOD.inputs, ...inputs } });
const zstd = async (bytes: Uint8Array) => Uint8Array.from(await promisify(zstdCompress)(bytes));
const ZSTD = { 'content-type': PROTOBUF, 'content-encoding': 'zstd' };

/** What is said of a pass with a good datum and these. */
async function refusal(data: readonly Datum[], change: Partial<PassRequest> = {}): Promise<string> {
  const answered = await client.pass({ ...passOf(modelId, undefined, []), data, ...change });
  const { error, category } = await client.result(answered);
  expect(category).toBe('user');
  return String(error);
}

describe('a datum', () => {
  const { advantages: _, ...unweighted } = GOOD.inputs;
  const tooLong = datumOf(randomSample(REGULAR, REGULAR.contextLength + 1, 2), 'importance_sampling');
  const tokens = [...SAMPLE.tokens];
  it.each<[string, Datum, string]>([
    ['NaN in its advantages', given({ advantages: floats(...zeros(10), NaN) }), '"data[1]"): advantages holds NaN'],
    ['an infinite log-probability', given({ logprobs: floats(-Infinity, ...zeros(10)) }), 'logprobs holds -Infinity'],
    ['too few log-probabilities', given({ logprobs: floats(...zeros(10)) }), 'data[1].loss_fn_inputs.logprobs has 10 entries'],
    ['too many advantages', given({ advantages: floats(...zeros(12)) }), 'advantages has 12 entries, expected 11'],
    ['a strange id', given({ target_tokens: ints(...tokens.slice(1, 11), 48) }), 'token id 48 is outside the vocabulary of 48'],
    ['other targets than its tokens moved by one', given({ target_tokens: ints(...tokens.slice(0, 11)) }), 'moved by one'],
    [
      'targets of two dimensions',
      given({ target_tokens: { ...ints(...zeros(22)), shape: [11, 2] } }),
      'has the shape [11, 2], expected [11]',
    ],
    ['bounds for each token', given({ clip_low_threshold: floats(...zeros(11)) }), 'clip_low_threshold is not an input of'],
    ['targets of the wrong kind', given({ target_tokens: floats(...zeros(11)) }), 'target_tokens is of float32, expected int64'],
    ['no advantages', { ...GOOD, inputs: unweighted }, 'data[1].loss_fn_inputs.advantages is missing'],
    ['an unknown input', given({ mask: floats(...zeros(11)) }), 'mask is not an input of importance_sampling'],
    ['no token', { tokens: new Int32Array(0), inputs: {} }, 'data[1].model_input is empty'],
    ['more tokens than the context', tooLong, 'it has 97 tokens, the context is 96'],
  ])('with %s is refused, and it is said where', async (_, datum, said) => {
    expect(await refusal([GOOD, datum])).toContain(said);
  });

  it('may have the whole context', async () => {
    const longest = randomSample(REGULAR, REGULAR.contextLength, 2);
    expect((await client.passResult(await client.pass(passOf(await client.model(), 1, [longest])))).outputs).toHaveLength(1);
  });
});

describe('a pass', () => {
  it.each<[string, Partial<PassRequest>, string]>([
    ['an unknown loss', { loss: 'gspo' }, 'loss_fn is "gspo", expected one of cross_entropy'],
    ['an unknown setting', { lossSettings: { kl: 1 } }, 'loss_fn_config.kl is not a setting of importance_sampling'],
    ['bounds not around 1', { loss: 'ppo', lossSettings: { clip_low_threshold: 1.2 } }, 'expected bounds around 1'],
    ['no data', { data: [] }, 'data is empty'],
    ['too much data', { data: Array(TINKER_LIMITS.data + 1).fill(GOOD) }, 'expected at most 4096'],
  ])('with %s is refused', async (_, change, said) => {
    expect(await refusal([GOOD], change)).toContain(said);
  });

  it('that is larger than a body may be is refused with 413, compressed or not', async () => {
    const huge = new Uint8Array(TINKER_LIMITS.bodyBytes + 1);
    expect((await client.send('forward_backward', huge, { 'content-type': PROTOBUF })).status).toBe(413);
    const packed = await zstd(huge);
    expect(packed.length).toBeLessThan(100_000);
    expect((await client.send('forward_backward', packed, ZSTD)).status).toBe(413);
  });

  it('may be compressed', async () => {
    const packed = await zstd(encodePassRequest(passOf(await client.model(), 1, [SAMPLE])));
    const response = await client.send('forward_backward', packed, ZSTD);
    const json = (await response.json()) as Record<string, unknown>;
    expect((await client.passResult({ status: response.status, json })).outputs).toHaveLength(1);
  });

  it.each<[string, string, string | Uint8Array<ArrayBuffer>, Record<string, string>, number]>([
    ['garbage', 'forward_backward', Uint8Array.of(0xff, 0xff, 0xff), { 'content-type': PROTOBUF }, 400],
    ['garbage instead of zstd', 'forward_backward', Uint8Array.of(1, 2, 3), ZSTD, 400],
    ['no JSON', 'forward_backward', '{', {}, 400],
    ['NaN in JSON', 'optim_step', '{"model_id":"m","adam_params":{"learning_rate":NaN}}', {}, 400],
    ['JSON that is nested without end', 'optim_step', '['.repeat(100_000), {}, 400],
    ['nothing', 'optim_step', '', {}, 400],
    ['a list', 'optim_step', '[]', {}, 400],
    ['gzip', 'optim_step', '{}', { 'content-encoding': 'gzip' }, 415],
    ['a form', 'optim_step', 'a=b', { 'content-type': 'application/x-www-form-urlencoded' }, 415],
    ['protobuf for a verb that has none', 'optim_step', Uint8Array.of(8, 1), { 'content-type': PROTOBUF }, 415],
    ['a large body for a small verb', 'create_session', JSON.stringify({ tags: Array(100_000).fill([]) }), {}, 413],
  ])('%s is refused', async (_, verb, body, headers, status) => {
    const response = await client.send(verb, body, headers);
    const message = expect.any(String);
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({ error: { code: expect.any(String), message }, detail: message });
  });
});

describe('a sample request', () => {
  const prompt = (...tokens: readonly number[]) => ({ chunks: [{ type: 'encoded_text', tokens }] });
  const good = { base_model: BASE, num_samples: 1, prompt: prompt(1, 2), sampling_params: { max_tokens: 2 } };
  it.each<[string, object, string]>([
    ['an empty prompt', { prompt: prompt() }, 'prompt is empty'],
    ['an id outside the vocabulary', { prompt: prompt(1, 48) }, 'prompt id 48 is outside the vocabulary'],
    ['a prompt that fills the context', { prompt: prompt(...Array(96).fill(1)) }, 'the context is 96'],
    ['too many sequences', { num_samples: 257 }, 'num_samples is 257'],
    ['no tokens to sample', { sampling_params: { max_tokens: 0 } }, 'maxTokens is 0'],
    ['a negative temperature', { sampling_params: { temperature: -1 } }, 'temperature is -1'],
    ['top_p 0', { sampling_params: { top_p: 0 } }, 'topP is 0'],
    ['top_k below -1', { sampling_params: { top_k: -2 } }, 'top_k is -2'],
    ['another base model', { base_model: 'Qwen/Qwen3-8B' }, 'expected "small"'],
    ['a path that leads elsewhere', { base_model: undefined, model_path: 'tinker://../weights/x' }, 'model_path'],
    [
      'a seed that JSON cannot hold',
      { sampling_params: { seed: 2 ** 53 } },
      'seed: expected a whole number between −2^53 and 2^53',
    ],
    [
      'more stop texts than anybody looks for',
      { sampling_params: { stop: Array(257).fill('x') } },
      'stop has 257 entries, expected at most 256',
    ],
    ['top-k log-probabilities', { topk_prompt_logprobs: 5 }, 'topk_prompt_logprobs: expected nothing: this is not supported'],
    ['part of the log-probabilities', { prompt_logprobs_last_n: 5 }, 'prompt_logprobs_last_n: expected nothing'],
    ['a stop text, without a tokenizer', { sampling_params: { stop: ['end'] } }, 'no tokenizer'],
  ])('with %s is refused at once', async (_, change, said) => {
    const { status, json } = await client.post('asample', { ...good, ...change });
    expect({ status, said: json['detail'] }).toEqual({ status: 400, said: expect.stringContaining(said) });
  });
});

describe('what is not there', () => {
  it.each([
    ['GET', 'archive'],
    ['POST', 'publish'],
    ['DELETE', 'publish'],
    ['PUT', 'ttl'],
  ])('%s of a checkpoint’s %s is refused by its name', async (method, suffix) => {
    const path = `training_runs/m-1/checkpoints/weights/a/${suffix}`;
    const response = await client.send(path, undefined, {}, method);
    const detail = `${method} /api/v1/${path} is not offered here`;
    expect({ status: response.status, ...((await response.json()) as object) }).toMatchObject({ status: 404, detail });
  });

  const sample = { sampling_session_id: 'p-1', seq_id: 0, num_samples: 1, prompt: { chunks: [] }, sampling_params: {} };
  it.each<[string, object, number]>([
    ['get_info', { model_id: 'm-1' }, 404],
    ['optim_step', { model_id: 'm-1', seq_id: 1, adam_params: ADAM }, 404],
    ['session_heartbeat', { session_id: 's-1' }, 404],
    ['create_model', { session_id: 's-1', model_seq_id: 0, base_model: BASE }, 404],
    ['asample', sample, 404],
    ['weights_info', { tinker_path: 'tinker://m-1/weights/a' }, 404],
    ['retrieve_future', { request_id: 'a-future' }, 404],
    ['retrieve_future', { request_id: '0123456789ab-1' }, 410],
    ['create_custom_loss', {}, 404],
  ])('is refused by %s of %j with %i', async (verb, body, status) => {
    expect((await client.post(verb, body)).status).toBe(status);
  });

  it('is another base model for a new model, which is told the one there is', async () => {
    const session_id = await client.session();
    const create = (model_seq_id: number, base_model: string) =>
      client.post('create_model', { session_id, model_seq_id, base_model });
    expect(await create(0, 'llama')).toMatchObject({
      status: 400,
      json: { detail: expect.stringContaining('expected "small"') },
    });
    expect((await create(1, used.model)).status).toBe(200);
  });
});

describe('a key', () => {
  it('that is wrong is refused', async () => {
    expect((await client.send('create_session', '{}', { 'x-api-key': `${KEY}x` })).status).toBe(401);
  });

  it('is taken as a bearer token too, and not needed to ask whether the server lives', async () => {
    const headers = { authorization: `Bearer ${KEY}` };
    const bearer = await fetch(`${client.origin}/api/v1/get_server_capabilities`, { headers });
    expect(await bearer.json()).toMatchObject({ supported_models: [{ model_name: BASE, max_context_length: 96 }] });
    expect((await fetch(`${client.origin}/api/v1/healthz`)).status).toBe(200);
  });
});
