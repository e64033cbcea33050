/** Training through the Tinker API: the same weights as without it, in the order of seq_id, and never on half a gradient. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { EmbeddedModel } from '../../src/nn/embedded-model.ts';
import { TINKER_LIMITS } from '../../src/tinker/server/limits.ts';
import { passRequestToJson } from '../../src/tinker/wire/tinker-json.ts';
import { importanceSampling } from '../../src/trainer/losses.ts';
import { REGULAR, randomSample } from '../fixtures/nn/models.ts';
import { ADAM, type Answered, type PlainClient, passOf, scratch, serve } from '../fixtures/tinker/server.ts';

let home: Awaited<ReturnType<typeof scratch>>;
let served: Awaited<ReturnType<typeof serve>>;
let client: PlainClient;

beforeAll(async () => {
  home = await scratch();
});
afterAll(() => home.remove());
beforeEach(async () => {
  served = await serve(home);
  client = served.client;
});
afterEach(() => served.close());

const SAMPLES = [
  randomSample(REGULAR, 9, 1),
  randomSample(REGULAR, 29, 2, { prompt: 11 }),
  randomSample(REGULAR, 14, 3, { prompt: 5 }),
];
const OTHERS = [randomSample(REGULAR, 19, 4, { prompt: 7 }), randomSample(REGULAR, 8, 5)];
const settings = { learningRate: 0.01, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weightDecay: 0.1, maxGradNorm: 0.5 };

const saved = async (modelId: string, name: string, file = 'model.safetensors') =>
  await readFile(join(home.state, modelId, 'weights', name, file));

/** The embedded model itself, trained with the same samples. */
async function directly(work: (model: EmbeddedModel) => Promise<unknown>): Promise<Float32Array> {
  await using model = await EmbeddedModel.open({ dir: home.model, threads: 1 });
  await work(model);
  return Float32Array.from(model.weights());
}

/** Of what was saved. */
async function weightsOf(folder: string): Promise<Float32Array> {
  await using model = await EmbeddedModel.open({ dir: folder, threads: 1 });
  return Float32Array.from(model.weights());
}

const step = (model_id: string, seq_id?: number): Promise<Answered> =>
  client.post('optim_step', { model_id, seq_id, adam_params: ADAM });
const save = (model_id: string, path: string, seq_id?: number): Promise<Answered> =>
  client.post('save_weights', { model_id, path, seq_id });

describe('a step through the API', () => {
  it('takes JSON too, with the same result', async () => {
    const [one, other] = [await client.model(), await client.model()];
    await client.result(await client.pass(passOf(one, 1, SAMPLES)));
    await client.result(await client.post('forward_backward', passRequestToJson(passOf(other, 1, SAMPLES))));
    for (const id of [one, other]) await client.result(await step(id, 2));
    for (const id of [one, other]) await client.result(await save(id, 'json', 3));
    expect(await saved(one, 'json')).toEqual(await saved(other, 'json'));
  });

  it('looks at log-probabilities without leaving a gradient when it is forward only', async () => {
    const modelId = await client.model();
    const looked = await client.passResult(await client.pass({ ...passOf(modelId, 1, SAMPLES), forwardOnly: true }));
    expect(await client.result(await step(modelId, 2))).toMatchObject({
      category: 'user',
      error: expect.stringContaining('no forward_backward'),
    });
    const trained = await client.passResult(await client.pass(passOf(modelId, 3, SAMPLES)));
    expect(looked).toEqual(trained);
  });
});

