/** Paths that lead to no file of tasks are named, and nothing waits for them. */
import { execFileSync } from 'node:child_process';
import { mkdtemp, open, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { readTasks } from './tasks.ts';

let dir = '';
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'data-file-'));
  await writeFile(join(dir, 'good.jsonl'), '{"prompt":"a"}\n');
  await symlink(join(dir, 'good.jsonl'), join(dir, 'link.jsonl'));
  await symlink('/dev/zero', join(dir, 'zero.jsonl'));
  execFileSync('mkfifo', [join(dir, 'pipe.jsonl'), join(dir, 'pipe.parquet'), join(dir, 'pipe.csv')]);
  await using large = await open(join(dir, 'large.jsonl'), 'w');
  await large.truncate(6 * 2 ** 30);
});
afterAll(() => rm(dir, { recursive: true }));

it.each(['good.jsonl', 'link.jsonl', '../DIR/good.jsonl'])('%s is read', async (name) => {
  expect(await readTasks(join(dir, name.replace('DIR', dir.split('/').at(-1) ?? '')))).toHaveLength(1);
});

it.each([
  ['.', 'found a folder', 'name one file in it'],
  ['pipe.jsonl', 'found a pipe', 'to a file'],
  ['pipe.csv', 'found a pipe', 'to a file'],
  ['pipe.parquet', 'found a pipe', 'to a file'],
  ['zero.jsonl', 'found a device', 'to a file'],
  ['large.jsonl', '6.0 GiB, expected at most 5', 'split it'],
])('%s is refused: %s', async (name, message, hint) => {
  await expect(readTasks(join(dir, name))).rejects.toMatchObject({
    code: 'DATASET_INVALID',
    message: expect.stringContaining(message),
    hint: expect.stringContaining(hint),
  });
});

it('a link that leads to itself is named', async () => {
  await symlink(join(dir, 'loop.jsonl'), join(dir, 'loop.jsonl'));
  await expect(readTasks(join(dir, 'loop.jsonl'))).rejects.toMatchObject({
    code: 'FILE_NOT_FOUND',
    message: expect.stringContaining('ELOOP'),
    hint: expect.stringContaining('leads back to itself'),
  });
});

// Root may read every file.
it.skipIf(process.getuid?.() === 0)('a file that may not be read is named, and what to allow', async () => {
  await writeFile(join(dir, 'locked.jsonl'), '{"prompt":"a"}', { mode: 0 });
  await expect(readTasks(join(dir, 'locked.jsonl'))).rejects.toMatchObject({
    code: 'FILE_NOT_FOUND',
    message: expect.stringContaining('EACCES'),
    hint: expect.stringContaining('allow this user'),
  });
});

it('a URL is refused, and a path that leads nowhere is named', async () => {
  await expect(readTasks('https://example.com/train.jsonl')).rejects.toMatchObject({
    code: 'DATASET_INVALID',
    hint: expect.stringContaining('download it first'),
  });
  await expect(readTasks(join(dir, 'good.jsonl', 'x'))).rejects.toMatchObject({
    code: 'FILE_NOT_FOUND',
    message: expect.stringContaining('ENOTDIR'),
  });
});
