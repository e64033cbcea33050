import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { filesIn, writeFiles } from './files.ts';

let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'trainyard-files-'));
});
afterAll(() => rm(root, { recursive: true }));

it('the files of a rollout arrive as they were, in place of what is there; links stay behind', async () => {
  const [from, to] = [join(root, 'from'), join(root, 'to')];
  await mkdir(join(from, 'in/it'), { recursive: true });
  await writeFile(join(from, 'in/it/a'), Buffer.from([0, 255]));
  await writeFile(join(from, 'b'), '', { mode: 0o755 });
  await symlink('/etc/passwd', join(from, 'link'));
  await mkdir(to);
  await writeFile(join(to, 'old'), '');
  await writeFiles(to, await filesIn(from));
  expect((await readdir(to, { recursive: true })).toSorted()).toEqual(['b', 'in', 'in/it', 'in/it/a']);
  expect([...(await readFile(join(to, 'in/it/a')))]).toEqual([0, 255]);
  expect((await stat(join(to, 'b'))).mode & 0o777).toBe(0o755);
  expect(await readdir(root)).not.toContain('from');
});

it('a rollout that asked for its folder and left it empty has one; others have none', async () => {
  await mkdir(join(root, 'empty'));
  await writeFiles(join(root, 'made'), await filesIn(join(root, 'empty')));
  expect(await readdir(join(root, 'made'))).toEqual([]);
  expect(await filesIn(join(root, 'never'))).toEqual([]);
});

it.each(['../out', 'a/../../out', '/out', 'a//b', ''])('a file named %j is refused', async (path) => {
  await expect(writeFiles(join(root, 'safe'), [{ path, mode: 0o644, bytes: Buffer.from('x') }])).rejects.toThrow(
    'outside its folder',
  );
  expect(await readdir(root)).not.toContain('safe');
});
