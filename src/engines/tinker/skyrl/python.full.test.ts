import { chmod, readdir, writeFile } from 'node:fs/promises';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { folderOfEach } from '../../../../test/fixtures/folder.ts';
import { refusal } from '../../../../test/fixtures/refusal.ts';
import { preparePython } from './python.ts';

/** Programs that say what interpreters say, alone on the PATH. */
const at = folderOfEach();

beforeEach(() => {
  vi.stubEnv('PATH', at());
  vi.stubEnv('XDG_CACHE_HOME', at('cache'));
});
afterEach(() => void vi.unstubAllEnvs());

async function program(name: string, script: string): Promise<string> {
  const path = at(name);
  await writeFile(path, `#!/bin/sh\n${script}\n`);
  await chmod(path, 0o755);
  return path;
}

const says = (found: object): string => `echo '${JSON.stringify(found)}'`;
const WHOLE = { version: [3, 12, 3], missing: [], skyrl: '0.4.0', platform: 'cpu' };
const prepare = (python?: string, cpu = true) =>
  preparePython({ python, cpu, stop: new AbortController().signal, tell: () => {} });
const refused = (message: string, hint = '') => refusal('USAGE', message, hint);

describe('the Python of SkyRL', () => {
  it('is the one that was named, if it has everything', async () => {
    const python = await program('mine', says(WHOLE));
    expect(await prepare(python)).toEqual({ python, skyrl: '0.4.0' });
  });

  it.each<[string, string, string, string]>([
    ['is too old', says({ version: [3, 11, 2] }), 'is Python 3.11.2, expected 3.12', 'install Python 3.12'],
    ['lacks packages', says({ ...WHOLE, missing: ['jax', 'skyrl'] }), 'it lacks jax, skyrl', 'requirements.txt'],
    ['is no Python', 'echo no such option >&2; exit 1', 'no such option', '--python'],
  ])('is refused if it %s', async (_, script, message, hint) => {
    await expect(prepare(await program('mine', script))).rejects.toMatchObject(refused(message, hint));
  });

  it('is refused where no Python is new enough for one of its own', async () => {
    await program('python3', 'echo 3 11');
    await expect(prepare()).rejects.toMatchObject(refused('python3 is 3.11'));
  });

  it('is made whole or not at all', async () => {
    // Makes the environment, in which installing fails.
    await program('python3.12', `case $1 in -c) echo 3 12;; *) /bin/mkdir -p "$4/bin"; echo 'exit 7' > "$4/bin/python"; esac`);
    await expect(prepare()).rejects.toMatchObject({ code: 'DOWNLOAD_FAILED' });
    expect(await readdir(at('cache/trainyard'))).toEqual([]);
  });
});

it.each<[string, string | undefined, string]>([
  ['there is no nvidia-smi', undefined, 'there is no nvidia-smi'],
  ['nvidia-smi fails', 'echo driver not loaded; exit 9', 'nvidia-smi failed: driver not loaded'],
  ['jax does not see it', 'exit 0', 'sees no GPU'],
])('a GPU is missed if %s', async (_, smi, message) => {
  if (smi !== undefined) await program('nvidia-smi', smi);
  const python = await program('mine', says(WHOLE));
  await expect(prepare(python, false)).rejects.toMatchObject(refused(message, '--cpu'));
});
