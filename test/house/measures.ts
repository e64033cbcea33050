/**
 * How large the house is: files and lines by folder, what an import draws in, words, names. `npm run house` prints it and budgets.test.ts
 * holds the tree to it.
 *
 * A line of code is a line that holds more than white space once comments are taken away.
 */
import { posix } from 'node:path';
import { Visitor } from 'vite';
import { LEVELS, ROOMS, reachedFrom } from './imports.ts';
import { isTest, lineAt, lineCount, listFiles, readSources, readText, type Source } from './sources.ts';

export interface Size {
  readonly files: number;
  readonly lines: number;
  readonly code: number;
}

const RING = new Set<string>(LEVELS.flat());

/** The sources that ship, without their tests. */
export function shippedSources(): readonly Source[] {
  return readSources('src').filter(({ path }) => !isTest(path));
}

/** The folder of src/ that a file belongs to; `*` for the public surface. */
export function folderOf({ path }: Pick<Source, 'path'>): string {
  return /^src\/([^/]+)\//.exec(path)?.[1] ?? '*';
}

export function sizeOf(sources: readonly Source[]): Size {
  const sum = (count: (source: Source) => number): number => sources.reduce((total, source) => total + count(source), 0);
  return { files: sources.length, lines: sum(({ text }) => lineCount(text)), code: sum(codeLines) };
}

export function sizeByFolder(sources: readonly Source[]): ReadonlyMap<string, Size> {
  const groups = Map.groupBy(sources, folderOf);
  return new Map([...groups].sort(([a], [b]) => a.localeCompare(b)).map(([folder, files]) => [folder, sizeOf(files)]));
}

export function inFirstRing(source: Source): boolean {
  return RING.has(folderOf(source));
}

export function largestRoom(sources: readonly Source[]): readonly [string, Size] {
  const rooms = [...sizeByFolder(sources)].filter(([folder]) => ROOMS.includes(folder));
  return rooms.toSorted(([, a], [, b]) => b.lines - a.lines)[0]!;
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

function codeLines({ text, comments }: Source): number {
  let bare = text;
  for (const { start, end } of comments.toReversed())
    bare = bare.slice(0, start) + bare.slice(start, end).replace(/[^\n]/g, '') + bare.slice(end);
  return bare.split('\n').filter((line) => line.trim() !== '').length;
}
