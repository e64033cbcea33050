/**
 * What a workflow behind walls could not do with a file, in words: an `EROFS` or `ENOENT` of a path that is there for everybody else explains
 * nothing. Only adds to what was thrown; what the walls have no part in is left as it is.
 */
import { realpathSync } from 'node:fs';
import { basename, dirname, join, relative, resolve, sep } from 'node:path';
import type { Walls } from './walls.ts';

/** As Node writes them: `EROFS: read-only file system, open '/project/log.txt'`. */
const FILE_ERROR = /\b(EROFS|EACCES|EPERM|ENOENT): [^,\n]*, \w+ '([^'\n]+)'(?: -> '([^'\n]+)')?/;

const READ_ONLY = 'the project is read-only under isolation: write to ctx.artifactsDir or os.tmpdir()';
const HIDDEN =
  'tasks, runs and the Git history beside the tasks are hidden under isolation: read from ctx.task, write to ctx.artifactsDir or os.tmpdir()';

/** `message`, with why if it was a wall. `artifacts`: what can be seen and written to all the same. */
export function explained(message: string, { hidden, readOnly }: Walls, artifacts: string | undefined): string {
  const [, code, ...paths] = FILE_ERROR.exec(message) ?? [];
  const real = paths.filter((path) => path !== undefined).map((path) => realPath(resolve(path)));
  const isAnyIn = (folders: readonly string[]): boolean => real.some((path) => folders.some((folder) => isWithin(path, folder)));
  if (code === undefined || (artifacts !== undefined && isAnyIn([artifacts]))) return message;
  if (code !== 'EROFS' && isAnyIn(hidden)) return `${message} (${HIDDEN})`;
  return code === 'EROFS' && isAnyIn(readOnly) ? `${message} (${READ_ONLY})` : message;
}

/** Walls are put up around real paths; what is not there has the one of its folder. */
function realPath(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return dirname(path) === path ? path : join(realPath(dirname(path)), basename(path));
  }
}

function isWithin(path: string, folder: string): boolean {
  return path === folder || relative(folder, path).split(sep)[0] !== '..';
}
