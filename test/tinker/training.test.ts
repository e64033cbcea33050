/** Training through the Tinker API: the same weights as without it, in the order of seq_id, and never on half a gradient. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { TINKER_LIMITS, type Waits } from '../../src/engines/tinker/server/limits.ts';
import { passRequestToJson } from '../../src/engines/tinker/wire/tinker-json.ts';
import { importanceSampling } from '../../src/training/losses.ts';
import { REGULAR, randomSample } from '../fixtures/nn/models.ts';
import { ADAM, type Answered, type PlainClient, type PlainModel, passOf, scratch, serve } from '../fixtures/tinker/server.ts';

let home: Awaited<ReturnType<typeof scratch>>;
let served: Awaited<ReturnType<typeof serve>>;
let client: PlainClient;

beforeAll(async () => {
  home = await scratch();
});
afterAll(() => home.remove());
beforeEach(() => restart());
afterEach(() => served.close());

async function restart(waits: Partial<Waits> = {}, now?: () => number): Promise<void> {
  await served?.close();
  served = await serve(home, waits, now);
  client = served.client;
}

const SAMPLES = [
  randomSample(REGULAR, 9, 1),
  randomSample(REGULAR, 29, 2, { prompt: 11 }),
  randomSample(REGULAR, 14, 3, { prompt: 5 }),
];
const OTHERS = [randomSample(REGULAR, 19, 4, { prompt: 7 }), randomSample(REGULAR, 8, 5)];
const failed = (error: string) => ({ category: 'user', error: expect.stringContaining(error) });

const saved = (modelId: string, name: string, file = 'model.safetensors') =>
  readFile(join(home.state, modelId, 'weights', name, file));

/** Of a folder, after this was done to them. */
async function weightsOf(dir: string, work?: (model: EmbeddedModel) => Promise<unknown>): Promise<Float32Array> {
  await using model = await EmbeddedModel.open({ dir, threads: 1 });
  await work?.(model);
  return Float32Array.from(model.weights());
}

/** The weights that a model has now. */
async function weightsIn(model: PlainModel): Promise<Float32Array> {
  await client.result(model.save(`now-${model.seqId}`));
  return await weightsOf(join(home.state, model.id, 'weights', `now-${model.seqId - 1}`));
}

describe('a step through the API', () => {
  it('takes JSON too, with the same result', async () => {
    const [one, other] = [await client.train(), await client.train()];
    await client.result(one.pass(SAMPLES));
    await client.result(client.post('forward_backward', passRequestToJson(passOf(other.id, ++other.seqId, SAMPLES))));
    for (const model of [one, other]) await client.result(model.step());
    for (const model of [one, other]) await client.result(model.save('json'));
    expect(await saved(one.id, 'json')).toEqual(await saved(other.id, 'json'));
  });

  it('looks at log-probabilities without leaving a gradient when it is forward only', async () => {
    const model = await client.train();
    const looked = await client.passResult(await model.pass(SAMPLES, { forwardOnly: true }));
    expect(await client.result(model.step())).toMatchObject(failed('no forward_backward'));
    expect(await client.passResult(await model.pass(SAMPLES))).toEqual(looked);
  });
});

describe('models', () => {
  it('are at most eight at once, until one is unloaded', async () => {
    const session_id = await client.session();
    const ids: string[] = [];
    for (let i = 0; i < 8; i++) ids.push(await client.model(session_id, i));
    const ninth = { session_id, model_seq_id: 8, base_model: 'small' };
    expect(await client.post('create_model', ninth)).toMatchObject({ status: 400, json: { error: { code: 'too_many_models' } } });
    await client.result(client.post('unload_model', { model_id: ids[0] }));
    expect((await client.post('create_model', ninth)).status).toBe(200);
    expect((await client.post('get_info', { model_id: ids[0] })).status).toBe(404);
  });

  it('are made once for the same model_seq_id, and refused for another body under it', async () => {
    const body = { session_id: await client.session(), model_seq_id: 3, base_model: 'small' };
    const [first, again] = [await client.post('create_model', body), await client.post('create_model', body)];
    expect(again.json).toEqual(first.json);
    expect((await client.post('create_model', { ...body, lora_config: { rank: 2 } })).status).toBe(409);
  });

  it('end with a session that gives no sign of life, and what they saved stays', async () => {
    let now = Date.now();
    await restart({}, () => now);
    const [quiet, loud] = [await client.session(), await client.session()];
    const [lost, kept] = [await client.train(quiet), await client.train(loud)];
    const { path } = await client.result(lost.save('before'));
    now += 9 * 60_000;
    await client.post('session_heartbeat', { session_id: loud });
    now += 2 * 60_000;
    served.server.endIdle();
    expect((await client.post('session_heartbeat', { session_id: quiet })).status).toBe(404);
    expect((await lost.step()).status).toBe(404);
    expect(await client.result(kept.post('load_weights', { path }))).toMatchObject({ path });
  });

  it('do not end because the machine’s clock was set', async () => {
    const clock = vi.spyOn(Date, 'now');
    await restart();
    const model = await client.train();
    clock.mockReturnValue(Date.UTC(2100, 0));
    served.server.endIdle();
    expect((await client.post('get_info', { model_id: model.id })).status).toBe(200);
    clock.mockRestore();
  });

  it('of a silent session make room where there is none, of the longest silence first; others stay', async () => {
    let now = Date.now();
    await restart({}, () => now);
    const sessions = await Promise.all(Array.from({ length: 8 }, () => client.session()));
    const models: PlainModel[] = [];
    for (const session of sessions) {
      models.push(await client.train(session));
      now += 1000;
    }
    await client.post('session_heartbeat', { session_id: sessions[0] });
    const ninth = { session_id: await client.session(), model_seq_id: 0, base_model: 'small' };
    now += 50_000;
    expect((await client.post('create_model', ninth)).status).toBe(400);
    now += 9000;
    // A poll is a sign of life too.
    const polled = await models[1]!.step();
    now += 55_000;
    await client.result(polled);
    now += 6000;
    expect((await client.post('create_model', ninth)).status).toBe(200);
    const statuses = models.map(async ({ id }) => (await client.post('get_info', { model_id: id })).status);
    expect(await Promise.all(statuses)).toEqual([200, 200, 404, 200, 200, 200, 200, 200]);
  });
});

