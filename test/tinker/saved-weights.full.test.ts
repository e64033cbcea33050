/** Weights saved at a Tinker server and loaded again: what is trained has the weights that were asked for, or is not trained. */
import { mkdir, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { formatWeightsPath } from '../../src/tinker/wire/tinker-messages.ts';
import { REGULAR, randomSample } from '../fixtures/nn/models.ts';
import { ADAM, type Answered, type PlainClient, passOf, scratch, serve } from '../fixtures/tinker/server.ts';

let home: Awaited<ReturnType<typeof scratch>>;
let served: Awaited<ReturnType<typeof serve>>;
let client: PlainClient;
let modelId: string;
beforeAll(async () => {
  home = await scratch();
  served = await serve(home, { gap: 300 });
  client = served.client;
});
afterAll(async () => {
  await served.close();
  await home.remove();
});
beforeEach(async () => {
  modelId = await client.model();
  return async () => void (await client.result(await client.post('unload_model', { model_id: modelId })));
});

const SAMPLES = [randomSample(REGULAR, 12, 1, { prompt: 4 })];
const post = (verb: string, seq_id: number | undefined, more: object = {}): Promise<Answered> =>
  client.post(verb, { model_id: modelId, seq_id, ...more });
const step = (seqId: number): Promise<Answered> => post('optim_step', seqId, { adam_params: ADAM });
const NOWHERE = 'tinker://nobody/weights/nothing';

describe('weights that could not be loaded', () => {
  it('are not replaced by the base model’s: what was sent behind the request fails', async () => {
    const load = await post('load_weights', 1, { path: NOWHERE, optimizer: true });
    const pass = await client.pass(passOf(modelId, 2, SAMPLES));
    const stepped = await step(3);
    const saved = await post('save_weights_for_sampler', 4);
    expect(await client.result(load)).toMatchObject({ error: expect.stringContaining('there is nothing saved') });
    for (const answered of [pass, stepped, saved]) {
      expect(await client.result(answered)).toMatchObject({
        error: expect.stringContaining('were not loaded'),
        category: 'user',
      });
    }
  });

  it.each([
    ['the path is none', { path: '../../etc', optimizer: true }],
    ['they have no optimizer state', { path: 'tinker://someone/sampler_weights/final', optimizer: true }],
  ])('are not replaced where the request was refused at once: %s', async (_, asked) => {
    expect((await post('load_weights', 1, asked)).status).toBe(400);
    expect(await client.result(await client.pass(passOf(modelId, 2, SAMPLES)))).toMatchObject({
      error: expect.stringContaining('were not loaded'),
    });
  });

  it('are not replaced where the request came too late for its turn', async () => {
    const load = await post('load_weights', 2, { path: NOWHERE, optimizer: true });
    expect(await client.result(load)).toMatchObject({ error: expect.stringContaining('did not come') });
    expect(await client.result(await client.pass(passOf(modelId, 3, SAMPLES)))).toMatchObject({
      error: expect.stringContaining('were not loaded'),
    });
  });

  it('give way to others that can be', async () => {
    const { path } = await client.result(await client.post('save_weights', { model_id: await client.model(), path: 'good' }));
    await client.result(await post('load_weights', 1, { path: NOWHERE, optimizer: true }));
    expect(await client.result(await post('load_weights', 2, { path, optimizer: true }))).toMatchObject({ path });
    await client.pass(passOf(modelId, 3, SAMPLES));
    expect(await client.result(await step(4))).toHaveProperty('metrics');
  });

  it('because the model was used before stop the step that was sent behind the request', async () => {
    const { path } = await client.result(await post('save_weights', 1, { path: 'used' }));
    await post('load_weights', 2, { path, optimizer: true });
    await client.pass(passOf(modelId, 3, SAMPLES));
    expect(await client.result(await step(4))).toMatchObject({
      error: expect.stringContaining('the load_weights before it (seq_id 2) failed'),
    });
  });
});

describe('a name', () => {
  it('has up to 255 letters, and can be overwritten and removed', async () => {
    const name = 'n'.repeat(255);
    const path = formatWeightsPath({ modelId, kind: 'weights', name });
    expect(await client.result(await post('save_weights', 1, { path: name }))).toMatchObject({ path });
    expect(await client.result(await post('save_weights', 2, { path: name, overwrite: true }))).toMatchObject({ path });
    const removed = await client.send(`training_runs/${modelId}/checkpoints/weights/${name}`, undefined, {}, 'DELETE');
    expect(removed.status).toBe(200);
    expect((await readdir(join(home.state, modelId, 'weights'))).filter((left) => left.includes('n'.repeat(9)))).toEqual([]);
  });

  it('that is taken by something without a label is not written over', async () => {
    const place = join(home.state, modelId, 'weights', 'mine');
    await mkdir(place, { recursive: true });
    await writeFile(join(place, 'model.safetensors'), 'precious');
    expect(await client.result(await post('save_weights', 1, { path: 'mine' }))).toHaveProperty('error');
    expect(await readdir(place)).toEqual(['model.safetensors']);
    expect(await readdir(join(home.state, modelId, 'weights', '.unfinished'))).toEqual([]);
  });

  it('can be removed while it is saved again and again: what was acknowledged is whole', { timeout: 60_000 }, async () => {
    const place = join(home.state, modelId, 'weights', 'busy');
    await client.result(await post('save_weights', undefined, { path: 'busy' }));
    const files = (await readdir(place)).toSorted();
    for (let i = 0; i < 40; i++) {
      const removing = client.send(`training_runs/${modelId}/checkpoints/weights/busy`, undefined, {}, 'DELETE');
      const saved = await client.result(await post('save_weights', undefined, { path: 'busy', overwrite: true }));
      await removing;
      expect(saved).toHaveProperty('path');
      const found = (await readdir(place).catch(() => [])).toSorted();
      if (found.length > 0) expect(found).toEqual(files);
      else await client.result(await post('save_weights', undefined, { path: 'busy' }));
    }
  });
});

it('what a request made up is quoted in part only', async () => {
  const answered = await client.pass({ ...passOf(modelId, 1, SAMPLES), loss: 'x'.repeat(5_000_000) });
  expect(String((await client.result(answered))['error']).length).toBeLessThan(2000);
});
