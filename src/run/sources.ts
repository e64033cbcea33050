/**
 * Digests of the user's code: the files given, and what they import from beside them, file by file so that a change can be named.
 *
 * Imports are found by their text, not by running anything. Packages, and paths that are computed, are not followed.
 */
import { statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { dirname, relative, resolve } from 'node:path';
import { digestOf } from './digests.ts';

/** More than any agent has; a loop of links must end somewhere. */
const MOST_FILES = 2000;
/** `from './x.ts'`, `import './x.ts'`, `import('./x.ts')`, `require('./x.ts')`. */
const RELATIVE_IMPORT = /\b(?:from|import|require)\s*\(?\s*(['"])(\.{1,2}\/[^'"\n]+)\1/g;

/** What `require`, and loaders of TypeScript, try after a path that has no ending. */
const ENDINGS = ['', '.ts', '.mts', '.cts', '.js', '.mjs', '.cjs', '.json', '/index.ts', '/index.js'];

/** By path relative to `folder`. A file that cannot be read is left out: another error says so. */
export async function sourceDigests(folder: string, files: readonly string[]): Promise<Readonly<Record<string, string>>> {
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
