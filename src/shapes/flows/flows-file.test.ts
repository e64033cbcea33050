import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { sharedFolder } from '../../../test/fixtures/folder.ts';
import { refusal } from '../../../test/fixtures/refusal.ts';
import { readFlowsFile } from './flows-file.ts';

const root = sharedFolder();
beforeAll(async () => {
  await writeFile(join(root, 'package.json'), '{"type":"module"}');
  await writeFile(join(root, 'flow.js'), 'export class X { async run() { return 1; } }\nexport const nothing = 1;\n');
  await writeFile(join(root, 'broken.js'), 'throw new Error("at once");');
});

async function read(text: string) {
  const path = join(root, 'flows.yaml');
  await writeFile(path, text);
  return await readFlowsFile(path);
}

const target = (of: string): string => `- name: x\n  _target_: ${of}\n`;

describe('a flows file', () => {
  it('names flows by files beside it; the rest of an item is the flow’s config', async () => {
    const flows = await read(`${target('./flow.js#X')}  maxTurns: 4\n  country: no\n- name: y\n  _target_: ./flow.js#X\n`);
    expect(flows).toMatchObject([
      { name: 'x', config: { maxTurns: 4, country: 'no' } },
      { name: 'y', file: join(root, 'flow.js') },
    ]);
    expect(flows[0]?.flow.name).toBe('X');
  });

  it.each([
    ['an absolute path', target('/etc/passwd#X'), 'expected ./file.ts#Export'],
    ['a package by name', target('openai#OpenAI'), 'expected ./file.ts#Export'],
    ['no export', target('./flow.js'), 'expected ./file.ts#Export'],
    ['no target', '- name: x\n', 'expected ./file.ts#Export'],
    ['no name', '- _target_: ./flow.js#X\n', 'name: expected'],
    ['a name that is none', '- name: ../x\n  _target_: ./flow.js#X\n', 'name: expected'],
    ['two of one name', target('./flow.js#X').repeat(2), 'two flows are called x'],
    ['no list', 'name: x\n', 'expected a list of flows'],
    ['nothing', '', 'expected a list of flows'],
    ['a key twice', '- name: x\n  name: y\n  _target_: ./flow.js#X\n', 'unique'],
    ['an unknown tag', '- name: !!js/function "x"\n  _target_: ./flow.js#X\n', 'tag'],
    ['a tab', '-\tname: x\n\t_target_: ./flow.js#X\n', 'Tab'],
  ])('with %s is refused', async (_, text, message) => {
    await expect(read(text)).rejects.toMatchObject({ code: 'CONFIG_INVALID', message: expect.stringContaining(message) });
  });

  it('refuses aliases that stand for more than a file can hold', async () => {
    const lists = Array.from(
      { length: 10 },
      (_, i) =>
        `a${i}: &a${i} [${Array(9)
          .fill(i === 0 ? 'x' : `*a${i - 1}`)
          .join(', ')}]`,
    );
    const message = expect.stringContaining('its aliases repeat too much');
    await expect(read(lists.join('\n'))).rejects.toMatchObject({ code: 'CONFIG_INVALID', message });
  });

  it('tells all mistakes at once', async () => {
    const text = `${target('node:fs#X')}- name: y\n  _target_: flow.js\n- 7\n`;
    await expect(read(text)).rejects.toThrow(/item 1: .*; also: item 2: .*; also: item 3: /s);
  });

  it('says where a module cannot be imported, has no such export, or the export is no flow', async () => {
    await expect(read(target('./broken.js#X'))).rejects.toMatchObject(refusal('ENTRY_UNLOADABLE', 'at once'));
    await expect(read(target('./flow.js#nothing'))).rejects.toThrow('expected a class with an async run');
    const two = `${target('./gone.js#X')}- name: y\n  _target_: ./flow.js#Y\n`;
    await expect(read(two)).rejects.toThrow(/cannot import .*; also: flow y: .*has no export Y; it exports X, nothing/);
    await expect(readFlowsFile(join(root, 'gone.yaml'))).rejects.toMatchObject({ code: 'FILE_NOT_FOUND' });
  });
});
