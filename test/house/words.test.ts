/**
 * Words that have no place in the tree: types that check nothing, tests that do not run, notes to self, paths of one machine,
 * and output that bypasses the command line.
 *
 * Code is judged by its syntax tree and notes by the comments, so a string that quotes one of these words is no fault. Machine
 * paths are a fault anywhere in the text.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Visitor } from 'vite';
import { describe, expect, it } from 'vitest';
import { lineAt, parseSource, readSources, repository, type Source } from './sources.ts';

const FOLDERS = ['src', 'test', 'scripts', 'examples', 'bench', 'models'];
const TEST_FUNCTIONS = new Set(['it', 'test', 'describe', 'suite', 'bench']);
const NOT_RUN = new Set(['only', 'skip', 'todo']);
const NOTE_TO_SELF = /\b(?:TODO|FIXME|XXX)\b/g;
const FORBIDDEN = ['work', 'root'];
const MACHINE_PATH = new RegExp(`(?<![\\w.])/(?:${FORBIDDEN.join('|')})/`, 'g');

interface Node {
  readonly type: string;
  readonly start: number;
}

function typeFaults(source: Source): readonly string[] {
  const faults: string[] = [];
  const add = (node: Node, what: string): void => void faults.push(`${source.path}:${lineAt(source, node.start)}: ${what}`);
  new Visitor({
    TSAnyKeyword: (node) => add(node, '`any` switches the checker off; write the type, or `unknown` and a check'),
    TSEnumDeclaration: (node) => add(node, '`enum` is not erasable; write a union of string literals'),
    TSModuleDeclaration: (node) => {
      if (node.kind === 'namespace') add(node, '`namespace` is not erasable; use a module');
    },
  }).visit(source.program);
  return faults;
}

function consoleFaults(source: Source): readonly string[] {
  if (source.path.startsWith('src/cli/')) return [];
  const faults: string[] = [];
  new Visitor({
    MemberExpression: ({ object, start }) => {
      if (object.type !== 'Identifier' || object.name !== 'console') return;
      faults.push(
        `${source.path}:${lineAt(source, start)}: \`console.\` outside src/cli; emit an event or throw, and let the command line print`,
      );
    },
  }).visit(source.program);
  return faults;
}

/** Both spellings: `it.skip(…)`, however long the chain, and `it('…', { skip: true }, …)`. */
function notRunFaults(source: Source): readonly string[] {
  const faults: string[] = [];
  const add = (start: number, word: string): void =>
    void faults.push(`${source.path}:${lineAt(source, start)}: \`${word}\` keeps tests from running; make it pass or delete it`);
  new Visitor({
    MemberExpression: ({ object, property, start }) => {
      if (property.type !== 'Identifier' || !NOT_RUN.has(property.name)) return;
      if (TEST_FUNCTIONS.has(rootName(object) ?? '')) add(start, property.name);
    },
    CallExpression: ({ callee, arguments: args, start }) => {
      if (!TEST_FUNCTIONS.has(rootName(callee) ?? '')) return;
      const options = args.flatMap((arg) => (arg.type === 'ObjectExpression' ? arg.properties : []));
      for (const option of options) {
        if (option.type === 'Property' && option.key.type === 'Identifier' && NOT_RUN.has(option.key.name))
          add(start, option.key.name);
      }
    },
  }).visit(source.program);
  return faults;
}

/** The name a chain of members and calls begins with: `it` of `it.concurrent.each([])`. */
function rootName(node: object): string | undefined {
  if ('name' in node && typeof node.name === 'string') return node.name;
  if ('object' in node && typeof node.object === 'object' && node.object !== null) return rootName(node.object);
  if ('callee' in node && typeof node.callee === 'object' && node.callee !== null) return rootName(node.callee);
  return undefined;
}

function noteFaults(source: Source): readonly string[] {
  return source.comments.flatMap((comment) =>
    [...comment.value.matchAll(NOTE_TO_SELF)].map(
      ([word]) => `${source.path}:${lineAt(source, comment.start)}: a comment says ${word}; do it, or leave it out`,
    ),
  );
}

function pathFaults(source: Source): readonly string[] {
  return [...source.text.matchAll(MACHINE_PATH)].map(
    ({ 0: path, index }) =>
      `${source.path}:${lineAt(source, index)}: ${path} exists on one machine only; derive the path or take it as an argument`,
  );
}

describe('the source tree', () => {
  const sources = [...readSources('src'), ...readSources('packages/testing')];

  it('has no any, enum or namespace', () => {
    expect(sources.flatMap(typeFaults)).toEqual([]);
  });

  it('writes to the console only in src/cli', () => {
    expect(sources.flatMap(consoleFaults)).toEqual([]);
  });
});

describe('the whole repository', () => {
  const sources = FOLDERS.filter((folder) => existsSync(join(repository, folder))).flatMap(readSources);

  it('runs every test it has', () => {
    expect(sources.flatMap(notRunFaults)).toEqual([]);
  });

  it('has no notes to self', () => {
    expect(sources.flatMap(noteFaults)).toEqual([]);
  });

  it('names no path of one machine', () => {
    expect(sources.flatMap(pathFaults)).toEqual([]);
  });
});

describe('the rules', () => {
  const parse = (text: string, path = 'src/core/a.ts'): Source => parseSource(path, text);

  it.each<[string, (source: Source) => readonly string[], readonly string[], readonly string[]]>([
    [
      'types that check nothing',
      typeFaults,
      ['let a: any;', 'function f(a: readonly any[]): void {}', 'enum A { B }', 'const enum A { B }', 'namespace A {}'],
      ["// any\nconst any = 'any'; Promise.any([any]);"],
    ],
    ['console outside src/cli', consoleFaults, ['console.error(1);'], ["f('console.error')"]],
    [
      'tests that do not run',
      notRunFaults,
      [...NOT_RUN].flatMap((word) => [
        ...[`it.${word}('a', f);`, `describe.${word}('a', f);`, `test.concurrent.${word}('a', f);`],
        ...[`it.${word}.each([])('a', f);`, `it('a', { ${word}: true }, f);`],
      ]),
      ["reader.skip(4); it('a', f); it.each([])('b', f);"],
    ],
    ['notes to self', noteFaults, ['/* TODO: later */', '// FIXME', '// XXX'], ["f('TODO');"]],
    [
      'paths of one machine',
      pathFaults,
      FORBIDDEN.flatMap((folder) => [`f('/${folder}/a');`, `// see file:///${folder}/b`]),
      [`f('src/${FORBIDDEN[0]}/a', './${FORBIDDEN[1]}/b');`],
    ],
  ])('refuse %s, and nothing else', (_, faults, refused, accepted) => {
    for (const text of refused) expect(faults(parse(text)), text).toEqual([expect.stringContaining('src/core/a.ts:1: ')]);
    for (const text of accepted) expect(faults(parse(text)), text).toEqual([]);
    expect(consoleFaults(parse('console.error(1);', 'src/cli/a.ts'))).toEqual([]);
  });
});
