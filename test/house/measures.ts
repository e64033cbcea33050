/**
 * How large the house is: source tokens by folder, what an import draws in, packed lines, words, names. `npm run house` prints it and
 * cap.test.ts holds the tree to it.
 *
 * A token is a leaf of the parser's tree: a name, a number, a mark, one piece of a literal. Comments, blanks and line breaks are none, so that
 * neither can be saved. Tests and generated files do not count; what is in packages/, bench/ and examples/ does, so that moving saves nothing,
 * but for packages/testing.
 */
import { posix } from 'node:path';
import { Visitor } from 'vite';
import { folderOf, reachedFrom } from './imports.ts';
import { isTest, lineAt, lineCount, listFiles, parseSource, readSources, readText, type Source } from './sources.ts';

export interface Size {
  readonly files: number;
  readonly lines: number;
  readonly tokens: number;
}

/** What once was in src/ and still counts where it is now. */
const MOVED_OUT: readonly string[] = [];

/** The sources that ship, without their tests. */
export function shippedSources(): readonly Source[] {
  return readSources('src').filter(({ path }) => !isTest(path));
}

/** All that the cap is about: what ships, what else is in packages/, and what was moved out of src/. */
export function cappedSources(): readonly Source[] {
  const others = readSources('packages').filter(({ path }) => !isTest(path) && !path.startsWith('packages/testing/'));
  const moved = MOVED_OUT.map((path) => parseSource(path, readText(path)));
  return [...shippedSources(), ...others, ...moved];
}

export function sizeOf(sources: readonly Source[]): Size {
  const sum = (count: (source: Source) => number): number => sources.reduce((total, source) => total + count(source), 0);
  return { files: sources.length, lines: sum(({ text }) => lineCount(text)), tokens: sum(tokensOf) };
}

