/**
 * The user's own modules: the files that belong to one, what lies beside them, and their import. Node itself loads what it can, which is
 * TypeScript whose types can be removed, with full file names in imports. For the rest tsx is used if it is installed: from then on it
 * transforms whatever this process imports, and every pooled process loads it too. A scan decides this before the first import, because most
 * versions of Node remember a failed one. It finds imports by regular expression and does not follow packages or computed paths.
 */
import { existsSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { createRequire, findPackageJSON, type ResolveHookSync, registerHooks } from 'node:module';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { whileImporting } from '../core/context.ts';
import { tried } from '../core/errors.ts';
import { digestOf } from '../core/json.ts';

export type Exports = Readonly<Record<string, unknown>>;

/** More than any agent has. Bounds cycles of links. */
const MOST_FILES = 2000;
/** Matches `from './x.ts'`, `import './x.ts'`, `import('./x.ts')`, `require('./x.ts')`. */
const IMPORT = /\b(from|import|require)\s*\(?\s*(['"])([^'"\n]+)\2/g;
/** Suffixes that `require` and TypeScript loaders try. */
const ENDINGS = ['', '.ts', '.tsx', '.mts', '.cts', '.js', '.mjs', '.cjs', '.json', '/index.ts', '/index.tsx', '/index.js'];
/** What Node cannot load although it is TypeScript. Matches in comments do no harm. */
const SYNTAX: readonly (readonly [what: string, pattern: RegExp])[] = [
  ['a decorator', /^[ \t]*@[A-Za-z_$]/m],
  ['an enum', /\benum\s+\w+\s*\{/],
  ['a namespace', /\bnamespace\s+[\w.]+\s*\{/],
  ['a parameter property', /\bconstructor\s*\([^{;]*?\b(?:public|private|protected|readonly|override)\s/],
  ['import = or export =', /^[ \t]*(?:export\s*=|(?:export\s+)?import\s+\w+\s*=)/m],
];

/** Digests of the user's code by path. */
export type Sources = Readonly<Record<string, string>>;

interface SourceFile {
  readonly file: string;
  readonly text: string;
  /** Why Node cannot load it, with the line. */
  readonly needs: string | undefined;
}

/** Keyed by path relative to `folder`. Skips unreadable files, which cause an error elsewhere. */
export async function sourceDigests(folder: string, files: readonly string[]): Promise<Sources> {
  const found: [string, string][] = [];
  for await (const { file, text } of sourceFiles(files)) found.push([relative(folder, file), digestOf([text])]);
  return Object.fromEntries(found.toSorted(([a], [b]) => (a < b ? -1 : 1)));
}

/** What lies beside an entry and is no part of it: hidden files, packages, runs, tasks, and what is written all the time. */
const NOT_BESIDE = /^(\..*|node_modules|runs|(train|held-out)\..*|.*\.log|.*-(wal|shm|journal))$/i;
/** What the directory of a run or server holds. */
const OF_RUN = /^(run|store)\.json$/;
const LOCKS = ['package-lock.json', 'npm-shrinkwrap.json', 'pnpm-lock.yaml', 'yarn.lock', 'bun.lock'];
const MOST_BESIDE = 1_000;
const MOST_BYTES = 256 * 1024 * 1024;

/**
 * What else an agent's behaviour depends on, as far as it can be seen: digests of the files in the folder and below, but for `without`, and
 * of the nearest lock of packages; versions of the packages that `modules` import. The first so many, by name.
 */
export async function digestsBeside(folder: string, modules: readonly string[], without: readonly string[]): Promise<Sources> {
  const found: Record<string, string> = {};
  let left = MOST_BYTES;
  const add = async (file: string) => {
    const stats = statSync(file, { throwIfNoEntry: false });
    if (!stats?.isFile() || stats.size > left || Object.keys(found).length >= MOST_BESIDE) return;
    const bytes = await readFile(file).catch(() => undefined);
    if (bytes === undefined) return;
    left -= stats.size;
    found[relative(folder, file)] = digestOf([bytes]);
  };
  const walk = async (within: string) => {
    const entries = await readdir(within, { withFileTypes: true }).catch(() => []);
    if (within !== folder && entries.some(({ name }) => OF_RUN.test(name))) return;
    for (const entry of entries.toSorted((a, b) => (a.name < b.name ? -1 : 1))) {
      const path = join(within, entry.name);
      const file = entry.isSymbolicLink() ? tried(() => realpathSync(path)) : path;
      if (NOT_BESIDE.test(entry.name) || file === undefined || without.includes(file)) continue;
      await (entry.isDirectory() ? walk(path) : add(path));
    }
  };
  for (let above = folder; ; above = dirname(above)) {
    const lock = LOCKS.map((name) => join(above, name)).find(existsSync);
    if (lock !== undefined) await add(lock);
    if (lock !== undefined || dirname(above) === above) break;
  }
  for await (const { file, text } of sourceFiles(modules)) {
    for (const { 3: name = '' } of text.matchAll(IMPORT)) {
      const json = name.startsWith('.') ? undefined : tried(() => findPackageJSON(name, pathToFileURL(file)));
      const known = json && tried(() => JSON.parse(readFileSync(json, 'utf8')) as Readonly<Record<'name' | 'version', string>>);
      if (known) found[`node_modules/${known.name}`] = `${known.version}`;
    }
  }
  await walk(folder);
  return found;
}

/** What in the module's files Node cannot load: `an enum (agent.ts:3)`. */
export async function needsTransform(url: string): Promise<string | undefined> {
  const entry = fileOf(url);
  if (entry === undefined) return undefined;
  for await (const { needs } of sourceFiles([entry])) if (needs !== undefined) return needs;
  return undefined;
}

export async function* sourceFiles(files: readonly string[]): AsyncGenerator<SourceFile> {
  const seen = new Set<string>();
  const waiting = files.map((file) => resolve(file));
  const aliased = await aliasesOf(waiting[0] ?? '');
  while (waiting.length > 0 && seen.size < MOST_FILES) {
    const file = waiting.pop() as string;
    if (seen.has(file)) continue;
    seen.add(file);
    const text = await readFile(file, 'utf8').catch(() => undefined);
    if (text === undefined) continue;
    let needs = syntaxOf(file, text);
    for (const { 1: word, 3: path = '', index } of text.matchAll(IMPORT)) {
      const isRelative = /^\.{1,2}(\/|$)/.test(path);
      const asked = isRelative ? [resolve(dirname(file), path.replace(/[?#].*$/, ''))] : aliased(path, file);
      const found = asked.flatMap((one) => existing(one) ?? [])[0];
      if (found === undefined) continue;
      // Beside ./x.js, a loader may take ./x.ts.
      waiting.push(found, found.replace(/\.([cm]?)js(x?)$/, '.$1ts$2'));
      if (word !== 'require' && (!isRelative || found !== asked[0])) needs ??= `${path} ${placeIn(file, text, index)}`;
    }
    yield { file, text, needs };
  }
}

function syntaxOf(file: string, text: string): string | undefined {
  if (/\.[jt]sx$/.test(file)) return `JSX (${basename(file)})`;
  if (!/\.[cm]?ts$/.test(file)) return undefined;
  const found = SYNTAX.find(([, pattern]) => pattern.test(text));
  return found && `${found[0]} ${placeIn(file, text, text.search(found[1]))}`;
}

function placeIn(file: string, text: string, index: number): string {
  return `(${basename(file)}:${text.slice(0, index).split('\n').length})`;
}

/** `./x.js` may mean `./x.ts`. */
function existing(path: string): string | undefined {
  const meant = path.replace(/\.([cm]?)js(x?)$/, '.$1ts$2');
  const candidates = [...ENDINGS.map((ending) => path + ending), meant, `${meant}x`];
  return candidates.find((candidate) => statSync(candidate, { throwIfNoEntry: false })?.isFile());
}

/** Where `paths` and `baseUrl` of the nearest tsconfig.json may have a name that is not relative: none if a package has it. */
async function aliasesOf(file: string): Promise<(name: string, from: string) => readonly string[]> {
  const { createPathsMatcher, getTsconfig } = await import('get-tsconfig');
  // One that cannot be read is reported by tsx.
  const tsconfig = tried(() => getTsconfig(file));
  const placesOf = tsconfig && createPathsMatcher(tsconfig);
  return (name, from) => {
    const places = placesOf?.(name) ?? [];
    const isPackage = places.length > 0 && tried(() => findPackageJSON(name, pathToFileURL(from))) !== undefined;
    return isPackage ? [] : places;
  };
}

export function fileOf(url: string): string | undefined {
  return url.startsWith('file:') ? fileURLToPath(url.replace(/[?#].*$/, '')) : undefined;
}

/** How this process loads what Node cannot, as JSON for the processes that it starts. Empty: it does not. */
let transformer = '';

export const transformerInUse = (): string => transformer;

const announced = new Map<string, object[]>();

/** What the module announced while this process first imported it. */
export const announcedBy = (url: string): readonly object[] => announced.get(url) ?? [];

/** Throws what Node throws. */
export async function importUserModule(url: string): Promise<Exports> {
  const isTransformed = transformer !== '' || ((await needsTransform(url)) !== undefined && (await transforms(url)));
  const found = announced.get(url) ?? [];
  announced.set(url, found);
  const load = () => whileImporting(found, () => import(url));
  try {
    return await load();
  } catch (thrown) {
    if (isTransformed || !isCurable(thrown) || !(await transforms(url))) throw thrown;
    return await load();
  }
}

const CURABLE = /^ERR_(UNSUPPORTED_(TYPESCRIPT_SYNTAX|DIR_IMPORT|NODE_MODULES_TYPE_STRIPPING)|UNKNOWN_FILE_EXTENSION)$/;

/** Whether tsx might load what Node refused with this error. */
function isCurable(thrown: unknown): boolean {
  const { code, message = '' } = (thrown ?? {}) as { readonly code?: unknown; readonly message?: unknown };
  if (code === 'ERR_MODULE_NOT_FOUND') return String(message).startsWith('Cannot find module');
  return CURABLE.test(String(code)) || (thrown instanceof SyntaxError && message === 'Invalid or unexpected token');
}

/** Loads tsx from where the module is, else from where Trainyard is. False if it is not installed. */
async function transforms(url: string): Promise<boolean> {
  const file = fileOf(url);
  const found = [file, import.meta.filename].flatMap(
    (from) => (from && tried(() => createRequire(from).resolve('tsx/esm'))) || [],
  );
  if (file === undefined || found[0] === undefined) return false;
  const { findTsconfig } = await import('get-tsconfig');
  await useTransformer(JSON.stringify([pathToFileURL(found[0]).href, findTsconfig(file)]));
  return true;
}

/** `given`: what `transformerInUse` returned in the process that started this one. */
export async function useTransformer(given: string): Promise<void> {
  if (given === '' || given === transformer) return;
  const [tsx, tsconfig] = JSON.parse(given) as readonly [string, string | null];
  const before = process.env['TSX_TSCONFIG_PATH'];
  // Otherwise tsx looks for one in the working directory.
  if (tsconfig) process.env['TSX_TSCONFIG_PATH'] = before ?? tsconfig;
  await import(tsx);
  registerHooks({ resolve: keepModules });
  if (before === undefined) delete process.env['TSX_TSCONFIG_PATH'];
  transformer = given;
}

const MODULE_SYNTAX = /^[ \t]*(?:import|export)\b(?!\s*=)/m;

/**
 * In a package without `"type": "module"`, tsx makes CommonJS of modules: with a second `trainyard` of their own, and their exports one level
 * deeper. Node, which looks at the syntax, does not.
 */
const keepModules: ResolveHookSync = (specifier, context, next) => {
  const resolved = next(specifier, context);
  const file = resolved.format === 'commonjs' ? fileOf(resolved.url) : undefined;
  if (file === undefined || file.includes('/node_modules/') || !/\.[jt]sx?$/.test(file)) return resolved;
  return MODULE_SYNTAX.test(tried(() => readFileSync(file, 'utf8')) ?? '') ? { ...resolved, format: 'module' } : resolved;
};
