/** What a Tinker server refuses, and how it says so: a status that clients understand, and where in the request the trouble is. */
import { request as httpRequest } from 'node:http';
import { promisify } from 'node:util';
import { zstdCompress } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Sample } from '../../src/core/types.ts';
import { TINKER_LIMITS } from '../../src/tinker/server/limits.ts';
import { encodePassRequest } from '../../src/tinker/wire/protobuf.ts';
import { type Datum, PROTOBUF, type Tensor } from '../../src/tinker/wire/tinker-messages.ts';
import { REGULAR, randomSample } from '../fixtures/nn/models.ts';
import { ADAM, BASE, datumOf, KEY, type PlainClient, passOf, scratch, serve } from '../fixtures/tinker/server.ts';

let home: Awaited<ReturnType<typeof scratch>>;
let served: Awaited<ReturnType<typeof serve>>;
let client: PlainClient;
let modelId: string;
beforeAll(async () => {
  home = await scratch();
  served = await serve(home);
  client = served.client;
  modelId = await client.model();
});
afterAll(async () => {
  await served.close();
  await home.remove();
});

const SAMPLE: Sample = randomSample(REGULAR, 12, 1, { prompt: 4 });
const floats = (data: readonly number[]): Tensor => ({ dtype: 'float32', data: Float32Array.from(data) });
const ints = (data: readonly number[]): Tensor => ({ dtype: 'int64', data: Int32Array.from(data) });

/** A pass with one datum that is changed. */
async function refused(change: (datum: Datum) => Datum, loss = 'importance_sampling', more: object = {}): Promise<string> {
  const good = passOf(modelId, undefined, [SAMPLE], loss);
  const answered = await client.pass({ ...good, ...more, data: [datumOf(SAMPLE, loss), change(datumOf(SAMPLE, loss))] });
  const { error, category } = await client.result(answered);
  expect(category).toBe('user');
  return String(error);
}

const withInput = (name: string, tensor: Tensor) => (datum: Datum) => ({ ...datum, inputs: { ...datum.inputs, [name]: tensor } });

describe('a datum', () => {
  const eleven = (value: number): number[] => Array(11).fill(value);
  const zeros = (count: number): number[] => Array(count).fill(0);
  it.each<[string, (datum: Datum) => Datum, string]>([
    ['NaN in its advantages', withInput('advantages', floats([...zeros(10), Number.NaN])), '"data[1]"): advantages holds NaN'],
    ['an infinite log-probability', withInput('logprobs', floats([-Infinity, ...zeros(10)])), 'logprobs holds -Infinity'],
    [
      'too few log-probabilities',
      withInput('logprobs', floats(zeros(10))),
      'data[1].loss_fn_inputs.logprobs has 10 entries, expected 11',
    ],
    ['too many advantages', withInput('advantages', floats(zeros(12))), 'advantages has 12 entries, expected 11'],
    [
      'an id outside the vocabulary',
      withInput('target_tokens', ints([...SAMPLE.tokens.slice(1, 11), 48])),
      'token id 48 is outside the vocabulary of 48',
    ],
    [
      'other targets than its tokens moved by one',
      withInput('target_tokens', ints([...SAMPLE.tokens.slice(0, 11)])),
      'moved by one',
    ],
    ['targets of the wrong kind', withInput('target_tokens', floats(eleven(1))), 'target_tokens is of float32, expected int64'],
    [
      'no advantages',
      ({ tokens, inputs: { advantages: _, ...inputs } }) => ({ tokens, inputs }),
      'data[1].loss_fn_inputs.advantages is missing',
    ],
    ['an input that the loss does not know', withInput('mask', floats(eleven(1))), 'mask is not an input of importance_sampling'],
    ['no token', () => ({ tokens: new Int32Array(0), inputs: {} }), 'data[1].model_input is empty'],
    [
      'more tokens than the context',
      () => datumOf(randomSample(REGULAR, REGULAR.contextLength + 1, 2), 'importance_sampling'),
      'it has 97 tokens, the context is 96',
    ],
  ])('with %s is refused, and it is said where', async (_, change, said) => {
    expect(await refused(change)).toContain(said);
  });

  it('may have the whole context', async () => {
    const longest = randomSample(REGULAR, REGULAR.contextLength, 2);
    expect((await client.passResult(await client.pass(passOf(await client.model(), 1, [longest])))).outputs).toHaveLength(1);
  });
});

