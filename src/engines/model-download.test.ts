import { mkdir, readdir, readFile, readlink, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { folderOfEach } from '../../test/fixtures/folder.ts';
import { COMMIT, gitHash, type HubServer, hubServer, type Spoiled } from '../../test/fixtures/hub-server.ts';
import { takeLock } from '../store/files.ts';
import { digestsOf } from './checkpoint.ts';
import { type DownloadedModel, downloadModel } from './model-download.ts';
import { resolveModel } from './model-path.ts';

const ID = 'Owner/Tiny-Instruct';
const NAMES = ['config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json'];
const base = new Map<string, Buffer>();
const at = folderOfEach();
let server: HubServer;

beforeAll(async () => {
  for (const name of NAMES) base.set(name, await readFile(join('models/base', name)));
});
beforeEach(() => {
  vi.stubEnv('HF_HUB_CACHE', undefined);
  vi.stubEnv('HF_HOME', at());
  vi.stubEnv('HF_TOKEN', undefined);
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await server?.[Symbol.asyncDispose]();
});

async function hub(files: Iterable<readonly [string, Buffer]> = base): Promise<HubServer> {
  server = await hubServer(ID, new Map(files));
  vi.stubEnv('HF_ENDPOINT', `${server.url}/`);
  return server;
}

const get = (file?: string, id = ID): Promise<DownloadedModel> =>
  downloadModel(id, file, { signal: new AbortController().signal, onProgress: () => {} });

/** What the user reads. */
async function refusal(file?: string, id?: string): Promise<string> {
  const error = await get(file, id).then(
    () => expect.fail('it was downloaded'),
    (thrown: Error & { readonly hint?: string; readonly code?: string }) => thrown,
  );
  return `${error.code} ${error.message}\n${error.hint}`;
}

const folder = (): string => at('hub/models--Owner--Tiny-Instruct');
const blobs = (): Promise<string[]> => readdir(join(folder(), 'blobs'));
const asksFor = (name: string, host: 'hub' | 'storage' = 'storage') =>
  server.asked.filter(({ path, host: at }) => at === host && path.endsWith(name));
/** Spoils the answers to the weights, one after another; later ones are right. */
const spoilWeights = (...answers: readonly Spoiled[]): void => {
  let [next] = [0];
  server.spoil = (path) => (path === 'model.safetensors' ? answers[next++] : undefined);
};

describe('a download', () => {
  it('is what --model finds, in the layout of Hugging Face’s own programs', async () => {
    await hub([
      ...base,
      ['README.md', Buffer.from('x')],
      ['onnx/model.onnx', Buffer.alloc(20_000)],
      ['chat_template.jinja', Buffer.from('{{ x }}')],
    ]);
    const seen: number[] = [];
    const model = await downloadModel(ID, undefined, {
      signal: new AbortController().signal,
      onProgress: (_, done, total) => void seen.push(done / total),
    });
    const path = await resolveModel(ID);
    expect(model).toEqual({ name: ID, path, commit: COMMIT, bytes: expect.any(Number) });
    expect(path).toBe(join(folder(), 'snapshots', COMMIT));
    expect(await readdir(path)).toEqual(['chat_template.jinja', ...NAMES]);
    const { 'chat_template.jinja': _, ...digests } = await digestsOf(path);
    const { 'README.md': _readme, ...expected } = await digestsOf('models/base');
    expect(digests).toEqual(expected);
    expect(await readFile(join(folder(), 'refs/main'), 'utf8')).toBe(COMMIT);
    expect(await readlink(join(path, 'config.json'))).toBe(`../../blobs/${gitHash(base.get('config.json')!)}`);
    expect(seen.at(-1)).toBe(1);
  });

  it('downloads nothing twice', async () => {
    await hub();
    const first = await get();
    const { length } = server.asked;
    expect(await get()).toEqual(first);
    expect(server.asked.slice(length).every(({ path }) => path.startsWith('/api/'))).toBe(true);
  });

  it('replaces a file that was damaged since', async () => {
    await hub();
    const { path } = await get();
    await writeFile(join(path, 'model.safetensors'), Buffer.from(base.get('model.safetensors')!).fill(7, 1_000, 1_001));
    await get();
    expect(await readFile(join(path, 'model.safetensors'))).toEqual(base.get('model.safetensors'));
    expect(asksFor('model.safetensors')).toHaveLength(2);
  });

  it('sends the token to the hub and to nobody else', async () => {
    vi.stubEnv('HF_TOKEN', 'hf_secret');
    await hub();
    await get();
    const sent = (host: string): unknown[] => server.asked.filter((one) => one.host === host).map((one) => one.authorization);
    expect(new Set(sent('hub'))).toEqual(new Set(['Bearer hf_secret']));
    expect(sent('storage')).toEqual([undefined, undefined]);
  });

  it('goes on where the connection was lost, as often as it gets on', async () => {
    await hub();
    spoilWeights(...Array.from({ length: 8 }, () => ({ cut: 50_000 })));
    await get();
    const ranges = asksFor('model.safetensors').map(({ range }) => Number(/\d+/.exec(range ?? '0')));
    expect(ranges).toHaveLength(9);
    expect(ranges).toEqual(ranges.toSorted((a, b) => a - b));
    expect(ranges.at(-1)).toBeGreaterThan(300_000);
    expect(await resolveModel(ID)).toContain(COMMIT);
  });

  it('begins a file anew at a server that knows no ranges', async () => {
    await hub();
    spoilWeights({ cut: 50_000 }, { whole: true });
    await get();
    expect(asksFor('model.safetensors')).toHaveLength(2);
  });

  it('gives up on a server that sends nothing more, and the next one goes on', async () => {
    await hub();
    spoilWeights({ cut: 50_000 }, { status: 503 });
    expect(await refusal()).toMatch(/^DOWNLOAD_FAILED .* answered 503 no luck\ntype the command again: it goes on/);
    await expect(resolveModel(ID)).rejects.toThrow('lacks its weights');
    await get();
    expect(asksFor('model.safetensors').at(-1)?.range).toMatch(/^bytes=[1-9]/);
  });

  it('stops at once when it is told to, and keeps what has arrived', async () => {
    await hub();
    spoilWeights({ hold: 100_000 });
    const stop = new AbortController();
    const onProgress = (file: string, done: number): void => {
      if (file === 'model.safetensors' && done > 100_000) stop.abort(new Error('enough'));
    };
    await expect(downloadModel(ID, undefined, { signal: stop.signal, onProgress })).rejects.toThrow('enough');
    expect((await blobs()).filter((name) => name.endsWith('.incomplete'))).toHaveLength(1);
  });
});

describe('what is not the file that the hub lists', () => {
  it.each([
    ['other bytes', () => Buffer.from(base.get('model.safetensors')!).fill(7, 1_000, 1_001)],
    ['more bytes', () => Buffer.concat([base.get('model.safetensors')!, Buffer.from('more')])],
  ])('is removed: %s', async (_, bytes) => {
    await hub();
    spoilWeights({ bytes: bytes() });
    expect(await refusal()).toMatch(
      /^DOWNLOAD_FAILED model\.safetensors is not the file that .* lists: expected the hash [0-9a-f]{64}, found/,
    );
    expect((await blobs()).filter((name) => name.endsWith('.incomplete'))).toEqual([]);
    await expect(resolveModel(ID)).rejects.toThrow('no model');
    await get();
    expect(asksFor('model.safetensors').at(-1)?.range).toBeUndefined();
  });

  it('is found in small files too, which have no SHA-256', async () => {
    await hub();
    await mkdir(join(folder(), 'blobs'), { recursive: true });
    const size = base.get('config.json')!.length;
    await writeFile(join(folder(), 'blobs', `${gitHash(base.get('config.json')!)}.incomplete`), Buffer.alloc(size, 'x'));
    expect(await refusal()).toContain('config.json is not the file');
    await get();
  });
});

describe('a repository', () => {
  const config = (fields: object): readonly [string, Buffer] => [
    'config.json',
    Buffer.from(JSON.stringify({ ...JSON.parse(base.get('config.json')!.toString()), ...fields })),
  ];

  it('of a model that the engine cannot compute is refused before its weights', async () => {
    await hub([...base, config({ model_type: 'gpt_neox' })]);
    expect(await refusal()).toMatch(/^MODEL_INVALID Owner\/Tiny-Instruct: config\.json: .*gpt_neox.*weights were not downloaded/);
    expect(asksFor('model.safetensors')).toEqual([]);
  });

  it('with shards is downloaded by its index', async () => {
    const shards = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'];
    const map = { weight_map: { a: shards[0], b: shards[1], c: shards[0] } };
    const index: readonly [string, Buffer] = ['model.safetensors.index.json', Buffer.from(JSON.stringify(map))];
    const whole = [...base].filter(([name]) => name !== 'model.safetensors');
    const both = shards.map((name) => [name, Buffer.from(name)] as const);
    await hub([...whole, index, ...both, ['consolidated.safetensors', Buffer.alloc(20_000)]]);
    expect(await readdir((await get()).path)).toEqual(
      ['config.json', ...shards, index[0], 'tokenizer.json', 'tokenizer_config.json'].toSorted(),
    );
    await server[Symbol.asyncDispose]();
    await rm(at(), { recursive: true });
    await hub([...whole, index, both[0]!]);
    expect(await refusal()).toMatch(/^MODEL_INVALID .* names no shards, or others than it has/);
  });

  it('of GGUF files gives one of them', async () => {
    const [small, large] = ['tiny.Q4_0.gguf', 'big files/tiny.Q8_0.gguf'];
    await hub([
      [small, Buffer.from('GGUF')],
      [large, Buffer.alloc(20_000)],
      ['t-00001-of-00002.gguf', Buffer.alloc(1)],
      ['config.json', Buffer.from('{}')],
    ]);
    expect(await refusal()).toMatch(
      /^USAGE .* holds 3 GGUF files: tiny\.Q4_0\.gguf \(1 kB\), .*\nname one: trainyard model get Owner/,
    );
    expect(await refusal('tiny.Q4_1.gguf')).toMatch(/holds no GGUF file tiny\.Q4_1\.gguf.*\nname one: .* tiny\.Q4_0\.gguf$/);
    expect(await refusal('t-00001-of-00002.gguf')).toContain('only a part');
    server.gguf = { architecture: 'mamba' };
    expect(await refusal(large)).toContain('is of the architecture "mamba", expected llama, qwen2, qwen3');
    server.gguf = { architecture: 'qwen3', total: 1 };
    const { name, path } = await get(large);
    expect(name).toBe(`${ID}:${large}`);
    expect(await resolveModel(name)).toBe(path);
    expect(await readFile(path)).toEqual(Buffer.alloc(20_000));
  });

  it.each([
    [['adapter_config.json', 'adapter_model.safetensors'], 'holds only an adapter'],
    [['config.json', 'pytorch_model.bin'], 'expected config.json, tokenizer.json and model.safetensors'],
    [['config.json', 'model.safetensors'], 'has no tokenizer.json'],
  ])('with only %j is refused', async (names, said) => {
    await hub(names.map((name) => [name, Buffer.from('{}')]));
    expect(await refusal()).toMatch(/^MODEL_INVALID/);
    expect(await refusal()).toContain(said);
    expect(server.asked.every(({ path }) => path.startsWith('/api/'))).toBe(true);
  });

  it('is downloaded by one process at a time', async () => {
    await hub();
    const locks = at('hub/.locks/models--Owner--Tiny-Instruct');
    await mkdir(locks, { recursive: true });
    using _lock = takeLock(locks);
    expect(await refusal()).toMatch(/^RUN_LOCKED another process is using/);
  });
});

describe('the hub', () => {
  it('that has no such model says so', async () => {
    await hub();
    expect(await refusal(undefined, 'Owner/Tinny')).toMatch(
      /^DOWNLOAD_FAILED there is no model Owner\/Tinny, or none that is public: .* answered 401 Repository not found\n.*for a private one set HF_TOKEN/,
    );
  });

  it('that keeps a model for some says how to become one of them', async () => {
    await hub();
    server.api = (to) => void to.writeHead(401, { 'x-error-code': 'GatedRepo', 'x-error-message': 'Access is restricted' }).end();
    expect(await refusal()).toMatch(
      new RegExp(
        `granted access: .* answered 401 Access is restricted\nask for access at ${server.url}/${ID}, then set HF_TOKEN`,
      ),
    );
    vi.stubEnv('HF_TOKEN', 'hf_secret');
    const said = await refusal();
    expect(said).toContain('give HF_TOKEN a token that has access');
    expect(said).not.toContain('hf_secret');
  });

  it.each([
    ['a page of a proxy', '<html>Please log in</html>'],
    ['a commit that is none', '{"sha":"../../../../etc"}'],
  ])('that answers %s is none', async (_, body) => {
    await hub();
    server.api = (to) => void to.end(body);
    expect(await refusal()).toContain(`answered something that is no reply of a hub: ${body}`);
  });

  const OTHER = '../../../models--Trusted--Model/snapshots/b2/model';
  it.each([
    ...['../../x.gguf', '/etc/x.gguf', 'a/../../x.gguf', 'a\\..\\x.gguf', 'a//x.gguf', './x.gguf', 'a/..', '', 'a/'],
    ...['\n', '\r', '\u2028', '\u2029', '\0', '\u007f', '\u0085', '\u001b[31m', '\u202e'].map((c) => `x${c}/${OTHER}.gguf`),
    `${'long/'.repeat(300)}x.gguf`,
  ])('that lists the file %j is none, and nothing of other models is touched', async (path) => {
    const other = at('hub/models--Trusted--Model/snapshots/b2/model.gguf');
    await mkdir(dirname(other), { recursive: true });
    await writeFile(other, 'mine');
    await hub([[path, Buffer.from('GGUF')]]);
    expect(await refusal()).toMatch(/^DOWNLOAD_FAILED http:.* lists the file ".*, which is no name for one\n/);
    expect(await readFile(other, 'utf8')).toBe('mine');
    expect(server.asked.every(({ path: asked }) => asked.startsWith('/api/'))).toBe(true);
  });

  it('that lists a shard elsewhere in an index touches nothing there', async () => {
    const shard = `x\n/../${OTHER}.safetensors`;
    const map = Buffer.from(JSON.stringify({ weight_map: { a: shard } }));
    await hub([...base, ['model.safetensors.index.json', map]].filter(([name]) => name !== 'model.safetensors') as never);
    expect(await refusal()).toMatch(/^MODEL_INVALID .* names no shards, or others than it has/);
  });

  it('that announces more than the disk has room for is refused before a byte of it, with both numbers', async () => {
    await hub();
    server.announced.set('model.safetensors', 9e15);
    expect(await refusal()).toMatch(/^DOWNLOAD_FAILED .* needs 9000000000 MB more, and .* has \d+ MB free\nmake room/);
    expect(asksFor('model.safetensors', 'hub')).toEqual([]);
  });

  it.each(['config.json', 'tokenizer.json'])('that lists a %s too large to be read is refused by its size', async (name) => {
    await hub();
    server.announced.set(name, 620e6);
    expect(await refusal()).toContain(`MODEL_INVALID ${ID} has a ${name} of 620 MB, expected 64 MB at most`);
    expect(asksFor(name, 'hub')).toEqual([]);
  });

  it.each(NAMES)('that lists an empty %s is told so', async (name) => {
    await hub([...base, [name, Buffer.alloc(0)]]);
    expect(await refusal()).toContain(`MODEL_INVALID ${ID} has an empty ${name}`);
  });

  it('that answers without end is heard no further than a reply can go', async () => {
    await hub();
    server.api = (to) => {
      to.writeHead(200);
      const more = (): void => {
        if (!to.destroyed) to.write(' '.repeat(1 << 20), () => setImmediate(more));
      };
      more();
    };
    expect(await refusal()).toMatch(/^DOWNLOAD_FAILED .* answered with more than a hub’s reply can have/);
  });

  it('that sends more than it announced is stopped there', async () => {
    await hub();
    let sent = 0;
    spoilWeights({ bytes: Buffer.alloc(50_000_000) });
    const onProgress = (_: string, done: number): void => {
      sent = Math.max(sent, done);
    };
    await expect(downloadModel(ID, undefined, { signal: new AbortController().signal, onProgress })).rejects.toThrow(
      'is not the file',
    );
    expect(sent).toBeLessThan(1_000_000);
  });

  it('that cannot be reached is named', async () => {
    await hub();
    await server[Symbol.asyncDispose]();
    expect(await refusal()).toMatch(/^DOWNLOAD_FAILED http:\/\/127\.0\.0\.1:\d+ cannot be reached: connect ECONNREFUSED/);
    vi.stubEnv('HF_ENDPOINT', 'hf-mirror');
    expect(await refusal()).toContain('HF_ENDPOINT: expected a URL such as https://huggingface.co, found "hf-mirror"');
  });

  it('is of no use if nothing can be written', async () => {
    await hub();
    await writeFile(at('file'), '');
    vi.stubEnv('HF_HOME', at('file'));
    expect(await refusal()).toMatch(/^DOWNLOAD_FAILED cannot write to .*: ENOTDIR.*\n.*set HF_HOME/);
  });
});
