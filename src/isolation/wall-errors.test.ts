/** Which errors of files have a wall behind them. */
import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { explained } from './wall-errors.ts';

let root: string;
beforeAll(() => {
  root = realpathSync(mkdtempSync(join(tmpdir(), 'wall-errors-')));
  for (const folder of ['project/src', 'run/artifacts']) mkdirSync(join(root, folder), { recursive: true });
  symlinkSync(join(root, 'project'), join(root, 'link'));
});
afterAll(() => rmSync(root, { recursive: true }));

const why = (text: string): string => {
  const message = text.replaceAll('~', root);
  const walls = { hidden: [join(root, 'run'), join(root, 'project/train.jsonl')], readOnly: [join(root, 'project')] };
  const told = explained(message, walls, join(root, 'run/artifacts'));
  expect(told.startsWith(message)).toBe(true);
  return told.slice(message.length);
};

it.each([
  [`EROFS: read-only file system, open '~/project/log.txt'`],
  [`EROFS: read-only file system, mkdir '~/project/not/there'`],
  [`EROFS: read-only file system, open '~/link/src/log.txt'`],
  [`EROFS: read-only file system, rename '~/other' -> '~/project/..log'`],
  [`the tool failed: EROFS: read-only file system, open '~/project/log.txt' at 3`],
])('%s: the project is read-only', (text) => {
  expect(why(text)).toMatch(/the project is read-only under isolation: write to ctx\.artifactsDir or os\.tmpdir\(\)/);
});

it.each([[`ENOENT: no such file or directory, open '~/run/store.sqlite'`], [`EACCES: permission denied, open '~/run/mine.txt'`]])(
  '%s: it is hidden',
  (text) => {
    expect(why(text)).toContain('hidden under isolation');
  },
);

it.each([
  ['no such item'],
  [`ENOENT: no such file or directory, open '~/project/gone.json'`],
  [`ENOENT: no such file or directory, open '~/run/artifacts/r1/gone.txt'`],
  [`ENOENT: no such file or directory, open '~/running/gone.txt'`],
  [`EROFS: read-only file system, open '/sys/x'`],
])('%s: no wall is behind it', (text) => {
  expect(why(text)).toBe('');
});
