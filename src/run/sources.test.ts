import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import { sourceDigests } from '../processes/user-modules.ts';
import { checkpointIn } from './directory.ts';
import { besideOf, changedBeside } from './preflight.ts';

const folder = sharedFolder();
const write = (name: string, text: string): void => writeFileSync(join(folder, name), text);

it('the user’s code is the entry and what it imports from beside it, however that is written, loops included', async () => {
  mkdirSync(join(folder, 'deep'));
  write(
    'agent.ts',
    `import x from './a.ts'; export * from "./deep/b.ts"; const c = await import('./c.ts'); import 'openai'; import './gone.ts';`,
  );
  write('a.ts', `import { y } from './agent.ts'; import './twin.js';`);
  write('deep/b.ts', `const d = require('../d'); require('../package'); import('../e.ts?again');`);
  mkdirSync(join(folder, 'package'));
  for (const name of 'c.ts d.cjs e.ts package/index.js unused.ts twin.ts twin.js'.split(' ')) write(name, '');
  const digests = await sourceDigests(folder, [join(folder, 'agent.ts')]);
  const found = 'a.ts agent.ts c.ts d.cjs deep/b.ts e.ts package/index.js twin.js twin.ts';
  expect(Object.keys(digests).join(' ')).toBe(found);
  write('d.cjs', '// changed');
  const changed = await sourceDigests(folder, [join(folder, 'agent.ts')]);
  expect(Object.keys(digests).filter((file) => digests[file] !== changed[file])).toEqual(['d.cjs']);
});

describe('what lies beside an entry', () => {
  const at = (root: string, files: Readonly<Record<string, string>>) => {
    for (const [name, text] of Object.entries(files)) {
      mkdirSync(join(folder, root, dirname(name)), { recursive: true });
      write(`${root}/${name}`, text);
    }
    return besideOf(join(folder, root, 'agent.ts'), { 'agent.ts': '' }, [join(folder, root, 'questions.jsonl')]);
  };
  const CODE = { 'agent.ts': `import 'pack'; import type { X } from '@scope/types/x';`, 'node_modules/pack/index.js': '' };
  const pack = (version: string) => ({ 'node_modules/pack/package.json': JSON.stringify({ name: 'pack', version }) });

  it('is its data, its lock of packages and the versions that it imports, where both have them', async () => {
    const run = { ...CODE, ...pack('1.0.0'), 'catalog.json': '{}', 'prompts/a.md': 'a', 'package-lock.json': '{}' };
    const own = await at('run', { ...run, 'only-there.json': '' });
    expect(changedBeside(own.files, (await at('same', run)).files, 'agent.ts')).toEqual([]);
    const data = { 'catalog.json': '{ }', 'prompts/a.md': 'b', 'only-here.json': '' };
    const changed = { ...data, 'package-lock.json': '{ }', ...pack('1.0.1') };
    const named = changedBeside(own.files, (await at('other', { ...run, ...changed })).files, 'agent.ts');
    expect(named.toSorted()).toEqual(
      ['catalog.json', 'node_modules/pack', 'package-lock.json', 'prompts/a.md'].map((file) => `${file} has changed`),
    );
    expect(own.folder).not.toBe((await at('other', {})).folder);
    expect(own.folder).toBe((await at('run', {})).folder);
  });

  it('is not its tasks, its runs, code that is compared already, or what has a hidden name', async () => {
    const left = 'train.jsonl held-out.csv questions.jsonl .cache/a .env runs/x mine/run.json mine/deep/log'.split(' ');
    const { files } = await at('left', { ...CODE, ...Object.fromEntries(left.map((name) => [name, ''])), kept: '' });
    expect(Object.keys(files)).toEqual(['kept']);
  });
});

it('a checkpoint is a model folder, or the best one of a run, or its last', async () => {
  for (const step of ['step-000004', 'step-000008']) {
    mkdirSync(join(folder, 'checkpoints', step), { recursive: true });
    write(`checkpoints/${step}/config.json`, '{}');
  }
  expect(await checkpointIn(join(folder, 'checkpoints/step-000004'))).toBe(join(folder, 'checkpoints/step-000004'));
  expect(await checkpointIn(folder)).toBe(join(folder, 'checkpoints/step-000008'));
  write('events.jsonl', '{"type":"done","best":{"step":4}}\n');
  expect(await checkpointIn(folder)).toBe(join(folder, 'checkpoints/step-000004'));
  write('events.jsonl', '{"type":"done","best":{"step":5}}\n{"type":"do');
  expect(await checkpointIn(folder), 'one that is gone').toBe(join(folder, 'checkpoints/step-000008'));
  await expect(checkpointIn(join(folder, 'deep'))).rejects.toThrow(expect.objectContaining({ code: 'FILE_NOT_FOUND' }));
});