describe('models', () => {
  it('are at most eight at once, until one is unloaded', async () => {
    const session_id = await client.session();
    const ids: string[] = [];
    for (let i = 0; i < 8; i++) ids.push(await client.model(session_id, i));
    const ninth = { session_id, model_seq_id: 8, base_model: 'small' };
    expect(await client.post('create_model', ninth)).toMatchObject({ status: 400, json: { error: { code: 'too_many_models' } } });
    await client.result(await client.post('unload_model', { model_id: ids[0] }));
    expect((await client.post('create_model', ninth)).status).toBe(200);
    expect((await step(ids[0]!)).status).toBe(404);
  });

  it('are made once for the same model_seq_id, and refused for another body under it', async () => {
    const session_id = await client.session();
    const body = { session_id, model_seq_id: 3, base_model: 'small' };
    const [first, again] = [await client.post('create_model', body), await client.post('create_model', body)];
    expect(again.json).toEqual(first.json);
    expect((await client.post('create_model', { ...body, lora_config: { rank: 2 } })).status).toBe(409);
  });

  it('end with a session that gives no sign of life, and what they saved stays', async () => {
    await served.close();
    let now = Date.now();
    served = await serve(home, {}, () => now);
    client = served.client;
    const [quiet, loud] = [await client.session(), await client.session()];
    const [lost, kept] = [await client.model(quiet), await client.model(loud)];
    await client.result(await save(lost, 'before', 1));
    now += 9 * 60_000;
    await client.post('session_heartbeat', { session_id: loud });
    now += 2 * 60_000;
    served.server.endIdle();
    expect((await client.post('session_heartbeat', { session_id: quiet })).status).toBe(404);
    expect((await step(lost)).status).toBe(404);
    expect((await client.post('get_info', { model_id: kept })).status).toBe(200);
    const path = `tinker://${lost}/weights/before`;
    expect(await client.result(await client.post('load_weights', { model_id: kept, path, seq_id: 1 }))).toMatchObject({ path });
  });
});

describe('models of a session that is silent', () => {
  it('make room where there is none, of the longest silence first; others stay', async () => {
    await served.close();
    let now = Date.now();
    served = await serve(home, {}, () => now);
    client = served.client;
    const sessions = await Promise.all(Array.from({ length: 8 }, () => client.session()));
    const models: string[] = [];
    for (const session of sessions) {
      models.push(await client.model(session));
      now += 1000;
    }
    const isThere = async (modelId: string) => (await client.post('get_info', { model_id: modelId })).status === 200;
    await client.post('session_heartbeat', { session_id: sessions[0] });
    const ninth = { session_id: await client.session(), model_seq_id: 0, base_model: 'small' };
    now += 50_000;
    expect((await client.post('create_model', ninth)).status).toBe(400);
    now += 9000;
    // A poll is a sign of life too.
    const polled = await step(models[1]!);
    now += 55_000;
    await client.result(polled);
    now += 6000;
    expect((await client.post('create_model', ninth)).status).toBe(200);
    expect(await Promise.all(models.map(isThere))).toEqual([true, true, false, true, true, true, true, true]);
  });
});

