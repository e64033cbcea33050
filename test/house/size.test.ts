/**
 * Size and names: files and functions stay short, names say what is inside, and every file opens with what it is.
 *
 * Tests are exempt from the lengths, since a suite is one long function; not from the names. Long but allowed files and the
 * median are printed, so that a drift is seen before it is a fault.
 */
import { posix } from 'node:path';
import { Visitor } from 'vite';
import { describe, expect, it } from 'vitest';
import { isTest, lineAt, lineCount, parseSource, readSources, type Source } from './sources.ts';

const LONG_FILE = 300;
const FILE_FAULT = 450;
const FUNCTION_FAULT = 100;
const EMPTY_NAMES = /(?:^|-)(?:utils?|helpers?|common|misc|managers?)(?:-|$)/;
const KEBAB_CASE = /^[a-z0-9]+(?:-[a-z0-9]+)*$/;

interface FunctionSpan {
  readonly line: number;
  readonly lines: number;
}

function functionsOf(source: Source): readonly FunctionSpan[] {
  const spans: FunctionSpan[] = [];
  const add = (node: { readonly start: number; readonly end: number }): void => {
    spans.push({ line: lineAt(source, node.start), lines: lineCount(source.text.slice(node.start, node.end)) });
  };
  new Visitor({ FunctionDeclaration: add, FunctionExpression: add, ArrowFunctionExpression: add }).visit(source.program);
  return spans;
}

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
  const words = [...dir.split('/'), base.replace(/(?:(?:\.full)?\.test)?\.ts$/, '')];
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

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}

describe('the source tree', () => {
  const sources = readSources('src');
  const code = sources.filter(({ path }) => !isTest(path));

  it('keeps files and functions short', () => {
    expect(code.length).toBeGreaterThan(0);
    expect(code.flatMap(lengthFaults)).toEqual([]);
  });

  it('reports what is getting long', () => {
    const lengths = code.map(({ path, text }) => ({ path, lines: lineCount(text) }));
    const long = lengths.filter(({ lines }) => lines > LONG_FILE).map(({ path, lines }) => `  long: ${path} (${lines} lines)`);
    const middle = median(lengths.map(({ lines }) => lines));
    console.log([`${code.length} source files, median ${middle} lines, ${long.length} over ${LONG_FILE}`, ...long].join('\n'));
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

  it('accepts 450 lines and refuses 451', () => {
    expect(lengthFaults(parseSource('src/core/a.ts', lines(450)))).toEqual([]);
    expect(lengthFaults(parseSource('src/core/a.ts', lines(451)))).toEqual([expect.stringContaining('451 lines')]);
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
    expect(lengthFaults(parseSource('src/nn/kernels/a.ts', text))).toEqual([expect.stringContaining('src/nn/kernels/a.ts:3:')]);
  });
});

describe('the name rule', () => {
  it.each([
    'src/core/utils.ts',
    'src/core/string-helpers.ts',
    'src/common/a.ts',
    'src/run/manager.ts',
    'src/run/trainStep.ts',
    'src/run/Train.test.ts',
  ])('refuses %s', (path) => {
    expect(nameFaults(path)).toHaveLength(1);
  });

  it('accepts a kebab-case name', () => {
    expect(nameFaults('src/run/train-step.test.ts')).toEqual([]);
  });
});

describe('the opening rule', () => {
  it.each(['export {};', '// what it is\nexport {};', '/* what it is */', '/** */', 'export {};\n/** what it is */'])(
    'refuses %j',
    (text) => {
      expect(openingFaults(parseSource('src/core/a.ts', text))).toHaveLength(1);
    },
  );

  it('accepts a doc comment, also below a hashbang', () => {
    expect(openingFaults(parseSource('src/core/a.ts', '#!/usr/bin/env node\n/**\n * What it is.\n */\n'))).toEqual([]);
  });
});
