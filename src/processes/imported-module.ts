/** The user's module, as a child process imports it: by path or URL in the parent, by URL in the child. */
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describeThrown } from '../core/describe.ts';
import { type ErrorCode, TrainyardError } from '../core/errors.ts';

type Exports = Readonly<Record<string, unknown>>;

/** A path is taken from the current folder. */
export function moduleUrl(pathOrUrl: string): string {
  return pathOrUrl.startsWith('file:') ? pathOrUrl : pathToFileURL(resolve(pathOrUrl)).href;
}

/** `what`: whose module it is, for the message. */
export async function importedModule(url: string, what: string, code: ErrorCode): Promise<Exports> {
  try {
    return (await import(url)) as Exports;
  } catch (thrown) {
    throw new TrainyardError(code, `the ${what}'s module ${url} cannot be imported: ${describeThrown(thrown)}`);
  }
}

export function namesOf(exports: Exports): string {
  return Object.keys(exports).join(', ') || 'nothing';
}
