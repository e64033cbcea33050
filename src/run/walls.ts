/**
 * What a rollout in a process of its own must neither see nor change: the run's directory with its store, the earlier runs beside it (what
 * earned a reward there is an answer here), the files that hold answers (and the history of the repository they are in), and the sources that the grader is loaded from, with their packages.
 *
 * Only what is known here can be kept from it: copies of the tasks that lie elsewhere are not.
 */
import { existsSync, readdirSync, realpathSync } from 'node:fs';
import { mkdir, rmdir } from 'node:fs/promises';
import { homedir, tmpdir } from 'node:os';
import { dirname, join, relative, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { ModuleExport } from '../rollout/discovery.ts';
import type { RunWalls } from '../rollout/runner.ts';

export interface RunFiles {
  /** Of a run that is kept on disk. Made where it is not there yet: what is not there cannot be hidden. */
  readonly run?: string | undefined;
  /** Files with answers. */
  readonly tasks: readonly unknown[];
  readonly module: ModuleExport | undefined;
}

export function wallsOf({ run, tasks, module }: RunFiles): RunWalls {
  const files = tasks.filter((path) => typeof path === 'string' && existsSync(path)).map((path) => realpathSync(String(path)));
  const histories = files.flatMap((file) => above(dirname(file), '.git').slice(0, 1));
  const root = run === undefined || !existsSync(run) ? [] : [realpathSync(run)];
  return {
    hidden: outermost([...root, ...root.flatMap(runsBeside), ...files, ...histories]),
    readOnly: module === undefined ? [] : sourcesOf(realpathSync(fileURLToPath(module.url))),
    ...(root[0] === undefined ? {} : { artifacts: join(root[0], 'artifacts') }),
  };
}

function runsBeside(run: string): readonly string[] {
  const beside = readdirSync(dirname(run), { withFileTypes: true }).filter((entry) => entry.isDirectory());
  return beside.map(({ name }) => join(dirname(run), name)).filter((folder) => existsSync(join(folder, 'run.json')));
}

/**
 * The project of the entry, or as much of it as holds no folder that programs must be able to write to; packages, those that are only
 * linked to too; Trainyard itself, and the Node that graders are started with.
 */
function sourcesOf(entry: string): readonly string[] {
  const writable = [homedir(), tmpdir()].map((path) => (existsSync(path) ? realpathSync(path) : path));
  const isPossible = (folder: string): boolean => !writable.some((path) => isWithin(path, folder));
  const project = above(dirname(entry), 'package.json').map(dirname)[0];
  const own = [project, dirname(entry), entry].find((path) => path !== undefined && isPossible(path)) ?? entry;
  const trainyard = resolve(import.meta.dirname, '..');
  const packages = above(dirname(entry), 'node_modules').flatMap((folder) => [folder, ...linkedFrom(folder)]);
  const all = [own, ...packages.filter((path) => isPossible(realpathSync(path))), trainyard, process.execPath];
  return outermost(all.map((path) => realpathSync(path)));
}

/** Packages of a workspace, or of a developer at work on them: links in `node_modules`, or in a folder `@scope` of it. */
function linkedFrom(modules: string): readonly string[] {
  return readdirSync(modules, { withFileTypes: true }).flatMap((entry) => {
    const path = join(modules, entry.name);
    if (entry.isDirectory() && entry.name.startsWith('@')) return linkedFrom(path);
    return entry.isSymbolicLink() && existsSync(path) ? [path] : [];
  });
}

/** Without what lies within another of them. */
function outermost(paths: readonly string[]): readonly string[] {
  return [...new Set(paths)].filter((path) => !paths.some((other) => other !== path && isWithin(path, other)));
}

/** What of this name lies in the folder or above it, the nearest first. */
function above(folder: string, name: string): readonly string[] {
  const here = existsSync(join(folder, name)) ? [join(folder, name)] : [];
  return dirname(folder) === folder ? here : [...here, ...above(dirname(folder), name)];
}

function isWithin(path: string, folder: string): boolean {
  return path === folder || !relative(folder, path).split(sep).includes('..');
}

/**
 * Makes a folder before there is anything to put into it; what cannot be made is left to whoever needs it. Disposing removes what was made,
 * as far as it stayed empty.
 */
export async function reserved(folder: string): Promise<AsyncDisposable> {
  const made: string[] = [];
  const missing: string[] = [];
  for (let path = resolve(folder); !existsSync(path); path = dirname(path)) missing.unshift(path);
  for (const path of missing) {
    if (!(await succeeds(mkdir(path)))) break;
    made.unshift(path);
  }
  return {
    async [Symbol.asyncDispose]() {
      for (const path of made) if (!(await succeeds(rmdir(path)))) return;
    },
  };
}

function succeeds(doing: Promise<unknown>): Promise<boolean> {
  return doing.then(
    () => true,
    () => false,
  );
}
