import { cp, mkdir, readFile, symlink, utimes, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { folderOfEach } from '../../test/fixtures/folder.ts';
import { BASE_MODEL } from '../settings/settings.ts';
import { EmbeddedModel } from './embedded/embedded-model.ts';
import { LORA_TARGETS } from './embedded/lora.ts';
import { hubCache, hubNameOf, resolveModel, withModelPath } from './model-path.ts';
import { openPolicy } from './open-policy.ts';

const SHA = 'c'.repeat(40);
const OLDER = 'd'.repeat(40);
const at = folderOfEach();

beforeEach(() => {
  vi.stubEnv('HF_HUB_CACHE', at('cache'));
});
afterEach(() => void vi.unstubAllEnvs());

async function put(path: string, text = ''): Promise<string> {
  await mkdir(dirname(at(path)), { recursive: true });
  await writeFile(at(path), text);
  return at(path);
}

async function cached(id: string, files: readonly string[], sha = SHA): Promise<string> {
  const repository = `cache/models--${id.replace('/', '--')}`;
  await put(`${repository}/refs/main`, `${SHA}\n`);
  for (const file of files) await put(`${repository}/snapshots/${sha}/${file}`);
  return at(repository, 'snapshots', sha);
}

const WHOLE = ['config.json', 'model.safetensors', 'tokenizer.json'];

/** What the user reads. */
async function refusal(name: string): Promise<string> {
  const error = await resolveModel(name).then(
    (path) => expect.fail(`found ${path}`),
    (thrown: Error & { readonly hint?: string }) => thrown,
  );
  expect(error).toMatchObject({ code: 'FILE_NOT_FOUND' });
  return `${error.message}\n${error.hint}`;
}

describe('--model', () => {
  it('is a folder, whatever it holds, also where a model in the cache has the same name', async () => {
    await cached('models/base', WHOLE);
    for (const name of ['models/base', './models/base', resolve('models/base')]) {
      expect(await resolveModel(name)).toBe(resolve('models/base'));
    }
  });

  it('is a GGUF file, by its ending or its first bytes', async () => {
    const named = await put('tiny.Q4_0.gguf', 'anything');
    expect(await resolveModel(named)).toBe(named);
    const ollama = await put('blobs/sha256-0a', 'GGUF');
    expect(await resolveModel(ollama)).toBe(ollama);
    expect(await refusal(await put('blobs/text', 'some text'))).toContain('not a GGUF file');
  });

  it('is a model in the cache: the snapshot of main, or the newest that has weights', async () => {
    const old = await cached('Owner/Tiny-1.5_B', WHOLE, OLDER);
    expect(await resolveModel('Owner/Tiny-1.5_B')).toBe(old);
    const main = await cached('Owner/Tiny-1.5_B', ['config.json']);
    await utimes(old, 1, 1);
    expect(await resolveModel('Owner/Tiny-1.5_B')).toBe(old);
    await put(`cache/models--Owner--Tiny-1.5_B/snapshots/${SHA}/model-00001-of-00002.safetensors`);
    expect(await resolveModel('Owner/Tiny-1.5_B')).toBe(main);
  });

  it('needs no weights in the cache where they are at a server', async () => {
    const folder = await cached('Owner/Large', ['config.json', 'tokenizer.json']);
    expect(await resolveModel('Owner/Large', 'text')).toBe(folder);
    expect(await withModelPath({ engine: 'tinker', model: 'Owner/Large' })).toEqual({ engine: 'tinker', model: folder });
    expect(await refusal('Owner/Large')).toContain('Owner/Large in');
  });

  it('is one GGUF file of a repository, by its name if there are several', async () => {
    const folder = await cached('Owner/Tiny-GGUF', ['a.Q4_0.gguf']);
    expect(await resolveModel('Owner/Tiny-GGUF')).toBe(join(folder, 'a.Q4_0.gguf'));
    await cached('Owner/Tiny-GGUF', ['deep/b.Q8_0.gguf']);
    expect(await refusal('Owner/Tiny-GGUF')).toContain('Owner/Tiny-GGUF:a.Q4_0.gguf, Owner/Tiny-GGUF:deep/b.Q8_0.gguf');
    expect(await resolveModel('Owner/Tiny-GGUF:deep/b.Q8_0.gguf')).toBe(join(folder, 'deep/b.Q8_0.gguf'));
    expect(await refusal('Owner/Tiny-GGUF:c.gguf')).toMatch(/lacks c\.gguf\n.*trainyard model get Owner\/Tiny-GGUF c\.gguf/);
  });

  it('is left alone behind an API, and where none is given', async () => {
    const api = { engine: 'openai', model: 'Owner/Name' } as const;
    expect(await withModelPath(api)).toBe(api);
    expect(await withModelPath({ engine: 'embedded' })).toEqual({ engine: 'embedded' });
  });
});

describe('a model that is not there', () => {
  it('is told by what would download it', async () => {
    expect(await refusal('Owner/Name')).toBe(
      `no model folder at Owner/Name, and no model of that name is in ${at('cache')}\ndownload it from the Hugging Face hub: trainyard model get Owner/Name`,
    );
    const gone = at('cache/models--Owner--Name/snapshots', SHA);
    expect(await refusal(gone)).toContain('trainyard model get Owner/Name');
    expect(await refusal(join(gone, 'a b.gguf'))).toContain("trainyard model get Owner/Name 'a b.gguf'");
  });

  it('is told by a name near to it, beside it or in the cache', async () => {
    await put('models/tiny/config.json');
    expect(await refusal(at('models/tinny'))).toContain(`did you mean ${at('models/tiny')}?`);
    await cached('Owner/Smol-Instruct', WHOLE);
    expect(await refusal('Owner/Smol-Instuct')).toContain('did you mean Owner/Smol-Instruct? Or download');
    expect(await refusal('smol-instruct')).toContain('did you mean Owner/Smol-Instruct?');
    expect(await refusal('something')).toContain('a .gguf file, or a model that trainyard model get Owner/Name downloaded');
  });

  it('is told by its folder if a file in it was named', async () => {
    const weights = await put('tiny/model.safetensors');
    await put('tiny/config.json');
    expect(await refusal(weights)).toContain(`did you mean its folder, ${at('tiny')}?`);
  });

  it('is told by what is missing if the cache lost or never had its weights', async () => {
    const folder = await cached('Owner/Name', ['config.json']);
    await symlink('../../blobs/gone', join(folder, 'model.safetensors'));
    expect(await refusal('Owner/Name')).toMatch(/Owner\/Name in .* lacks its weights\n.*trainyard model get Owner\/Name$/);
  });
});

describe('the cache', () => {
  it('is that of Hugging Face’s own programs', () => {
    expect(hubCache({ HF_HUB_CACHE: '/a', HF_HOME: '/b' })).toBe('/a');
    expect(hubCache({ HF_HUB_CACHE: '', HF_HOME: '/b' })).toBe('/b/hub');
    expect(hubCache({ XDG_CACHE_HOME: '/c' })).toBe('/c/huggingface/hub');
    expect(hubCache({})).toMatch(/\.cache\/huggingface\/hub$/);
  });

  it('gives its models the names that they have at the hub', () => {
    expect(hubNameOf(`/x/models--A-B--c--d/snapshots/${SHA}`)).toBe('A-B/c--d');
    expect(hubNameOf(`/x/models--A--c/snapshots/${SHA}/q/d.gguf`)).toBe('A/c:q/d.gguf');
    expect(hubNameOf('/x/models/base')).toBeUndefined();
  });
});

describe('an adapter as --model', () => {
  const open = (model: string, more: { readonly trained?: 'all'; readonly loraRank?: number } = {}) =>
    openPolicy({ engine: 'embedded', model, threads: 1, seed: 1, baseModel: undefined, baseURL: undefined, ...more }, 1, {
      warn: () => {},
      stop: AbortSignal.timeout(60_000),
    });

  async function savedAdapter(): Promise<string> {
    const adapter = at('adapter');
    await mkdir(adapter);
    const lora = { rank: 2, alpha: 4, targets: LORA_TARGETS };
    await using trained = await EmbeddedModel.open({ dir: BASE_MODEL, threads: 1, lora });
    await trained.save(adapter);
    return adapter;
  }

  it('has a base that is found as --model is, by a name at the hub too; one that is missing is told', async () => {
    const adapter = await savedAdapter();
    const config = join(adapter, 'adapter_config.json');
    const named = async (base: string) => {
      const fields = JSON.parse(await readFile(config, 'utf8')) as object;
      await writeFile(config, JSON.stringify({ ...fields, base_model_name_or_path: base }));
    };
    await named('Owner/Tiny');
    await expect(open(adapter)).rejects.toMatchObject({
      code: 'FILE_NOT_FOUND',
      message: expect.stringMatching(/is an adapter, and its base model is missing: no model folder at Owner\/Tiny/) as string,
      hint: expect.stringMatching(/trainyard model get Owner\/Tiny/) as string,
    });
    await cp(BASE_MODEL, await cached('Owner/Tiny', []), { recursive: true });
    await (await open(adapter))[Symbol.asyncDispose]();
    await named(at('moved'));
    await expect(open(adapter)).rejects.toMatchObject({
      message: expect.stringContaining(at('moved')) as string,
      hint: expect.stringMatching(/base_model_name_or_path/) as string,
    });
  });

  it('goes on with its own rank: another one, or all parameters, are refused', async () => {
    const adapter = await savedAdapter();
    await expect(open(adapter, { loraRank: 8 })).rejects.toMatchObject({ code: 'CHECKPOINT_MISMATCH' });
    await expect(open(adapter, { trained: 'all' })).rejects.toMatchObject({ code: 'USAGE' });
    await (await open(adapter, { loraRank: 2 }))[Symbol.asyncDispose]();
  });
});