describe('seq_id', () => {
  it('is the order, whatever order requests arrive in and however often', async () => {
    const batches = [SAMPLES, OTHERS, SAMPLES.slice(1), OTHERS.slice(1)];
    const requests = (modelId: string): (() => Promise<Answered>)[] => [
      ...batches.flatMap((samples, i) => [
        () => client.pass(passOf(modelId, 2 * i + 1, samples)),
        () => step(modelId, 2 * i + 2),
      ]),
      () => save(modelId, 'end', 2 * batches.length + 1),
    ];
    const inOrder = await client.model();
    for (const send of requests(inOrder)) await client.result(await send());
    const expected = await saved(inOrder, 'end');
    const all = requests(inOrder).length;
    const arrival = fc.tuple(
      fc.shuffledSubarray([...Array(all).keys()], { minLength: all, maxLength: all }),
      fc.array(fc.nat(all - 1), { maxLength: 6 }),
    );
    await fc.assert(
      fc.asyncProperty(arrival, async ([order, repeated]) => {
        const modelId = await client.model();
        const sends = requests(modelId);
        const answered = await Promise.all([...order, ...repeated].map((at) => sends[at]!()));
        for (const one of answered) expect((await client.result(one))['error']).toBeUndefined();
        const ids = answered.map(({ json }) => json['request_id']);
        repeated.forEach((at, i) => {
          expect(ids[all + i]).toBe(ids[order.indexOf(at)]);
        });
        expect(await saved(modelId, 'end')).toEqual(expected);
        expect(await saved(modelId, 'end', 'optimizer.safetensors')).toEqual(
          await saved(inOrder, 'end', 'optimizer.safetensors'),
        );
        await client.result(await client.post('unload_model', { model_id: modelId }));
      }),
      { numRuns: 8 },
    );
  });

  it('of the parts of a batch is kept to by the official client: sent side by side, one that is refused would hold it up for ever', async () => {
    expect((await client.post('client/config', {})).json).toMatchObject({ parallel_fwdbwd_chunks: false });
  });

  it('with another body is refused, and changes nothing', async () => {
    const modelId = await client.model();
    const first = await client.pass(passOf(modelId, 1, SAMPLES));
    const other = await client.pass(passOf(modelId, 1, OTHERS));
    expect(other).toMatchObject({ status: 409, json: { error: { code: 'seq_id_reused' } } });
    expect(other.json['detail']).toContain('seq_id 1');
    expect((await step(modelId, 1)).status).toBe(409);
    expect((await client.passResult(first)).outputs).toHaveLength(SAMPLES.length);
  });

  it('that never comes fails what waits for it, after a while, and no step is taken on what is left', async () => {
    await served.close();
    served = await serve(home, { gap: 300 });
    client = served.client;
    const modelId = await client.model();
    await client.result(await client.pass(passOf(modelId, 1, SAMPLES)));
    const waiting = [await client.pass(passOf(modelId, 3, OTHERS)), await step(modelId, 4)];
    for (const one of waiting) {
      expect(await client.result(one)).toMatchObject({
        category: 'user',
        error: expect.stringContaining('seq_id 2 did not come'),
      });
    }
    expect((await client.pass(passOf(modelId, 2, OTHERS))).status).toBe(409);
    expect(await client.result(await step(modelId, 5))).toMatchObject({ category: 'user' });
    await client.result(await save(modelId, 'unchanged', 6));
    expect(await weightsOf(join(home.state, modelId, 'weights', 'unchanged'))).toEqual(await weightsOf(home.model));
  });

  it('of a request that was refused is used up: the next one does not wait for it', async () => {
    const modelId = await client.model();
    expect((await client.post('save_weights', { model_id: modelId, path: '../etc', seq_id: 1 })).status).toBe(400);
    await client.pass(passOf(modelId, 2, SAMPLES));
    expect((await client.post('forward_backward', { model_id: modelId, seq_id: 3, forward_backward_input: {} })).status).toBe(
      400,
    );
    // Half of the batch was refused.
    expect(await client.result(await step(modelId, 4))).toMatchObject({
      category: 'user',
      error: expect.stringContaining('seq_id 3'),
    });
    expect(await client.result(await save(modelId, 'fine', 5))).toMatchObject({ path: `tinker://${modelId}/weights/fine` });
    const unknown = { model_id: modelId, seq_id: 6, path: 'x' };
    expect((await client.post('save_weights_external', unknown)).status).toBe(404);
    const large = { model_id: modelId, path: 'x', user_metadata: { a: 'b'.repeat(TINKER_LIMITS.smallJsonBytes) }, seq_id: 7 };
    expect((await client.post('save_weights', large)).status).toBe(413);
    const huge = { forward_backward_input: 'x'.repeat(TINKER_LIMITS.jsonBytes), model_id: modelId, seq_id: 8 };
    expect((await client.post('forward_backward', huge)).status).toBe(413);
    expect(await client.result(await save(modelId, 'next', 9))).toMatchObject({ path: `tinker://${modelId}/weights/next` });
  });
});

