import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { folderOfEach } from '../../test/fixtures/folder.ts';
import { createRunDirectory, readRunFile, reopenRunDirectory } from './directory.ts';

const at = folderOfEach();
let path: string;
beforeEach(() => {
  path = at('run');
});

const warning = (code: string) => ({ type: 'warning', code, message: '' }) as const;

describe('a run directory', () => {
  it('whose making was cut short anywhere can be made or resumed', async () => {
    await mkdir(path);
    await writeFile(join(path, 'run.json.unfinished'), '{"set');
    await (await createRunDirectory(path, { a: 1 }))[Symbol.asyncDispose]();
    expect(readRunFile(path)).toEqual({ a: 1, id: expect.any(String) });
    await rm(join(path, 'checkpoints'), { recursive: true });
    await rm(join(path, 'events.jsonl'));
    await (await reopenRunDirectory(path))[Symbol.asyncDispose]();
    expect((await readdir(path)).toSorted()).toEqual(['checkpoints', 'events.jsonl', 'lock', 'run.json']);
  });

  it('that holds a run is not begun again; the way on is said', async () => {
    await (await createRunDirectory(path, {}))[Symbol.asyncDispose]();
    await expect(createRunDirectory(path, {})).rejects.toMatchObject({
      code: 'RUN_NOT_EMPTY',
      hint: expect.stringContaining(`--resume ${path}`),
    });
  });

  it('keeps its events through a torn line', async () => {
    const first = await createRunDirectory(path, {});
    first.log(warning('ONE'));
    await first[Symbol.asyncDispose]();
    await writeFile(join(path, 'events.jsonl'), '{"type":"warn', { flag: 'a' });
    const second = await reopenRunDirectory(path);
    second.log(warning('TWO'));
    await second[Symbol.asyncDispose]();
    const lines = (await readFile(join(path, 'events.jsonl'), 'utf8')).trim().split('\n');
    expect(lines.map((line) => (JSON.parse(line) as { code: string }).code)).toEqual(['ONE', 'TWO']);
  });

  it('is used by one process at a time', async () => {
    await using _held = await createRunDirectory(path, {});
    await expect(reopenRunDirectory(path)).rejects.toMatchObject({ code: 'RUN_LOCKED' });
  });

  it('without a readable run.json is no run', async () => {
    await mkdir(path);
    expect(() => readRunFile(path)).toThrow('no run.json');
    await writeFile(join(path, 'run.json'), '{');
    expect(() => readRunFile(path)).toThrow('cannot be read');
  });
});
