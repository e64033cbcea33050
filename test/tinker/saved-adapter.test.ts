/** Adapters fetched from a Tinker server that plays a script, and archives that are not what they should be. */
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import { writeSafetensors } from '../../src/engines/embedded/model/safetensors.ts';
import { fetchSavedAdapter, readArchive } from '../../src/engines/tinker/client/saved-adapter.ts';
import { temporaryFolder } from '../fixtures/folder.ts';
import { failure, type Script, ScriptedServer } from '../fixtures/tinker/scripted-server.ts';

interface Entry {
  readonly name: string;
  readonly content?: string | Uint8Array;
  readonly type?: string;
  /** Said in the header, whatever the content has. */
  readonly size?: number;
}

function tar(...entries: readonly Entry[]): Buffer {
  const blocks = entries.flatMap(({ name, content = '', type = '0', size }) => {
    const bytes = Buffer.from(content);
    const header = Buffer.alloc(512);
    header.write(name);
    header.write(`${(size ?? bytes.length).toString(8).padStart(11, '0')}\0`, 124);
    header.write(' '.repeat(8), 148);
    header.write(type, 156);
    const checksum = header.reduce((sum, byte) => sum + byte, 0);
    header.write(`${checksum.toString(8).padStart(6, '0')}\0 `, 148);
    return [header, bytes, Buffer.alloc(-bytes.length & 511)];
  });
  return gzipSync(Buffer.concat([...blocks, Buffer.alloc(1024)]));
}

describe('an archive', () => {
  it('gives the files of these names, and nothing else that it holds', async () => {
    const archive = tar(
      { name: 'pax', content: '30 mtime=1.5\n', type: 'x' },
      { name: '../../wanted', content: 'outside' },
      { name: '/wanted', content: 'absolute' },
      { name: 'wanted', content: 'a link', type: '2' },
      { name: './wanted', content: 'the file' },
      { name: 'wanted', content: 'a second one' },
    );
    expect(await readArchive(archive, ['wanted'])).toEqual(new Map([['wanted', Buffer.from('the file')]]));
  });

  it.each<[string, Buffer, string]>([
    ['no gzip', Buffer.from('plain'), 'cannot be decompressed'],
    ['no tar', gzipSync(Buffer.alloc(2048, 'x')), 'no tar file'],
    ['a file longer than the archive', tar({ name: 'wanted', size: 1e9 }), 'breaks off in "wanted"'],
    ['no such file', tar({ name: 'other' }), 'holds no file wanted'],
  ])('is refused if it is %s', async (_, archive, says) => {
    await expect(readArchive(archive, ['wanted'])).rejects.toMatchObject(failure('POLICY_GARBLED', says));
  });
});

describe('an adapter at a server', () => {
  const matrix = { shape: [1, 1], data: Float32Array.of(1) };
  const tensors = ['q_proj', 'down_proj'].flatMap((part) =>
    ['A', 'B'].map((letter) => ({ ...matrix, name: `base_model.model.model.layers.0.x.${part}.lora_${letter}.weight` })),
  );
  let archive: Buffer;
  beforeEach(async () => {
    const path = join(temporaryFolder(), 'weights');
    await writeSafetensors(path, tensors, {});
    archive = tar(
      { name: 'adapter_config.json', content: '{"r":1,"target_modules":null}' },
      { name: 'adapter_model.safetensors', content: await readFile(path) },
    );
  });
  /** The archive is at another path of the server, as SkyRL has it. */
  const serving: Script = ({ verb, json }) => {
    if (verb === 'create_model') return { json: { model_id: 'm', request_id: 'created' } };
    if (verb === 'retrieve_future') return { json: { path: 'tinker://m/weights/s', of: json['request_id'] } };
    if (/^training_runs\/m\/checkpoints\/export-[\w-]+\/archive$/.test(verb))
      return { json: {}, status: 302, headers: { location: '/bytes' } };
    return verb === '/bytes' ? { raw: archive, type: 'application/octet-stream' } : undefined;
  };

  async function checkpointAt(server: ScriptedServer): Promise<string> {
    const dir = temporaryFolder();
    const state = { server: server.url, baseModel: 'b', loraRank: 1, path: 'tinker://m/weights/s', savedAt: 'now' };
    await writeFile(join(dir, 'tinker.json'), JSON.stringify(state));
    await writeFile(join(dir, 'config.json'), '{}');
    vi.stubEnv('TINKER_API_KEY', 'tml-0123456789abcdef');
    vi.stubEnv('TINKER_BASE_URL', undefined);
    return dir;
  }

  it('becomes a PEFT folder that names every adapted module, and leaves nothing at the server', async () => {
    await using server = await ScriptedServer.start(serving);
    const dir = await checkpointAt(server);
    const fetched = await fetchSavedAdapter(dir);
    expect((await readdir(fetched.folder)).toSorted()).toEqual([
      'adapter_config.json',
      'adapter_model.safetensors',
      'config.json',
    ]);
    const config = JSON.parse(await readFile(join(fetched.folder, 'adapter_config.json'), 'utf8'));
    expect(config).toEqual({ r: 1, target_modules: ['q_proj', 'down_proj'] });
    expect(server.of('load_weights')[0]?.json).toMatchObject({ path: 'tinker://m/weights/s' });
    const asked = server.asked.map(({ method, verb }) => `${method} ${verb.replace(/export-.*?(?=\/|$)/, 'NAME')}`);
    expect(asked.slice(-2)).toEqual(['DELETE training_runs/m/checkpoints/sampler_weights/NAME', 'POST unload_model']);
    await fetched[Symbol.asyncDispose]();
    await expect(readdir(fetched.folder)).rejects.toThrow('ENOENT');
  });

  it('is refused with the way out where a server gives no archives', async () => {
    await using server = await ScriptedServer.start((asked, count) =>
      asked.verb.endsWith('/archive') ? { json: { detail: 'no' }, status: 404 } : serving(asked, count),
    );
    const dir = await checkpointAt(server);
    const refused = { code: 'POLICY_REFUSED', hint: expect.stringContaining('--state') };
    await expect(fetchSavedAdapter(dir)).rejects.toMatchObject(refused);
  });
});
