/** Weights saved at a Tinker server and loaded again: what is trained has the weights that were asked for, or is not trained. */
import { mkdir, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { formatWeightsPath } from '../../src/engines/tinker/wire/tinker-messages.ts';
import { REGULAR, randomSample } from '../fixtures/nn/models.ts';
import { type PlainClient, type PlainModel, useServer } from '../fixtures/tinker/server.ts';

const home = useServer({ gap: 300 });
let client: PlainClient;
let model: PlainModel;
beforeEach(async () => {
  client = home.client;
  model = await client.train();
  return async () => void (await client.result(model.post('unload_model')));
});

const SAMPLES = [randomSample(REGULAR, 12, 1, { prompt: 4 })];
const failed = (error: string) => ({ category: 'user', error: expect.stringContaining(error) });
const NOWHERE = 'tinker://nobody/weights/nothing';

describe('weights that could not be loaded', () => {
  it('are not replaced by the base model’s: what was sent behind the request fails', async () => {
    const load = await model.post('load_weights', { path: NOWHERE, optimizer: true });
    const behind = [await model.pass(SAMPLES), await model.step(), await model.post('save_weights_for_sampler')];
    expect(await client.result(load)).toMatchObject(failed('there is nothing saved'));
    for (const answered of behind) expect(await client.result(answered)).toMatchObject(failed('were not loaded'));
  });

  it.each([
    ['the path is none', { path: '../../etc', optimizer: true }],
    ['they have no optimizer state', { path: 'tinker://someone/sampler_weights/final', optimizer: true }],
  ])('are not replaced where the request was refused at once: %s', async (_, asked) => {
    expect((await model.post('load_weights', asked)).status).toBe(400);
    expect(await client.result(model.pass(SAMPLES))).toMatchObject(failed('were not loaded'));
  });

  it('are not replaced where the request came too late for its turn', async () => {
    model.seqId++;
    expect(await client.result(model.post('load_weights', { path: NOWHERE }))).toMatchObject(failed('did not come'));
    expect(await client.result(model.pass(SAMPLES))).toMatchObject(failed('were not loaded'));
  });

  it('give way to others that can be', async () => {
    const { path } = await client.result((await client.train()).save('good'));
    await client.result(model.post('load_weights', { path: NOWHERE, optimizer: true }));
    expect(await client.result(model.post('load_weights', { path, optimizer: true }))).toMatchObject({ path });
    await model.pass(SAMPLES);
    expect(await client.result(model.step())).toHaveProperty('metrics');
  });

  it('because the model was used before stop the step that was sent behind the request', async () => {
    const { path } = await client.result(model.save('used'));
    await model.post('load_weights', { path, optimizer: true });
    await model.pass(SAMPLES);
    expect(await client.result(model.step())).toMatchObject(failed('the load_weights before it (seq_id 2) failed'));
  });
});

describe('a name', () => {
  it('has up to 255 letters, and can be overwritten and removed', async () => {
    const name = 'n'.repeat(255);
    const path = formatWeightsPath({ modelId: model.id, kind: 'weights', name });
    expect(await client.result(model.save(name))).toMatchObject({ path });
    expect(await client.result(model.post('save_weights', { path: name, overwrite: true }))).toMatchObject({ path });
    const removed = await client.send(`training_runs/${model.id}/checkpoints/weights/${name}`, undefined, {}, 'DELETE');
    expect(removed.status).toBe(200);
    expect((await readdir(join(home.state, model.id, 'weights'))).filter((left) => left.includes('n'.repeat(9)))).toEqual([]);
  });

  it('that is taken by something without a label is not written over', async () => {
    const place = join(home.state, model.id, 'weights', 'mine');
    await mkdir(place, { recursive: true });
    await writeFile(join(place, 'model.safetensors'), 'precious');
    expect(await client.result(model.save('mine'))).toHaveProperty('error');
    expect(await readdir(place)).toEqual(['model.safetensors']);
    expect(await readdir(join(home.state, model.id, 'weights', '.unfinished'))).toEqual([]);
  });

  it('can be removed while it is saved again and again: what was acknowledged is whole', { timeout: 60_000 }, async () => {
    const place = join(home.state, model.id, 'weights', 'busy');
    await client.result(model.save('busy'));
    const files = (await readdir(place)).toSorted();
    for (let i = 0; i < 40; i++) {
      const removing = client.send(`training_runs/${model.id}/checkpoints/weights/busy`, undefined, {}, 'DELETE');
      const saved = await client.result(model.post('save_weights', { path: 'busy', overwrite: true }));
      await removing;
      expect(saved).toHaveProperty('path');
      const found = (await readdir(place).catch(() => [])).toSorted();
      if (found.length > 0) expect(found).toEqual(files);
      else await client.result(model.save('busy'));
    }
  });
});

it('what a request made up is quoted in part only', async () => {
  const { error } = await client.result(model.pass(SAMPLES, { loss: 'x'.repeat(5_000_000) }));
  expect(String(error).length).toBeLessThan(2000);
});
