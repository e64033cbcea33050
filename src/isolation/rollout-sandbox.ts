/**
 * The sandbox of an isolated rollout: what it sees of this machine, and the bubblewrap command that its process is started through.
 *
 * Everything is read-only but a temporary folder of the process's own, which also holds its home, and the folder for the rollout's files.
 * Hidden are the task files, the run and its neighbours (what earned a reward there is an answer here), the Git history of the tasks and of
 * the project, other programs' sockets in /run, devices, and all processes but its own. It has the network and this user's other files, to
 * read: copies of the tasks that lie elsewhere are not hidden.
 */
import { existsSync, lstatSync, readdirSync, readFileSync, realpathSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { basename, dirname, join, relative, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Bubblewrap, COMMON_OPTIONS, procOptions } from '../processes/bubblewrap.ts';
import { tried } from '../processes/limits.ts';
import type { HiddenFiles } from '../rollout/runner.ts';

export interface RolloutView {
  /** Folders are empty, and so are files. */
  readonly hidden: readonly string[];
  /** Files that the process is made of, shown also inside a hidden folder. */
  readonly sources: readonly string[];
  /** Where rollouts find the folder for their files, inside of what is hidden. */
  readonly artifacts: string | undefined;
}

/** Paths are real ones. The run's folder has to exist: what is made later cannot be hidden now. `more` is hidden, too. */
export function viewOf({ run, tasks }: HiddenFiles, entryUrl: string, more: readonly string[] = []): RolloutView {
  const entry = realpathSync(fileURLToPath(entryUrl));
  const files = tasks.filter((path) => typeof path === 'string' && existsSync(path)).map((path) => realpathSync(String(path)));
  const sources = sourcesOf(entry);
  const root = run === undefined || !existsSync(run) ? undefined : realpathSync(run);
  const projects = [process.cwd(), dirname(entry), ...files.map(dirname)];
  return {
    hidden: [
      ...more,
      ...files,
      ...projects.flatMap((folder) => above(folder, '.git')).flatMap(historyOf),
      ...(root === undefined ? [] : [root, ...neighboursOf(root, [...sources, process.cwd(), homedir(), tmpdir(), TMP_INSIDE])]),
      ...[process.cwd(), dirname(entry)].map((folder) => join(folder, 'runs')).filter((folder) => existsSync(folder)),
    ].map((path) => realpathSync(path)),
    sources,
    artifacts: root && join(root, 'artifacts'),
  };
}

/** The folder of the entry, its project and its packages, also those that are only linked to; Trainyard itself, and Node. */
function sourcesOf(entry: string): readonly string[] {
  const project = above(dirname(entry), 'package.json').map(dirname)[0];
  const packages = above(dirname(entry), 'node_modules').flatMap((folder) => [folder, ...linkedFrom(folder)]);
  const trainyard = resolve(import.meta.dirname, '..');
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

/** Packages of a workspace, or of a developer at work on them: links in `node_modules`, or in a folder `@scope` of it. */
function linkedFrom(modules: string): readonly string[] {
  return readdirSync(modules, { withFileTypes: true }).flatMap((entry) => {
    const path = join(modules, entry.name);
    if (entry.isDirectory() && entry.name.startsWith('@')) return linkedFrom(path);
    return entry.isSymbolicLink() && existsSync(path) ? [path] : [];
  });
}

/** A worktree or a submodule has a file that names its folder; the history is where that folder says. */
function historyOf(git: string): readonly string[] {
  const named = tried(() => /^gitdir: (.+)$/m.exec(readFileSync(git, 'utf8'))?.[1]);
  if (named === undefined) return [git];
  const folder = resolve(dirname(git), named);
  const common = tried(() => resolve(folder, readFileSync(join(folder, 'commondir'), 'utf8').trim()));
  return [git, folder, ...(common === undefined ? [] : [common])].filter((path) => existsSync(path));
}

/** One of these is in every directory of a run, of `serve` and of `tinker`. */
const OURS = ['run.json', 'store.sqlite', 'api-key'];

/** The whole folder that a run is in, also for what is put there later; where that holds other things too, the directories like it. */
function neighboursOf(run: string, needed: readonly string[]): readonly string[] {
  const folder = dirname(run);
  if (!needed.some((path) => isWithin(path, folder))) return [folder];
  const beside = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  return beside.map(({ name }) => join(folder, name)).filter((path) => OURS.some((file) => existsSync(join(path, file))));
}

/** Paths with this name in the folder and in those above it, the nearest first. */
function above(folder: string, name: string): readonly string[] {
  const here = existsSync(join(folder, name)) ? [join(folder, name)] : [];
  return dirname(folder) === folder ? here : [...here, ...above(dirname(folder), name)];
}

function isWithin(path: string, folder: string): boolean {
  return path === folder || relative(folder, path).split(sep)[0] !== '..';
}

// ── the command ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Folders of one process, by their paths outside of the sandbox. */
export interface OwnFolders {
  /** Its temporary folder, in which its home is. */
  readonly tmp: string;
  readonly artifacts: string;
  /** An empty file. */
  readonly empty: string;
}

/** Where the process finds them. */
export const TMP_INSIDE = '/tmp';
export const HOME_INSIDE = '/tmp/home';

/** Graphics processors. Other devices are not there: as root, a disk can be read without any rights. */
const DEVICES = /^(nvidia.*|dri|kfd)$/;

/** To be put before a command and its arguments. Keeps all descriptors, and the working directory where that is not hidden. */
export function sandboxCommand(
  bubblewrap: Bubblewrap,
  { hidden, sources, artifacts }: RolloutView,
  own: OwnFolders,
): readonly string[] {
  const devices = readdirSync('/dev').filter((name) => DEVICES.test(name));
  const layers = layersOf([...MASKED, ...hidden], sources).filter(({ path }) => !MASKED.includes(path));
  const isFolder = ({ path, isHidden }: Layer): boolean => isHidden && lstatSync(path).isDirectory();
  const optionsOf = (layer: Layer): readonly string[] => {
    if (isFolder(layer)) return ['--tmpfs', layer.path];
    return ['--ro-bind', layer.isHidden ? own.empty : layer.path, layer.path];
  };
  return [
    ...[bubblewrap.path, ...COMMON_OPTIONS, '--ro-bind', '/', '/', '--dev', '/dev'],
    ...devices.flatMap((name) => ['--dev-bind', `/dev/${name}`, `/dev/${name}`]),
    ...[...procOptions(bubblewrap), '--tmpfs', '/run', ...nameServers(), '--bind', own.tmp, TMP_INSIDE],
    ...layers.flatMap(optionsOf),
    ...(artifacts === undefined ? [] : ['--bind', own.artifacts, artifacts]),
    ...['/run', ...layers.filter(isFolder).map(({ path }) => path)].flatMap((path) => ['--remount-ro', path]),
    '--',
  ];
}

/** Replaced as a whole: by the process's own folder, and by nothing. */
const MASKED: readonly string[] = [TMP_INSIDE, '/run'];

interface Layer {
  readonly path: string;
  readonly isHidden: boolean;
}

/** Mounts in their order, the outermost first: a source in a hidden folder is shown, a task file in the source is hidden again. */
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

/** Many systems keep the addresses of name servers in /run. */
function nameServers(): readonly string[] {
  const file = tried(() => realpathSync('/etc/resolv.conf'));
  return file?.startsWith('/run/') ? ['--ro-bind', dirname(file), dirname(file)] : [];
}

// ── in words ────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** As Node writes them: `EROFS: read-only file system, open '/project/log.txt'`. */
const FILE_ERROR = /\b(EROFS|EACCES|EPERM|ENOENT): [^,\n]*, \w+ '([^'\n]+)'(?: -> '([^'\n]+)')?/;
const READ_ONLY = 'files are read-only under isolation: write to ctx.artifactsDir or os.tmpdir()';
const HIDDEN =
  'tasks, runs and the Git history are hidden under isolation: read from ctx.task, write to ctx.artifactsDir or os.tmpdir()';

/** Adds to a message of a rollout why a file that others have is not there, or cannot be written. */
export function explained(message: string, { hidden, artifacts }: RolloutView): string {
  const [, code, ...paths] = FILE_ERROR.exec(message) ?? [];
  const real = paths.filter((path) => path !== undefined).map((path) => realPath(resolve(path)));
  const isAnyIn = (folders: readonly string[]): boolean => real.some((path) => folders.some((folder) => isWithin(path, folder)));
  if (code === undefined || (artifacts !== undefined && isAnyIn([artifacts]))) return message;
  if (code === 'EROFS') return `${message} (${READ_ONLY})`;
  return isAnyIn(hidden) ? `${message} (${HIDDEN})` : message;
}

/** A path that does not exist goes by the real path of its folder. */
function realPath(path: string): string {
  return tried(() => realpathSync(path)) ?? (dirname(path) === path ? path : join(realPath(dirname(path)), basename(path)));
}
