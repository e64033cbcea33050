/**
 * The repository as the house rules see it: files with their text, syntax tree and comments.
 *
 * Paths are relative to the repository and use `/`. A file that cannot be parsed is an error, never skipped: a rule that
 * overlooks a file holds nothing. Rules take sources as values, so each can be shown a file that breaks it.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type ParseResult, parseSync } from 'vite';

export const repository = fileURLToPath(new URL('../..', import.meta.url));

export interface Source {
  readonly path: string;
  readonly text: string;
  readonly program: ParseResult['program'];
  readonly comments: ParseResult['comments'];
}

const GENERATED = new Set(['node_modules', 'dist', 'runs', 'coverage', '.git', '.interop']);

/** Whether a file is written in AssemblyScript: TypeScript's syntax with decorated functions, and imports without extension. */
export function isKernel(path: string): boolean {
  return path.startsWith('src/engines/embedded/kernels/');
}

export function isTest(path: string): boolean {
  return /\.test\.tsx?$/.test(path);
}

/** Files under a folder of the repository whose name ends so, sorted; generated folders are left out. */
export function listFiles(folder: string, ending: string, root = repository): readonly string[] {
  const found: string[] = [];
  for (const entry of readdirSync(join(root, folder), { withFileTypes: true })) {
    const path = folder === '' ? entry.name : `${folder}/${entry.name}`;
    if (entry.isDirectory() && !GENERATED.has(entry.name)) found.push(...listFiles(path, ending, root));
    if (entry.isFile() && entry.name.endsWith(ending)) found.push(path);
  }
  return found.sort();
}

export function readText(path: string): string {
  if (!existsSync(join(repository, path))) throw new Error(`${path} does not exist, and the house plan asks for it; write it`);
  return readFileSync(join(repository, path), 'utf8');
}

/** Whether a file is part of the page that a browser runs: bundled, so that it imports what users do not install. */
export function isPage(path: string): boolean {
  return path.startsWith('src/view/page/');
}

/** All TypeScript files under a folder, parsed; ambient declarations of what others made are not our sources. */
export function readSources(folder: string): readonly Source[] {
  const files = [...listFiles(folder, '.ts'), ...listFiles(folder, '.tsx')].filter((path) => !path.endsWith('.d.ts'));
  return files.map((path) => parseSource(path, readText(path)));
}

export function parseSource(path: string, text: string): Source {
  const { program, comments, errors } = parseSync(path, isKernel(path) ? blankDecorators(text) : text);
  const first = errors[0];
  if (first !== undefined) throw new Error(`${path} does not parse: ${first.message}`);
  return { path, text, program, comments };
}

/** The line of an offset, from 1. */
export function lineAt(source: Source, offset: number): number {
  return lineCount(source.text.slice(0, offset + 1));
}

/** Lines of a text; a final line break does not begin another line. */
export function lineCount(text: string): number {
  return text === '' ? 0 : text.replace(/\n$/, '').split('\n').length;
}

/** Blanks keep every offset and line where it was. */
function blankDecorators(text: string): string {
  return text.replace(
    /^([ \t]*)(@\w+(?:\([^)\n]*\))?)/gm,
    (_, indent: string, decorator: string) => indent + ' '.repeat(decorator.length),
  );
}