/** A name, a number or a mark. */
const LEAF =
  /[\p{ID_Start}$_#@][\p{ID_Continue}$]*|\.?\d[\w.]*|>>>=|\.\.\.|[=!]==|(?:\*\*|<<|>>|&&|\|\||\?\?)=|>>>|=>|[=!<>+\-*/%&|^]=|&&|\|\||\?\?|\?\.(?!\d)|\+\+|--|<<|\*\*|\S/gu;

/** Leaves of the syntax tree: literals and pieces of templates are one each, comments none. */
export function tokensOf({ text, program, comments }: Source): number {
  const spans: { readonly start: number; readonly end: number; readonly leaves: number }[] = [];
  const leaf = ({ start, end }: { readonly start: number; readonly end: number }): void =>
    void spans.push({ start, end, leaves: 1 });
  for (const { start, end } of comments) spans.push({ start, end, leaves: 0 });
  new Visitor({ Literal: leaf, TemplateElement: leaf, JSXText: leaf }).visit(program);
  let tokens = 0;
  let at = 0;
  for (const { start, end, leaves } of spans.toSorted((a, b) => a.start - b.start)) {
    if (start < at) continue;
    tokens += leavesIn(text.slice(at, start)) + leaves;
    at = end;
  }
  return tokens + leavesIn(text.slice(at));
}

function leavesIn(text: string): number {
  return text.match(LEAF)?.length ?? 0;
}

/** Where lines are packed: literals spread into what holds them, and literals taken apart into several names. */
export function packedLines(source: Source): { readonly spreads: readonly number[]; readonly tuples: readonly number[] } {
  const spreads: number[] = [];
  const tuples: number[] = [];
  const isLiteral = ({ type }: { readonly type: string }): boolean => type === 'ObjectExpression' || type === 'ArrayExpression';
  const isTuple = (names: { readonly type: string }, values: { readonly type: string } | null): boolean =>
    names.type === 'ArrayPattern' &&
    values?.type === 'ArrayExpression' &&
    (names as { elements?: unknown[] }).elements!.length > 1;
  new Visitor({
    SpreadElement: ({ argument, start }) => {
      if (isLiteral(argument)) spreads.push(lineAt(source, start));
    },
    JSXSpreadAttribute: ({ argument, start }) => {
      if (isLiteral(argument)) spreads.push(lineAt(source, start));
    },
    VariableDeclarator: ({ id, init, start }) => {
      if (isTuple(id, init)) tuples.push(lineAt(source, start));
    },
    AssignmentExpression: ({ left, right, start }) => {
      if (isTuple(left, right)) tuples.push(lineAt(source, start));
    },
  }).visit(source.program);
  return { spreads, tuples };
}

/** Words of a document as a reader meets them: code and tables too. */
export function wordsOf(path: string): number {
  return readText(path)
    .split(/\s+/)
    .filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
}

export function sizeByFolder(sources: readonly Source[]): ReadonlyMap<string, Size> {
  const groups = Map.groupBy(sources, ({ path }) => folderOf(path) ?? '*');
  return new Map([...groups].sort(([a], [b]) => a.localeCompare(b)).map(([folder, files]) => [folder, sizeOf(files)]));
}

/** Every file that is loaded with one of ours, itself included: imports of types are erased, and `import()` comes later. */
export function closureOf(path: string, sources: readonly Source[]): readonly Source[] {
  return reachedFrom(path, sources, ({ late, erased }) => !late && !erased);
}

/** Rows of the table "Words" of ARCHITECTURE.md. */
export function glossaryWords(): number {
  const section = /^## Words[\s\S]*?(?=^## )/m.exec(readText('ARCHITECTURE.md'))?.[0] ?? '';
  const rows = section.split('\n').filter((line) => /^\|(?! *(?:word|-))/.test(line));
  return rows.flatMap((row) => (row.split('|')[1] ?? '').split(/[,/]/)).length;
}

/** File names that more than one file of src/ has. */
export function repeatedNames(sources: readonly Source[]): readonly string[] {
  const names = Map.groupBy(sources, ({ path }) => posix.basename(path));
  return [...names].filter(([, files]) => files.length > 1).map(([name]) => name);
}

export function medianLines(sources: readonly Source[]): number {
  return sources.map(({ text }) => lineCount(text)).toSorted((a, b) => a - b)[sources.length >> 1] ?? 0;
}

/** Where each function of a file begins, and its lines. */
export function functionsOf(source: Source): readonly { readonly line: number; readonly lines: number }[] {
  const spans: { line: number; lines: number }[] = [];
  const add = ({ start, end }: { readonly start: number; readonly end: number }): void =>
    void spans.push({ line: lineAt(source, start), lines: lineCount(source.text.slice(start, end)) });
  new Visitor({ FunctionDeclaration: add, FunctionExpression: add, ArrowFunctionExpression: add }).visit(source.program);
  return spans;
}

/** Lines of the longest twentieth of the functions begin here. */
export function functionP95(sources: readonly Source[]): number {
  const lengths = sources.flatMap(functionsOf).map(({ lines }) => lines);
  return lengths.toSorted((a, b) => a - b)[Math.floor(lengths.length * 0.95)] ?? 0;
}

/** Lines of TypeScript that test: beside the sources and under test/, without installed packages. */
export function testLines(): number {
  const files = [...listFiles('src', '.test.ts'), ...listFiles('test', '.ts')];
  return files.reduce((sum, path) => sum + lineCount(readText(path)), 0);
}

/** Words of the documents of one kind: pages that code writes begin with a mark that says so. */
export function documentWords(): { readonly written: number; readonly generated: number } {
  const pages = Map.groupBy(listFiles('docs', '.md'), (path) => (isGeneratedPage(path) ? 'generated' : 'written'));
  const sum = (paths: readonly string[] = []): number => paths.reduce((total, path) => total + wordsOf(path), 0);
  return { written: sum(pages.get('written')), generated: sum(pages.get('generated')) };
}

export function isGeneratedPage(path: string): boolean {
  return readText(path).startsWith('<!-- Generated');
}

/** Files directly in each folder of src/, tests apart. */
export function ownFiles(sources: readonly Source[]): ReadonlyMap<string, number> {
  const folders = Map.groupBy(sources, ({ path }) => posix.dirname(path));
  return new Map([...folders].map(([folder, files]) => [folder, files.length]));
}