describe('seq_id', () => {
  it('is the order, whatever order requests arrive in and however often', async () => {
    const batches = [SAMPLES, OTHERS, SAMPLES.slice(1), OTHERS.slice(1)];
    const requests = (model: PlainModel): (() => Promise<Answered>)[] => [
      ...batches.flatMap((samples, i) => [
        () => model.pass(samples, { seqId: 2 * i + 1 }),
        () => model.post('optim_step', { adam_params: ADAM, seq_id: 2 * i + 2 }),
      ]),
      () => model.post('save_weights', { path: 'end', seq_id: 2 * batches.length + 1 }),
    ];
    const inOrder = await client.train();
    for (const send of requests(inOrder)) await client.result(send());
    const all = 2 * batches.length + 1;
    const arrival = fc.tuple(
      fc.shuffledSubarray([...Array(all).keys()], { minLength: all, maxLength: all }),
      fc.array(fc.nat(all - 1), { maxLength: 6 }),
    );
    await fc.assert(
      fc.asyncProperty(arrival, async ([order, repeated]) => {
        const model = await client.train();
        const sends = requests(model);
        const answered = await Promise.all([...order, ...repeated].map((at) => sends[at]!()));
        for (const one of answered) expect((await client.result(one))['error']).toBeUndefined();
        const ids = answered.map(({ json }) => json['request_id']);
        expect(ids.slice(all)).toEqual(repeated.map((at) => ids[order.indexOf(at)]));
        for (const file of ['model.safetensors', 'optimizer.safetensors']) {
          expect(await saved(model.id, 'end', file)).toEqual(await saved(inOrder.id, 'end', file));
        }
        await client.result(model.post('unload_model'));
      }),
      { numRuns: 8 },
    );
  });

  it('with another body is refused, and changes nothing', async () => {
    const model = await client.train();
    const first = await model.pass(SAMPLES);
    const other = await model.pass(OTHERS, { seqId: 1 });
    expect(other).toMatchObject({ status: 409, json: { error: { code: 'seq_id_reused' } } });
    expect(other.json['detail']).toContain('seq_id 1');
    expect((await model.post('optim_step', { adam_params: ADAM, seq_id: 1 })).status).toBe(409);
    expect((await client.passResult(first)).outputs).toHaveLength(SAMPLES.length);
  });

  it('that never comes fails what waits for it, after a while, and no step is taken on what is left', async () => {
    await restart({ gap: 300 });
    const model = await client.train();
    await client.result(model.pass(SAMPLES));
    model.seqId++;
    const waiting = [await model.pass(OTHERS), await model.step()];
    for (const one of waiting) expect(await client.result(one)).toMatchObject(failed('seq_id 2 did not come'));
    expect((await model.pass(OTHERS, { seqId: 2 })).status).toBe(409);
    expect(await client.result(model.step())).toMatchObject({ category: 'user' });
    expect(await weightsIn(model)).toEqual(await weightsOf(home.model));
  });

  it('of a request that was refused is used up: the next one does not wait for it', async () => {
    const model = await client.train();
    expect((await model.save('../etc')).status).toBe(400);
    await model.pass(SAMPLES);
    expect((await model.post('forward_backward', { forward_backward_input: {} })).status).toBe(400);
    // Half of the batch was refused.
    expect(await client.result(model.step())).toMatchObject(failed('seq_id 3'));
    expect(await client.result(model.save('fine'))).toMatchObject({ path: `tinker://${model.id}/weights/fine` });
    expect((await model.post('save_weights_external', { path: 'x' })).status).toBe(404);
    const large = { path: 'x', user_metadata: { a: 'b'.repeat(TINKER_LIMITS.smallJsonBytes) } };
    expect((await model.post('save_weights', large)).status).toBe(413);
    const huge = { forward_backward_input: 'x'.repeat(TINKER_LIMITS.jsonBytes) };
    expect((await model.post('forward_backward', huge)).status).toBe(413);
    expect(await client.result(model.save('next'))).toMatchObject({ path: `tinker://${model.id}/weights/next` });
  });
});

