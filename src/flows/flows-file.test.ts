import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { readFlowsFile } from './flows-file.ts';

let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'flows-'));
  await mkdir(join(root, 'project', 'node_modules', 'evil'), { recursive: true });
  await writeFile(join(root, 'project', 'package.json'), '{"type":"module"}');
  const flow = 'export class X { async run() { return 1; } }\nexport const nothing = 1;\n';
  for (const file of ['outside.js', 'project/flow.js', 'project/node_modules/evil/flow.js'])
    await writeFile(join(root, file), flow);
  await writeFile(join(root, 'project', 'broken.js'), 'throw new Error("at once");');
  await symlink(join(root, 'outside.js'), join(root, 'project', 'link.js'));
});
afterAll(() => rm(root, { recursive: true, force: true }));

async function read(text: string, name = 'flows.yaml') {
  const path = join(root, 'project', name);
  await writeFile(path, text);
  return await readFlowsFile(path);
}

const target = (of: string): string => `- name: x\n  _target_: ${of}\n`;

describe('a flows file', () => {
  it('names flows by files of its project; the rest of an item is the flow’s config', async () => {
    const flows = await read(
      `${target('./flow.js#X')}  maxTurns: 4\n  country: no\n- name: y\n  _target_: ../project/flow.js#X\n`,
    );
    expect(flows).toMatchObject([
      { name: 'x', config: { maxTurns: 4, country: 'no' } },
      { name: 'y', file: expect.stringMatching(/project\/flow\.js$/) },
    ]);
    expect(flows[0]?.flow.name).toBe('X');
  });

  it.each([
    ['a file outside the project', target('../outside.js#X'), 'is not a file of this project'],
    ['a link out of the project', target('./link.js#X'), 'is not a file of this project'],
    ['a package', target('./node_modules/evil/flow.js#X'), 'is not a file of this project'],
    ['an absolute path', target('/etc/passwd#X'), 'expected ./file.ts#Export'],
    ['a module of Node', target('node:child_process#exec'), 'expected ./file.ts#Export'],
    ['a dotted module', target('node:child_process.exec'), 'expected ./file.ts#Export'],
    ['a package by name', target('openai#OpenAI'), 'expected ./file.ts#Export'],
    ['a URL', target('https://evil.example/x.js#X'), 'expected ./file.ts#Export'],
    ['a file URL', target('file:///tmp/x.js#X'), 'expected ./file.ts#Export'],
    ['data', target('"data:text/javascript,1#X"'), 'expected ./file.ts#Export'],
    ['a query', target('./flow.js?x#X'), 'expected ./file.ts#Export'],
    ['no export', target('./flow.js'), 'expected ./file.ts#Export'],
    ['a file that is not there', target('./gone.js#X'), 'there is no'],
    ['no target', '- name: x\n', 'expected ./file.ts#Export'],
    ['no name', '- _target_: ./flow.js#X\n', 'name: expected'],
    ['a name that is none', '- name: ../x\n  _target_: ./flow.js#X\n', 'name: expected'],
    ['two of one name', target('./flow.js#X').repeat(2), 'two flows are called x'],
    ['no list', 'name: x\n', 'expected a list of flows'],
    ['nothing', '', 'expected a list of flows'],
    ['an alias', `- &a { name: x, _target_: ./flow.js#X }\n- *a\n`, 'anchors and aliases'],
    ['an alias bomb', `a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n`, 'anchors and aliases'],
    ['a key twice', '- name: x\n  name: y\n  _target_: ./flow.js#X\n', 'unique'],
    ['a tag', '- name: !!js/function "x"\n  _target_: ./flow.js#X\n', 'tag'],
    ['a tag of its own', '- !evil {name: x, _target_: ./flow.js#X}\n', 'tag'],
    ['a tab', '-\tname: x\n\t_target_: ./flow.js#X\n', 'Tab'],
    ['a merge key', `${target('./flow.js#X')}  <<: {config: 1}\n`, 'the key << is not read here'],
    ['a prototype', `${target('./flow.js#X')}  __proto__: {polluted: true}\n`, '__proto__'],
    ['a megabyte and more', `# ${'x'.repeat(1_000_001)}`, 'at most 1000000 are read'],
  ])('with %s is refused', async (_, text, message) => {
    await expect(read(text)).rejects.toMatchObject({ code: 'CONFIG_INVALID', message: expect.stringContaining(message) });
    expect(({} as { polluted?: unknown }).polluted).toBeUndefined();
  });

  it('tells all mistakes at once', async () => {
    const text = `${target('node:fs#X')}- name: y\n  _target_: ../outside.js#X\n- 7\n`;
    await expect(read(text)).rejects.toThrow(/item 1: .*; also: item 2: .*; also: item 3: /s);
  });

  it('says where a module cannot be imported, has no such export, or the export is no flow', async () => {
    await expect(read(target('./broken.js#X'))).rejects.toMatchObject({
      code: 'ENTRY_UNLOADABLE',
      message: expect.stringContaining('at once'),
    });
    await expect(read(target('./flow.js#Y'))).rejects.toThrow('has no export Y; it exports X, nothing');
    await expect(read(target('./flow.js#nothing'))).rejects.toThrow('expected a class with an async run');
    const two = `${target('./broken.js#X')}- name: y\n  _target_: ./flow.js#Y\n`;
    await expect(read(two)).rejects.toThrow(/cannot import .*; also: flow y: .*has no export Y/);
    await expect(readFlowsFile(join(root, 'gone.yaml'))).rejects.toMatchObject({ code: 'FILE_NOT_FOUND' });
  });
});