describe('a pass', () => {
  it.each([
    ['a loss that is not known', { loss: 'gspo' }, 'loss_fn is "gspo", expected one of cross_entropy'],
    [
      'a setting that the loss does not have',
      { lossSettings: { kl: 1 } },
      'loss_fn_config.kl is not a setting of importance_sampling',
    ],
  ])('with %s is refused', async (_, more, said) => {
    expect(await refused((datum) => datum, 'importance_sampling', more)).toContain(said);
  });

  it('with bounds of the ratio that are not around 1 is refused', async () => {
    expect(await refused((datum) => datum, 'ppo', { lossSettings: { clip_low_threshold: 1.2 } })).toContain(
      'expected bounds around 1',
    );
  });

  it('without data, or with too many datums, is refused', async () => {
    const none = await client.pass({ ...passOf(modelId, undefined, []) });
    expect(none.status === 400 || (await client.result(none))['category'] === 'user').toBe(true);
    const many = {
      ...passOf(modelId, undefined, []),
      data: Array(TINKER_LIMITS.data + 1).fill(datumOf(SAMPLE, 'importance_sampling')),
    };
    expect(await client.result(await client.pass(many))).toMatchObject({
      error: expect.stringContaining('expected at most 4096'),
    });
  });

  it('that is larger than a body may be is refused with 413, compressed or not', async () => {
    const huge = new Uint8Array(TINKER_LIMITS.bodyBytes + 1);
    const plain = await client.send('forward_backward', huge, { 'content-type': PROTOBUF });
    expect(plain.status).toBe(413);
    const packed = Uint8Array.from(await promisify(zstdCompress)(huge));
    expect(packed.length).toBeLessThan(100_000);
    const bomb = await client.send('forward_backward', packed, { 'content-type': PROTOBUF, 'content-encoding': 'zstd' });
    expect(bomb.status).toBe(413);
  });

  it('may be compressed', async () => {
    const other = await client.model();
    const packed = Uint8Array.from(await promisify(zstdCompress)(encodePassRequest(passOf(other, 1, [SAMPLE]))));
    const response = await client.send('forward_backward', packed, { 'content-type': PROTOBUF, 'content-encoding': 'zstd' });
    const json = (await response.json()) as Record<string, unknown>;
    expect((await client.passResult({ status: response.status, json })).outputs).toHaveLength(1);
  });

  it.each([
    ['garbage', 'forward_backward', Uint8Array.of(0xff, 0xff, 0xff), { 'content-type': PROTOBUF }, 400],
    [
      'garbage instead of zstd',
      'forward_backward',
      Uint8Array.of(1, 2, 3),
      { 'content-type': PROTOBUF, 'content-encoding': 'zstd' },
      400,
    ],
    ['no JSON', 'forward_backward', '{', {}, 400],
    ['NaN in JSON', 'optim_step', '{"model_id":"m","adam_params":{"learning_rate":NaN}}', {}, 400],
    ['JSON that is nested without end', 'optim_step', '['.repeat(100_000), {}, 400],
    ['nothing', 'optim_step', '', {}, 400],
    ['a list', 'optim_step', '[]', {}, 400],
    ['gzip', 'optim_step', '{}', { 'content-encoding': 'gzip' }, 415],
    ['a form', 'optim_step', 'a=b', { 'content-type': 'application/x-www-form-urlencoded' }, 415],
    ['protobuf for a verb that has none', 'optim_step', Uint8Array.of(8, 1), { 'content-type': PROTOBUF }, 415],
  ])('%s is refused', async (_, verb, body, headers, status) => {
    const response = await client.send(verb, body, headers as Record<string, string>);
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({
      error: { code: expect.any(String), message: expect.any(String) },
      detail: expect.any(String),
    });
  });
});

