/**
 * Size and names: files and functions stay short, names say what is inside, and every file opens with what it is.
 *
 * Tests are exempt from the lengths, since a suite is one long function; not from the names.
 */
import { posix } from 'node:path';
import { describe, expect, it } from 'vitest';
import { functionsOf } from './measures.ts';
import { isTest, lineCount, parseSource, readSources, type Source } from './sources.ts';

const FILE_FAULT = 600;
const FUNCTION_FAULT = 100;
const EMPTY_NAMES = /(?:^|-)(?:utils?|helpers?|common|misc|managers?)(?:-|$)/;
const KEBAB_CASE = /^[a-z0-9]+(?:-[a-z0-9]+)*$/;

function lengthFaults(source: Source): readonly string[] {
  const lines = lineCount(source.text);
  const tooLong = functionsOf(source).filter((span) => span.lines > FUNCTION_FAULT);
  return [
    ...(lines > FILE_FAULT ? [`${source.path}: ${lines} lines, at most ${FILE_FAULT}; split it by what changes together`] : []),
    ...tooLong.map(
      (span) => `${source.path}:${span.line}: a function of ${span.lines} lines, at most ${FUNCTION_FAULT}; name its steps`,
    ),
  ];
}

function nameFaults(path: string): readonly string[] {
  const { dir, base } = posix.parse(path);
  const words = [...dir.split('/'), base.replace(/(?:(?:\.full)?\.test)?\.tsx?$/, '')];
  return words.flatMap((word) => {
    if (!KEBAB_CASE.test(word)) return [`${path}: '${word}' is not kebab-case; rename it`];
    return EMPTY_NAMES.test(word) ? [`${path}: '${word}' does not say what is inside; name it after what it does`] : [];
  });
}

function openingFaults({ path, text }: Source): readonly string[] {
  const opening = /^(?:#!.*\n)?\/\*\*([\s\S]*?)\*\//.exec(text)?.[1];
  if (opening === undefined)
    return [`${path}: does not open with a /** … */ comment; say what it is, its contract, what it leaves out`];
  return /[A-Za-z]{2}/.test(opening)
    ? []
    : [`${path}: its opening comment says nothing; say what it is, its contract, what it leaves out`];
}

describe('the source tree', () => {
  const sources = [...readSources('src'), ...readSources('packages/testing')];
  const code = sources.filter(({ path }) => !isTest(path));

  it('keeps files and functions short', () => {
    expect(code.length).toBeGreaterThan(0);
    expect(code.flatMap(lengthFaults)).toEqual([]);
  });

  it('has kebab-case names that say what is inside', () => {
    expect(sources.flatMap(({ path }) => nameFaults(path))).toEqual([]);
  });

  it('opens every file with what it is', () => {
    expect(sources.filter(({ path }) => !path.endsWith('.test.ts')).flatMap(openingFaults)).toEqual([]);
  });
});

describe('the length rule', () => {
  const lines = (count: number): string => 'x();\n'.repeat(count);

  it('accepts 600 lines and refuses 601', () => {
    expect(lengthFaults(parseSource('src/core/a.ts', lines(600)))).toEqual([]);
    expect(lengthFaults(parseSource('src/core/a.ts', lines(601)))).toEqual([expect.stringContaining('601 lines')]);
  });

  it.each([
    ['function', 'function f() {\n', '}'],
    ['arrow function', 'const f = () => {\n', '};'],
    ['method', 'class A { m() {\n', '} }'],
    ['getter', 'const o = { get m() {\n', '} };'],
  ])('accepts a %s of 100 lines and refuses one of 101', (_, open, close) => {
    expect(lengthFaults(parseSource('src/core/a.ts', open + lines(98) + close))).toEqual([]);
    expect(lengthFaults(parseSource('src/core/a.ts', open + lines(99) + close))).toEqual([
      expect.stringContaining('src/core/a.ts:1: a function of 101'),
    ]);
  });

  it('reads decorated functions of the WASM kernels', () => {
    const text = `/** k */\n@inline\nexport function f(x: f32): f32 {\n${lines(99)}}\n`;
    expect(lengthFaults(parseSource('src/engines/embedded/kernels/a.ts', text))).toEqual([
      expect.stringContaining('src/engines/embedded/kernels/a.ts:3:'),
    ]);
  });
});

describe('the rules of names and openings', () => {
  it('refuse names that say nothing or are not kebab-case, and files that do not say what they are', () => {
    const names = [
      'core/utils.ts',
      'core/string-helpers.ts',
      'common/a.ts',
      'run/manager.ts',
      'run/trainStep.ts',
      'run/Train.test.ts',
    ];
    for (const name of names) expect(nameFaults(`src/${name}`), name).toHaveLength(1);
    expect(nameFaults('src/run/train-step.test.ts')).toEqual([]);
    const openings = ['export {};', '// what it is\nexport {};', '/* what it is */', '/** */', 'export {};\n/** what it is */'];
    for (const text of openings) expect(openingFaults(parseSource('src/core/a.ts', text)), text).toHaveLength(1);
    expect(openingFaults(parseSource('src/core/a.ts', '#!/usr/bin/env node\n/**\n * What it is.\n */\n'))).toEqual([]);
  });
});
