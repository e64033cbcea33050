/**
 * Digests of the user's code: the files given, and what they import from beside them, file by file so that a change can be named.
 *
 * Imports are found by their text, not by running anything. Packages, and paths that are computed, are not followed.
 */
import { statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { dirname, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { digestOf } from '../core/json.ts';
import type { Entry, ModuleExport } from '../rollout/discovery.ts';
import { shortPath } from './command-line.ts';

/** More than any agent has; a loop of links must end somewhere. */
const MOST_FILES = 2000;
/** `from './x.ts'`, `import './x.ts'`, `import('./x.ts')`, `require('./x.ts')`. */
const RELATIVE_IMPORT = /\b(?:from|import|require)\s*\(?\s*(['"])(\.{1,2}\/[^'"\n]+)\1/g;

/** What `require`, and loaders of TypeScript, try after a path that has no ending. */
const ENDINGS = ['', '.ts', '.mts', '.cts', '.js', '.mjs', '.cjs', '.json', '/index.ts', '/index.js'];

/** By path relative to the folder of the entry; none of an entry that was given as a value. */
export type Sources = Readonly<Record<string, string>>;

/** Of everything that a run's entry is made of. */
export async function sourcesOf(given: unknown, flows: string | undefined, entry: Entry): Promise<Record<string, string>> {
  if (typeof given !== 'string') return {};
  const modules = [entry.workflowModule, entry.graderModule].flatMap((module) => (module && fileOf(module)) ?? []);
  const files = [resolve(given), ...(flows === undefined ? [] : [resolve(flows)]), ...modules];
  return { ...(await sourceDigests(dirname(resolve(given)), [...new Set(files)])) };
}

/** Of what a process imports for this export, now; undefined of what is no file. */
export function sourcesOfModule(module: ModuleExport | undefined): (() => Promise<Sources>) | undefined {
  const file = module && fileOf(module);
  return file === undefined ? undefined : () => sourceDigests('.', [file]);
}

function fileOf({ url }: ModuleExport): string | undefined {
  return url.startsWith('file:') ? fileURLToPath(url.replace(/[?#].*$/, '')) : undefined;
}

/** Each file that is not as it was, in words. They are kept by their paths from the entry's folder, and named as a person here would write them. */
export function changedSources(before: Sources, after: Sources, entry: unknown): readonly string[] {
  const folder = typeof entry === 'string' ? dirname(entry) : '.';
  const files = [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((file) => before[file] !== after[file]);
  return files.map(
    (file) =>
      `${shortPath(resolve(folder, file))} ${before[file] === undefined ? 'is new' : after[file] === undefined ? 'is gone' : 'has changed'}`,
  );
}

/** By path relative to `folder`. A file that cannot be read is left out: another error says so. */
export async function sourceDigests(folder: string, files: readonly string[]): Promise<Sources> {
  const digests = new Map<string, string>();
  const seen = new Set<string>();
  const waiting = files.map((file) => resolve(file));
  while (waiting.length > 0 && seen.size < MOST_FILES) {
    const file = waiting.pop() as string;
    if (seen.has(file)) continue;
    seen.add(file);
    const text = await readFile(file, 'utf8').catch(() => undefined);
    if (text === undefined) continue;
    digests.set(relative(folder, file), digestOf([text]));
    for (const [, , path = ''] of text.matchAll(RELATIVE_IMPORT)) {
      const imported = resolve(dirname(file), path.replace(/[?#].*$/, ''));
      const found = ENDINGS.find((ending) => isFile(imported + ending));
      if (found !== undefined) waiting.push(imported + found);
    }
  }
  return Object.fromEntries([...digests].toSorted(([a], [b]) => (a < b ? -1 : 1)));
}

function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() ?? false;
}