describe('a sample request', () => {
  const prompt = (tokens: readonly number[]) => ({ chunks: [{ type: 'encoded_text', tokens }] });
  const good = { base_model: BASE, num_samples: 1, prompt: prompt([1, 2]), sampling_params: { max_tokens: 2 } };
  it.each<[string, object, string]>([
    ['an empty prompt', { prompt: prompt([]) }, 'prompt is empty'],
    ['an id outside the vocabulary', { prompt: prompt([1, 48]) }, 'prompt id 48 is outside the vocabulary'],
    ['a prompt that fills the context', { prompt: prompt(Array(96).fill(1)) }, 'the context is 96'],
    ['too many sequences', { num_samples: 257 }, 'num_samples is 257'],
    ['no tokens to sample', { sampling_params: { max_tokens: 0 } }, 'maxTokens is 0'],
    ['a negative temperature', { sampling_params: { temperature: -1 } }, 'temperature is -1'],
    ['top_p 0', { sampling_params: { top_p: 0 } }, 'topP is 0'],
    ['top_k below -1', { sampling_params: { top_k: -2 } }, 'top_k is -2'],
    ['another base model', { base_model: 'Qwen/Qwen3-8B' }, 'expected "small"'],
    ['a path that leads elsewhere', { base_model: undefined, model_path: 'tinker://../weights/x' }, 'model_path'],
  ])('with %s is refused at once', async (_, change, said) => {
    const { status, json } = await client.post('asample', { ...good, ...change });
    expect({ status, said: json['detail'] }).toEqual({ status: 400, said: expect.stringContaining(said) });
  });
});

describe('what is not there', () => {
  it.each<[string, string, object]>([
    ['model', 'get_info', { model_id: 'm-1' }],
    ['model', 'optim_step', { model_id: 'm-1', seq_id: 1, adam_params: ADAM }],
    ['session', 'session_heartbeat', { session_id: 's-1' }],
    ['session', 'create_model', { session_id: 's-1', model_seq_id: 0, base_model: BASE }],
    [
      'sampling session',
      'asample',
      { sampling_session_id: 'p-1', seq_id: 0, num_samples: 1, prompt: { chunks: [] }, sampling_params: {} },
    ],
    ['nothing saved', 'weights_info', { tinker_path: 'tinker://m-1/weights/a' }],
    ['future', 'retrieve_future', { request_id: 'a-future' }],
  ])('(a %s) is 404 for %s', async (_, verb, body) => {
    expect((await client.post(verb, body)).status).toBe(404);
  });

  it('is 410 for a future of an earlier life', async () => {
    const gone = await client.post('retrieve_future', { request_id: '0123456789ab-1' });
    expect(gone).toMatchObject({ status: 410, json: { detail: expect.stringContaining('earlier life') } });
  });

  it('is 404 for a route, and 405 for a method', async () => {
    expect((await client.post('create_custom_loss', {})).status).toBe(404);
    expect((await client.get('optim_step')).status).toBe(405);
  });

  it('is another base model for a new model, which is told the one there is', async () => {
    const session_id = await client.session();
    const { status, json } = await client.post('create_model', { session_id, model_seq_id: 0, base_model: 'llama' });
    expect({ status, json }).toMatchObject({ status: 400, json: { detail: expect.stringContaining('expected "small"') } });
    const byPath = { session_id, model_seq_id: 1, base_model: home.model };
    expect((await client.post('create_model', byPath)).status).toBe(200);
  });
});

describe('a key', () => {
  it.each(['', 'tml-wrong', `${KEY}x`, KEY.slice(0, -1)])('%j is refused', async (key) => {
    const response = await client.send('create_session', '{}', { 'x-api-key': key });
    expect(response.status).toBe(401);
  });

  it('is taken as a bearer token too, and not needed to ask whether the server lives', async () => {
    const bearer = await fetch(`${client.origin}/api/v1/get_server_capabilities`, {
      headers: { authorization: `Bearer ${KEY}` },
    });
    expect(await bearer.json()).toMatchObject({ supported_models: [{ model_name: BASE, max_context_length: 96 }] });
    expect((await fetch(`${client.origin}/api/v1/healthz`)).status).toBe(200);
  });

  it('does not help a web page, or a name that somebody else’s DNS points here', async () => {
    expect((await client.send('create_session', '{}', { origin: 'https://example.com' })).status).toBe(403);
    const { port } = new URL(client.origin);
    const status = await new Promise((resolve, reject) => {
      const headers = { host: 'example.com', 'x-api-key': KEY };
      httpRequest({ port, host: '127.0.0.1', path: '/api/v1/get_server_capabilities', headers }, (response) =>
        resolve(response.statusCode),
      )
        .on('error', reject)
        .end();
    });
    expect(status).toBe(403);
  });
});

it('a small verb with a large body is refused before it is looked at', async () => {
  const tags = Array(100_000).fill([]);
  expect(await client.post('create_session', { tags })).toMatchObject({
    status: 413,
    json: { error: { code: 'body_too_large' } },
  });
});