describe('a step', () => {
  const bad = { loss: 'no_such_loss' };

  it('is not taken when a forward_backward before it failed, even where others of the batch succeeded', async () => {
    const model = await client.train();
    // All are on their way before anybody knows: as clients send a batch in parts.
    const [, , stepped] = await Promise.all([model.pass(SAMPLES, bad), model.pass(OTHERS), model.step()]);
    expect(await client.result(stepped)).toMatchObject(failed('seq_id 1'));
    expect(await weightsIn(model)).toEqual(await weightsOf(home.model));
  });

  it('is taken on what came after the failure was known, and on nothing that came before', async () => {
    const model = await client.train();
    await client.result(model.pass(OTHERS));
    expect(await client.result(model.pass(SAMPLES, bad))).toMatchObject({ category: 'user' });
    await model.pass(SAMPLES);
    expect(await client.result(model.step())).toHaveProperty('metrics');
    const expected = await weightsOf(home.model, async (direct) => {
      await direct.forwardBackward(SAMPLES, importanceSampling());
      const { learning_rate: learningRate, eps: epsilon, weight_decay, grad_clip_norm, ...betas } = ADAM;
      await direct.optimStep({ learningRate, epsilon, weightDecay: weight_decay, maxGradNorm: grad_clip_norm, ...betas });
    });
    expect(await weightsIn(model)).toEqual(expected);
  });

  it('is not taken twice on one gradient, nor with settings that make no sense', async () => {
    const model = await client.train();
    await model.pass(SAMPLES);
    expect(await client.result(model.step())).toHaveProperty('metrics');
    expect(await client.result(model.step())).toMatchObject({ category: 'user' });
    await model.pass(SAMPLES);
    const wrong = model.post('optim_step', { adam_params: { ...ADAM, beta1: 1 } });
    expect(await client.result(wrong)).toMatchObject(failed('beta1'));
    expect(await client.result(model.step())).toMatchObject({ category: 'user' });
  });

  it('is refused with another optimizer than AdamW', async () => {
    const other = { optimizer_params: { type: 'dimuon', learning_rate: 1 } };
    const answered = await (await client.train()).post('optim_step', other);
    expect(answered).toMatchObject({ status: 400, json: { error: { code: 'not_offered' } } });
  });
});

describe('saved weights', () => {
  it('go on as if nothing had happened when they are loaded with the optimizer, and without it when they are not', async () => {
    const first = await client.train();
    await first.pass(SAMPLES);
    await first.step();
    const { path } = await client.result(first.save('half'));
    await first.pass(OTHERS);
    await first.step();
    await client.result(first.save('whole'));
    const ends: Buffer[] = [];
    for (const optimizer of [true, false]) {
      const other = await client.train();
      expect(await client.result(other.post('load_weights', { path, optimizer }))).toMatchObject({ path });
      await other.pass(OTHERS);
      await other.step();
      await client.result(other.save('whole'));
      ends.push(await saved(other.id, 'whole'));
    }
    expect(ends[0]).toEqual(await saved(first.id, 'whole'));
    expect(ends[1]).not.toEqual(ends[0]);
  });

  it('are loaded only as a model’s first request', async () => {
    const model = await client.train();
    const { path } = await client.result(model.save('mine'));
    expect(await client.result(model.post('load_weights', { path }))).toMatchObject(failed('first request'));
  });

  it('are not replaced unless that is asked for', async () => {
    const model = await client.train();
    await client.result(model.save('name'));
    expect(await client.result(model.save('name'))).toMatchObject({ category: 'user' });
    const before = await saved(model.id, 'name');
    await model.pass(SAMPLES);
    await model.step();
    await client.result(model.post('save_weights', { path: 'name', overwrite: true }));
    expect(await saved(model.id, 'name')).not.toEqual(before);
  });

  it('are listed, described and removed', async () => {
    const model = await client.train();
    const { path } = await client.result(model.save('listed'));
    const described = { base_model: 'small', is_lora: true, lora_rank: 4, full_parameter_training: true };
    expect((await client.post('weights_info', { tinker_path: path })).json).toMatchObject(described);
    const list = async () => (await client.get(`training_runs/${model.id}/checkpoints`)).json['checkpoints'];
    expect(await list()).toHaveLength(1);
    expect((await client.get(`training_runs/${model.id}`)).json).toMatchObject({ training_run_id: model.id, is_lora: false });
    await client.send(`training_runs/${model.id}/checkpoints/weights/listed`, undefined, {}, 'DELETE');
    expect(await list()).toHaveLength(0);
    expect((await client.post('weights_info', { tinker_path: path })).status).toBe(404);
  });
});
