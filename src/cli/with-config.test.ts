/** What wins: flags, then the named run, then the rest of the config file, then defaults; and how each value's origin is shown. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import type { ConfiguredVerb } from './verbs.ts';
import { withConfig } from './with-config.ts';

const CONFIG = {
  ...{ entry: 'agent.ts', heldOut: 'held-out.jsonl', steps: 20, group: 4, n: 3, loraRank: 8 },
  ...{ engine: 'openai', model: 'gpt-4o-mini', apiKeyEnv: 'MY_KEY', limits: { turns: 5, deadlineMs: 90_000 } },
  runs: { offline: { engine: 'embedded', steps: 7 } },
};
let [home, config] = ['', ''];
beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), 'trainyard-with-config-'));
  config = join(home, 'trainyard.config.mjs');
  await writeFile(config, `export default ${JSON.stringify(CONFIG)};`);
});
afterAll(() => rm(home, { recursive: true }));

const at = (name: string): string => join(home, name);
const given = (verb: ConfiguredVerb, flags: object, entry?: string) => withConfig(verb, entry, { json: false, config, ...flags });

async function printed(verb: ConfiguredVerb, flags: object): Promise<Readonly<Record<string, { value: unknown; from: string }>>> {
  const log = vi.spyOn(console, 'log').mockReturnValue();
  expect(await given(verb, { printConfig: true, json: true, ...flags })).toBeUndefined();
  const [said] = log.mock.calls.map(([text]) => JSON.parse(String(text)));
  log.mockRestore();
  return said.settings;
}

describe('a config file', () => {
  it('is what a command goes by, under the named run and the flags', async () => {
    const limits = { limits: { turns: 5, deadlineMs: 90_000 } };
    const api = { engine: 'openai', model: 'gpt-4o-mini', apiKeyEnv: 'MY_KEY' };
    const shared = { json: false, heldOut: at('held-out.jsonl'), ...limits };
    expect(await given('eval', {})).toMatchObject({ entry: at('agent.ts'), flags: { ...shared, ...api, n: 3 } });
    expect(await given('train', { use: 'offline', group: 6 }, 'other.ts')).toMatchObject({
      entry: 'other.ts',
      flags: { ...shared, engine: 'embedded', steps: 7, group: 6 },
    });
    expect(await given('try', { heldOut: 'mine.jsonl' })).toMatchObject({ flags: { heldOut: 'mine.jsonl', ...api } });
    expect(await given('preflight', {})).toMatchObject({
      entry: at('agent.ts'),
      flags: { json: false, heldOut: at('held-out.jsonl') },
    });
  });

  it('gives way as a whole where a flag replaces a setting by another', async () => {
    const { flags } = (await given('eval', { checkpoint: 'runs/mine' }))!;
    expect(flags).not.toHaveProperty('engine');
    expect(flags).not.toHaveProperty('model');
    expect((await given('eval', { model: home }))?.flags).not.toHaveProperty('engine');
    expect((await given('train', { split: 0.1 }))?.flags).not.toHaveProperty('heldOut');
  });

  it('is not asked by a resumed run, nor with --no-config', async () => {
    expect(await withConfig('train', undefined, { resume: 'runs/a' })).toMatchObject({ flags: { resume: 'runs/a' } });
    await expect(given('train', { resume: 'runs/a' })).rejects.toThrow('beside --resume');
    expect(await given('train', { config: false }, 'a.ts')).toMatchObject({ entry: 'a.ts', flags: { json: false } });
    await expect(given('train', { use: 'ofline' })).rejects.toThrow('expected the name of a run, found "ofline"');
    await expect(given('train', { use: 'x', config: false })).rejects.toThrow('there is no config file');
  });

  it('is printed with where each value comes from', async () => {
    const found = await printed('train', { use: 'offline', seed: 9 });
    expect(found).toMatchObject({
      entry: { value: at('agent.ts'), from: config },
      steps: { value: 7, from: `${config}: runs.offline` },
      'limits.deadlineMs': { value: 90_000, from: config },
      'limits.tokens': { value: 4096, from: 'default' },
      'adam.beta1': { value: 0.9, from: 'default' },
      seed: { value: 9, from: 'flag' },
      baseURL: { value: null, from: 'default' },
    });
    expect(found).not.toHaveProperty('n');
    vi.stubEnv('OPENAI_BASE_URL', 'http://127.0.0.1:9/v1');
    expect(await printed('eval', {})).toMatchObject({
      baseURL: { value: 'http://127.0.0.1:9/v1', from: 'environment: OPENAI_BASE_URL' },
      model: { value: 'gpt-4o-mini', from: config },
    });
    vi.unstubAllEnvs();
  });
});
