/**
 * The sandbox of an isolated rollout: what it sees of this machine, and the bubblewrap command that starts its process.
 *
 * Only its own temporary folder, which contains its home, and the folder for its artifacts are writable. Hidden are the task files, the run
 * and its neighbours (a rewarded trajectory there reveals an answer), the Git history of tasks and project, what opens the store, what the
 * workflow lists, sockets in /run, devices, and other processes. It has the network and can read this user's other files, including copies
 * of the tasks elsewhere. Where another file replaces a hidden one, the kernel shows that: `replaced` finds it.
 */
import { existsSync, globSync, lstatSync, readdirSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { basename, dirname, join, relative, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Workflow } from '../../core/contracts.ts';
import { TrainyardError, tried } from '../../core/errors.ts';
import { type Bubblewrap, COMMON_OPTIONS, procOptions } from '../../processes/bubblewrap.ts';
import type { HiddenFiles } from '../../rollout/runner.ts';

export interface RolloutView {
  /** Hidden folders and files appear empty. */
  readonly hidden: readonly string[];
  /** Code that the process needs, visible even inside a hidden folder. */
  readonly sources: readonly string[];
  /** Both, in the order of their mounts. */
  readonly layers: readonly Layer[];
  /** Where rollouts find their artifacts folder, inside a hidden folder. */
  readonly artifacts: string | undefined;
  /** A file with answers or passwords that has come, gone or been replaced since, or runs that came: what is there now is not hidden. */
  replaced(): string | undefined;
}

/**
 * Resolves all paths. The run's folder must exist: what is created later cannot be hidden now. `more`: further paths to hide. `model`: a folder
 * to show wherever it lies.
 */
export function viewOf(files: HiddenFiles, entryUrl: string, more: readonly string[] = [], model?: string): RolloutView {
  const entry = realpathSync(fileURLToPath(entryUrl));
  const secrets = (): ReadonlyMap<string, string> => identities(secretPaths(files, dirname(entry)));
  const before = secrets();
  const found = [...before.keys()].flatMap(existing);
  const sources = [...sourcesOf(entry), ...existing(model)];
  const [root] = existing(files.run);
  const runs = [...existing(files.run), ...found.filter(isRun)];
  const needed = [...sources, process.cwd(), homedir(), TMP_INSIDE];
  const projects = [process.cwd(), dirname(entry), ...found.map(dirname)];
  const runFolders = (): readonly string[] => [
    ...runs.flatMap((run) => [run, ...neighboursOf(run, [...needed, tmpdir()])]),
    ...[process.cwd(), dirname(entry)].map((folder) => join(folder, 'runs')),
  ];
  const runsBefore = identities(runFolders());
  const hidden = [
    ...more,
    ...found,
    ...projects.flatMap((folder) => above(folder, '.git')).flatMap(historyOf),
    ...runFolders(),
    // Files of other rollouts and workers.
    ...(needed.some((path) => isWithin(path, realPath(tmpdir()))) ? [] : [tmpdir()]),
  ].flatMap(existing);
  const layers = layersOf([...MASKED, ...hidden], sources);
  const isInHidden = (path: string): boolean => layers.findLast((one) => isWithin(dirname(path), one.path))?.isHidden ?? false;
  return {
    hidden,
    sources,
    layers,
    artifacts: root && join(root, 'artifacts'),
    replaced: () => {
      const now = secrets();
      const changed = [...before.keys(), ...now.keys()].find((path) => before.get(path) !== now.get(path));
      // Runs that are removed reveal nothing, nor does a folder that just went with all of them.
      const came = [...identities(tried(runFolders) ?? [])].find(
        ([path, folder]) => folder !== '' && folder !== runsBefore.get(path) && !isInHidden(path),
      );
      return changed ?? came?.[0];
    },
  };
}

/** What a workflow hides. Throws WORKFLOW_INVALID where its rollouts need it, or there is nothing, which on a worker is as good. */
export function hiddenBy({ name, hidden = [] }: Workflow, entryUrl: string, isWorker = false): readonly string[] {
  const entry = realpathSync(fileURLToPath(entryUrl));
  const cwd = dirname(entry);
  return hidden.flatMap((given) => {
    const path = resolve(cwd, given);
    // Node's globs skip names that begin with a dot.
    const pattern = given.replaceAll(/(?<=^|[/{,])\*(?!\*)/g, '{,.}*');
    const found = existsSync(path) ? [path] : globSync(pattern, { cwd }).map((one) => resolve(cwd, one));
    const needed = [entry, ...sourcesOf(entry)].find((one) => found.some((folder) => isWithin(one, realPath(folder))));
    if (needed === undefined && (found.length > 0 || isWorker)) return found;
    const why = needed === undefined ? `there is no ${path}` : `rollouts need ${needed}`;
    throw new TrainyardError(
      'WORKFLOW_INVALID',
      `workflow ${name} hides ${JSON.stringify(given)}: ${why}`,
      'hidden lists files and folders, from the folder of the entry; * stands for any name: tasks/*/tests',
    );
  });
}

const USUAL_TASKS = /^(train|held-out)\.(.+\.)?(jsonl?|ndjson|csv|tsv|parquet)$/i;
const PASSWORD_VARIABLES = ['PGPASSFILE', 'PGPASSWORD_FILE', 'PGSERVICEFILE', 'PGSSLKEY', 'PGSSLCERT'];
const IN_HOME = ['.pgpass', '.pg_service.conf', '.postgresql'];

/**
 * Answers, given or as other runs find them beside the entry; and where clients of PostgreSQL look for passwords and keys, because other
 * runs may have a store there.
 */
export function secretPaths({ tasks, store = '' }: HiddenFiles, entryFolder: string): readonly string[] {
  const { searchParams } = URL.parse(store) ?? {};
  return [
    ...tasks,
    ...readdirSync(entryFolder).flatMap((name) => (USUAL_TASKS.test(name) ? [join(entryFolder, name)] : [])),
    ...PASSWORD_VARIABLES.map((name) => process.env[name]),
    searchParams?.get('sslkey'),
    searchParams?.get('sslcert'),
    ...IN_HOME.map((name) => join(homedir(), name)),
  ].flatMap((path) => (typeof path === 'string' && path !== '' ? [resolve(path)] : []));
}

/** An identity stays when the file is written to, and changes when another one takes its place. */
function identities(paths: readonly string[]): ReadonlyMap<string, string> {
  const found = paths.map((path) => [path, tried(() => statSync(path, { bigint: true }))] as const);
  return new Map(found.map(([path, file]) => [path, file ? `${file.dev} ${file.ino} ${file.birthtimeNs}` : '']));
}

/** The real path, if there is one. */
function existing(path: string | undefined): readonly string[] {
  return path !== undefined && existsSync(path) ? [realpathSync(path)] : [];
}

/** The entry's folder, project and packages (linked ones too), Trainyard itself, and Node. */
function sourcesOf(entry: string): readonly string[] {
  const project = above(dirname(entry), 'package.json').map(dirname)[0];
  const packages = above(dirname(entry), 'node_modules').flatMap((folder) => [folder, ...linkedFrom(folder)]);
  const trainyard = resolve(import.meta.dirname, '../..');
  const all = [
    ...(project === undefined ? [] : [project]),
    dirname(entry),
    ...packages,
    trainyard,
    ...above(trainyard, 'node_modules'),
    process.execPath,
  ];
  return [...new Set(all.map((path) => realpathSync(path)))];
}

/** Links in `node_modules` or its `@scope` folders: workspace packages, or packages under development. */
function linkedFrom(modules: string): readonly string[] {
  return readdirSync(modules, { withFileTypes: true }).flatMap((entry) => {
    const path = join(modules, entry.name);
    if (entry.isDirectory() && entry.name.startsWith('@')) return linkedFrom(path);
    return entry.isSymbolicLink() && existsSync(path) ? [path] : [];
  });
}

/** In a worktree or submodule, `.git` is a file that names a folder, which in turn names the history's. */
function historyOf(git: string): readonly string[] {
  const named = tried(() => /^gitdir: (.+)$/m.exec(readFileSync(git, 'utf8'))?.[1]);
  if (named === undefined) return [git];
  const folder = resolve(dirname(git), named);
  const common = tried(() => resolve(folder, readFileSync(join(folder, 'commondir'), 'utf8').trim()));
  return [git, folder, ...(common === undefined ? [] : [common])].filter((path) => existsSync(path));
}

/** Every directory of a run, of `serve` and of `tinker` holds one of these. */
const OURS = ['run.json', 'store.sqlite', 'store.json', 'api-key'];

/** The run's parent folder, which also hides later neighbours. If needed files are in it, only the run directories beside this one. */
function neighboursOf(run: string, needed: readonly string[]): readonly string[] {
  const folder = dirname(run);
  if (!needed.some((path) => isWithin(path, folder))) return [folder];
  const beside = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  return beside.map(({ name }) => join(folder, name)).filter(isRun);
}

function isRun(path: string): boolean {
  return OURS.some((file) => existsSync(join(path, file)));
}

/** Paths with this name in the folder and its ancestors, nearest first. */
function above(folder: string, name: string): readonly string[] {
  const here = existsSync(join(folder, name)) ? [join(folder, name)] : [];
  return dirname(folder) === folder ? here : [...here, ...above(dirname(folder), name)];
}

function isWithin(path: string, folder: string): boolean {
  return path === folder || relative(folder, path).split(sep)[0] !== '..';
}

/** Paths outside the sandbox. */
export interface OwnFolders {
  readonly tmp: string;
  readonly artifacts: string;
  readonly empty: string;
}

export const TMP_INSIDE = '/tmp';
export const HOME_INSIDE = '/tmp/home';

/** GPUs. No other devices: root could read a disk without any further rights. */
const DEVICES = /^(nvidia.*|dri|kfd)$/;

/** The prefix for a command. Keeps all descriptors, and the working directory unless it is hidden. */
export function sandboxCommand(
  bubblewrap: Bubblewrap,
  { layers: all, artifacts }: RolloutView,
  own: OwnFolders,
): readonly string[] {
  const devices = readdirSync('/dev').filter((name) => DEVICES.test(name));
  const layers = all.filter(({ path }) => !MASKED.includes(path));
  const isFolder = ({ path, isHidden }: Layer): boolean => isHidden && lstatSync(path).isDirectory();
  const optionsOf = (layer: Layer): readonly string[] => {
    if (isFolder(layer)) return ['--tmpfs', layer.path];
    return ['--ro-bind', layer.isHidden ? own.empty : layer.path, layer.path];
  };
  return [
    bubblewrap.path,
    ...COMMON_OPTIONS,
    '--ro-bind',
    '/',
    '/',
    '--dev',
    '/dev',
    ...devices.flatMap((name) => ['--dev-bind', `/dev/${name}`, `/dev/${name}`]),
    ...procOptions(bubblewrap),
    '--tmpfs',
    '/run',
    ...nameServers(),
    '--bind',
    own.tmp,
    TMP_INSIDE,
    ...layers.flatMap(optionsOf),
    ...(artifacts === undefined ? [] : ['--bind', own.artifacts, artifacts]),
    ...['/run', ...layers.filter(isFolder).map(({ path }) => path)].flatMap((path) => ['--remount-ro', path]),
    '--',
  ];
}

/** Replaced as a whole: /tmp by the process's own folder, /run by an empty one. */
const MASKED: readonly string[] = [TMP_INSIDE, '/run'];

interface Layer {
  readonly path: string;
  readonly isHidden: boolean;
}

/** Mounts from the outermost inwards: a source in a hidden folder is shown, a task file in that source is hidden again. */
function layersOf(hidden: readonly string[], shown: readonly string[]): readonly Layer[] {
  const layers: Layer[] = [];
  const asked = [
    ...shown.map((path) => ({ path, isHidden: false })),
    ...hidden.filter((path) => !shown.includes(path)).map((path) => ({ path, isHidden: true })),
  ];
  for (const layer of asked.toSorted((a, b) => a.path.length - b.path.length)) {
    const isHidden = layers.findLast(({ path }) => isWithin(layer.path, path))?.isHidden ?? false;
    if (layer.isHidden !== isHidden) layers.push(layer);
  }
  return layers;
}

/** Many systems keep resolv.conf in /run. */
function nameServers(): readonly string[] {
  const file = tried(() => realpathSync('/etc/resolv.conf'));
  return file?.startsWith('/run/') ? ['--ro-bind', dirname(file), dirname(file)] : [];
}

/** Node's format: `EROFS: read-only file system, open '/project/log.txt'`. */
const FILE_ERROR = /\b(EROFS|EACCES|EPERM|ENOENT): [^,\n]*, \w+ '([^'\n]+)'(?: -> '([^'\n]+)')?/;
const READ_ONLY = 'files are read-only under isolation: write to ctx.artifactsDir or os.tmpdir()';
const HIDDEN =
  'tasks, runs, the Git history and what the workflow lists are hidden under isolation: read from ctx.task, write to ctx.artifactsDir or os.tmpdir()';

export function explained(message: string, { hidden, artifacts }: RolloutView): string {
  const [, code, ...paths] = FILE_ERROR.exec(message) ?? [];
  const real = paths.filter((path) => path !== undefined).map((path) => realPath(resolve(path)));
  const isAnyIn = (folders: readonly string[]): boolean => real.some((path) => folders.some((folder) => isWithin(path, folder)));
  if (code === undefined || (artifacts !== undefined && isAnyIn([artifacts]))) return message;
  if (code === 'EROFS') return `${message} (${READ_ONLY})`;
  return isAnyIn(hidden) ? `${message} (${HIDDEN})` : message;
}

/** Resolves the nearest existing ancestor of a path that does not exist. */
function realPath(path: string): string {
  return tried(() => realpathSync(path)) ?? (dirname(path) === path ? path : join(realPath(dirname(path)), basename(path)));
}