describe('a step', () => {
  const bad = (modelId: string, seqId: number) => client.pass({ ...passOf(modelId, seqId, SAMPLES), loss: 'no_such_loss' });

  it('is not taken when a forward_backward before it failed, even where others of the batch succeeded', async () => {
    const modelId = await client.model();
    // All are on their way before anybody knows: as clients send a batch in parts.
    const [, , stepped] = await Promise.all([bad(modelId, 1), client.pass(passOf(modelId, 2, OTHERS)), step(modelId, 3)]);
    expect(await client.result(stepped)).toMatchObject({ category: 'user', error: expect.stringContaining('seq_id 1') });
    await client.result(await save(modelId, 'same', 4));
    expect(await weightsOf(join(home.state, modelId, 'weights', 'same'))).toEqual(await weightsOf(home.model));
  });

  it('is taken on what came after the failure was known, and on nothing that came before', async () => {
    const modelId = await client.model();
    await client.result(await client.pass(passOf(modelId, 1, OTHERS)));
    expect(await client.result(await bad(modelId, 2))).toMatchObject({ category: 'user' });
    await client.pass(passOf(modelId, 3, SAMPLES));
    expect(await client.result(await step(modelId, 4))).toHaveProperty('metrics');
    await client.result(await save(modelId, 'anew', 5));
    const expected = await directly(async (model) => {
      await model.forwardBackward(SAMPLES, importanceSampling());
      await model.optimStep(settings);
    });
    expect(await weightsOf(join(home.state, modelId, 'weights', 'anew'))).toEqual(expected);
  });

  it('is not taken twice on one gradient, nor with settings that make no sense', async () => {
    const modelId = await client.model();
    await client.pass(passOf(modelId, 1, SAMPLES));
    expect(await client.result(await step(modelId, 2))).toHaveProperty('metrics');
    expect(await client.result(await step(modelId, 3))).toMatchObject({ category: 'user' });
    await client.pass(passOf(modelId, 4, SAMPLES));
    const wrong = await client.post('optim_step', { model_id: modelId, seq_id: 5, adam_params: { ...ADAM, beta1: 1 } });
    expect(await client.result(wrong)).toMatchObject({ category: 'user', error: expect.stringContaining('beta1') });
    expect(await client.result(await step(modelId, 6))).toMatchObject({ category: 'user' });
  });

  it('is refused with another optimizer than AdamW', async () => {
    const modelId = await client.model();
    const other = { model_id: modelId, seq_id: 1, optimizer_params: { type: 'dimuon', learning_rate: 1 } };
    expect(await client.post('optim_step', other)).toMatchObject({ status: 400, json: { error: { code: 'not_offered' } } });
  });
});

describe('saved weights', () => {
  it('go on as if nothing had happened when they are loaded with the optimizer, and without it when they are not', async () => {
    const first = await client.model();
    await client.pass(passOf(first, 1, SAMPLES));
    await step(first, 2);
    const { path } = await client.result(await save(first, 'half', 3));
    await client.pass(passOf(first, 4, OTHERS));
    await step(first, 5);
    await client.result(await save(first, 'whole', 6));
    const ends: Buffer[] = [];
    for (const optimizer of [true, false]) {
      const other = await client.model();
      expect(
        await client.result(await client.post('load_weights', { model_id: other, path, optimizer, seq_id: 1 })),
      ).toMatchObject({ path });
      await client.pass(passOf(other, 2, OTHERS));
      await step(other, 3);
      await client.result(await save(other, 'whole', 4));
      ends.push(await saved(other, 'whole'));
    }
    expect(ends[0]).toEqual(await saved(first, 'whole'));
    expect(ends[1]).not.toEqual(ends[0]);
  });

  it('are loaded only as a model’s first request', async () => {
    const modelId = await client.model();
    const { path } = await client.result(await save(modelId, 'mine', 1));
    const late = await client.post('load_weights', { model_id: modelId, path, seq_id: 2 });
    expect(await client.result(late)).toMatchObject({ category: 'user', error: expect.stringContaining('first request') });
  });

  it('are not replaced unless that is asked for', async () => {
    const modelId = await client.model();
    await client.result(await save(modelId, 'name', 1));
    expect(await client.result(await save(modelId, 'name', 2))).toMatchObject({ category: 'user' });
    const before = await saved(modelId, 'name');
    await client.pass(passOf(modelId, 3, SAMPLES));
    await step(modelId, 4);
    await client.result(await client.post('save_weights', { model_id: modelId, path: 'name', seq_id: 5, overwrite: true }));
    expect(await saved(modelId, 'name')).not.toEqual(before);
  });

  it('are listed, described and removed', async () => {
    const modelId = await client.model();
    const { path } = await client.result(await save(modelId, 'listed', 1));
    expect((await client.post('weights_info', { tinker_path: path })).json).toMatchObject({
      base_model: 'small',
      is_lora: true,
      lora_rank: 4,
      full_parameter_training: true,
    });
    const list = async () => ((await client.get(`training_runs/${modelId}/checkpoints`)).json['checkpoints'] as object[]).length;
    expect(await list()).toBe(1);
    expect((await client.get(`training_runs/${modelId}`)).json).toMatchObject({ training_run_id: modelId, is_lora: false });
    await client.send(`training_runs/${modelId}/checkpoints/weights/listed`, undefined, {}, 'DELETE');
    expect(await list()).toBe(0);
    expect((await client.post('weights_info', { tinker_path: path })).status).toBe(404);
  });
});
