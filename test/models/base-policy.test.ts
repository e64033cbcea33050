/** The committed base policy: complete, loadable, small, and weak in the way its README says. */
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { attemptAll, describeAll, heldOutShop, successRate } from '../../models/shop-rollouts.ts';
import { deskSuccess, triageSuccess } from '../../models/small-rollouts.ts';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { loadRenderer } from '../../src/tokens/renderer.ts';

const base = fileURLToPath(new URL('../../models/base', import.meta.url));

it('the files of the base policy are those of a model folder and a README, of at most 5 MB', () => {
  const files = ['README.md', 'config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json'];
  expect(readdirSync(base).toSorted()).toEqual(files);
  expect(files.reduce((sum, name) => sum + statSync(`${base}/${name}`).size, 0)).toBeLessThan(5_000_000);
});

describe('the base policy', () => {
  let model: EmbeddedModel;
  beforeAll(async () => {
    model = await EmbeddedModel.open({ dir: base });
  });
  afterAll(() => model.close());

  it('has the vocabulary of its tokenizer and the shape its config says', async () => {
    const config = JSON.parse(readFileSync(`${base}/config.json`, 'utf8')) as Record<string, unknown>;
    const renderer = await loadRenderer(base);
    expect(model.vocabSize).toBe(renderer.vocabSize);
    expect(model.contextLength).toBe(512);
    expect(config).toMatchObject({ hidden_size: 64, num_hidden_layers: 2, vocab_size: 640, max_position_embeddings: 512 });
  });

  it('mostly guesses, knows how to do the job, and rarely does it right', async () => {
    const renderer = await loadRenderer(base);
    const shop = heldOutShop(31, 300);
    const greedy = successRate(await attemptAll(model, renderer, shop, 0));
    const attempts = await attemptAll(model, renderer, shop, 1);
    expect(greedy).toBeLessThanOrEqual(0.2);
    expect(successRate(attempts)).toBeGreaterThan(0.02);
    expect(successRate(attempts)).toBeLessThan(0.15);
    expect(describeAll(attempts)[0]?.[0]).toBe('guess without a tool');
  });

  it('sorts messages by the wrong habit, and rightly now and then', async () => {
    const player = { engine: model, renderer: await loadRenderer(base) };
    expect(await triageSuccess({ ...player, temperature: 0 }, 32, 300)).toBeLessThan(0.45);
    const sampled = await triageSuccess({ ...player, temperature: 1 }, 32, 300);
    expect(sampled).toBeGreaterThan(0.25);
    expect(sampled).toBeLessThan(0.55);
  });

  it('takes orders without asking, and asks now and then', async () => {
    const player = { engine: model, renderer: await loadRenderer(base) };
    expect(await deskSuccess({ ...player, temperature: 0 }, 33, 300)).toBeLessThanOrEqual(0.2);
    const sampled = await deskSuccess({ ...player, temperature: 1 }, 33, 300);
    expect(sampled).toBeGreaterThan(0.05);
    expect(sampled).toBeLessThan(0.4);
  });
});
