/**
 * Who imports whom in src/, and the rules about it: imports only point down the levels, siblings of one level never import each
 * other, nothing goes in circles, and nothing is imported that is not shipped.
 *
 * Every form with a literal specifier counts: import, import type, export from, import('…'), import('…').Type and require('…').
 * A specifier that is computed at run time is not seen.
 */
import { builtinModules } from 'node:module';
import { posix } from 'node:path';
import { Visitor } from 'vite';
import { isKernel, isPage, isTest, lineAt, type Source } from './sources.ts';

/** The street and what a run is made of, lowest level first: imports only point down it, and folders of one level never import each other. */
export const LEVELS = [
  ['core'],
  ['tokens', 'http', 'processes', 'engines/embedded'],
  ['rollout', 'gateway', 'grading', 'store', 'tasks'],
  ['settings'],
  ['engines'],
  ['run'],
  ['evaluation'],
  ['training'],
  ['audit', 'export', 'serve'],
  ['cli'],
] as const satisfies readonly (readonly string[])[];

/** Rooms: a feature each. A room imports the street and no other room; the street loads a room when it is asked for. */
export const ROOMS: readonly string[] = [
  'engines/tinker',
  ...['shapes/areal', 'shapes/flows', 'shapes/osmosis', 'shapes/tuner'],
  ...['places/process', 'places/workers'],
  ...['graders', 'init', 'integrations', 'view'],
];

/** Folders that only group rooms, each with a folder of its own. */
const GROUPS = /^(?:engines|shapes|places)$/;

/** The package's doors: they load, by import(), what stands above them. */
const DOORS = 'src/run/start.ts';

/** Development packages that are in the bundle of the page. */
const BUNDLED = ['preact', 'uplot'];

const MEET = 'meet in a contract of core/, and wire both above them';
const isRoom = (folder: string | undefined): boolean => ROOMS.includes(folder ?? '');

export interface ImportSite {
  readonly specifier: string;
  readonly line: number;
  /** `import('…')`: loaded when the code comes to it, not with the module. */
  readonly late?: true;
  /** A type only: nothing is loaded. */
  readonly erased?: true;
}

interface Edge extends ImportSite {
  readonly from: string;
  readonly to: string;
}

/** What package.json says may be imported. */
export interface DeclaredPackages {
  readonly name: string;
  /** Installed for users: dependencies, optional ones and peers. */
  readonly runtime: ReadonlySet<string>;
  readonly development: ReadonlySet<string>;
}

export function importsOf(source: Source): readonly ImportSite[] {
  const sites: ImportSite[] = [];
  const add = (node: unknown, offset: number, how: Pick<ImportSite, 'late' | 'erased'> = {}): void => {
    const specifier = literalText(node);
    if (specifier !== undefined) sites.push({ specifier, line: lineAt(source, offset), ...how });
  };
  const erased = (kind: string | undefined): Pick<ImportSite, 'erased'> => (kind === 'type' ? { erased: true } : {});
  new Visitor({
    ImportDeclaration: (node) => add(node.source, node.start, erased(node.importKind)),
    ExportAllDeclaration: (node) => add(node.source, node.start),
    ExportNamedDeclaration: (node) => add(node.source, node.start, erased(node.exportKind)),
    ImportExpression: (node) => add(node.source, node.start, { late: true }),
    TSImportType: (node) => add(node.source, node.start, { erased: true }),
    TSExternalModuleReference: (node) => add(node.expression, node.start),
    CallExpression: (node) => {
      if (node.callee.type === 'Identifier' && node.callee.name === 'require') add(node.arguments[0], node.start);
    },
  }).visit(source.program);
  return sites;
}

/** Direction: only downwards, never sideways; the files directly in src/ are for users of the package, not for us. */
export function directionFaults(sources: readonly Source[]): readonly string[] {
  const unplaced = sources.filter(
    ({ path }) => folderOf(path) !== undefined && levelOf(path) === undefined && !isRoom(folderOf(path)),
  );
  const faults = unplaced.map(
    ({ path }) =>
      `${path}: folder src/${folderOf(path)}/ is in neither ring; move the file, or add the folder to LEVELS or ROOMS and to the plan`,
  );
  for (const edge of relativeEdges(sources)) {
    const fault = directionFault(edge);
    if (fault !== undefined) faults.push(`${edge.from}:${edge.line}: imports ${edge.to}, ${fault}`);
  }
  return faults;
}

function directionFault({ from, to, late, erased }: Edge): string | undefined {
  const [fromFolder, toFolder] = [folderOf(from), folderOf(to)];
  const [fromLevel, toLevel] = [levelOf(from), levelOf(to)];
  if (!to.startsWith('src/'))
    return isTest(from) ? undefined : 'outside src/, which is not in the package; move what is needed into src/';
  if (isKernel(from) !== isKernel(to)) return 'across the border of the WASM kernels; pass the value through the compiled module';
  if (isPage(from) && !isPage(to) && !erased && toFolder !== 'core')
    return 'which a browser lacks; import its types only, or what is in core/';
  if (isPage(to) && !isPage(from)) return 'the page, which is bundled; meet in src/view/api.ts';
  if (fromFolder === undefined || fromFolder === toFolder) return undefined;
  if (from === DOORS && (late || erased)) return undefined;
  if (toFolder === undefined) return 'a file of the public surface; import the file that declares the name instead';
  const [fromRoom, toRoom] = [isRoom(fromFolder), isRoom(toFolder)];
  if (fromRoom && toRoom) return isTest(from) ? undefined : `another room; ${MEET}`;
  if (toRoom) return late || isTest(from) ? undefined : 'a room, with the module; load it where it is asked for, by import()';
  if (fromRoom) return toFolder === 'cli' ? 'the command line; pass what is needed' : undefined;
  if (fromLevel === undefined || toLevel === undefined || toLevel < fromLevel) return undefined;
  const remedy = isTest(from) ? 'move the test under test/' : MEET;
  const relation = toLevel === fromLevel ? `a sibling on L${toLevel}` : `upwards from L${fromLevel} to L${toLevel}`;
  return `${relation}; ${remedy}`;
}

/** Each circle once, as the path that walks it; what is loaded later closes no circle. */
export function cycleFaults(sources: readonly Source[]): readonly string[] {
  const targets = new Map<string, string[]>(sources.map(({ path }) => [path, []]));
  for (const { from, to, late } of relativeEdges(sources)) if (!late) targets.get(from)?.push(to);
  const faults: string[] = [];
  const finished = new Set<string>();
  const walk = (path: string, trail: readonly string[]): void => {
    const start = trail.indexOf(path);
    if (start >= 0) {
      faults.push(
        `${[...trail.slice(start), path].join(' → ')}: files import in a circle; move what both need into a file below them`,
      );
      return;
    }
    if (finished.has(path)) return;
    for (const next of targets.get(path) ?? []) walk(next, [...trail, path]);
    finished.add(path);
  };
  for (const path of targets.keys()) walk(path, []);
  return faults;
}

/** A package of ours beside src/ uses what every user has: itself, and the files directly in src/, which its build names by their sub-paths. */
export function doorFaults(sources: readonly Source[]): readonly string[] {
  const folder = (path: string): string => path.split('/').slice(0, 2).join('/');
  return relativeEdges(sources)
    .filter(({ from, to }) => folder(to) !== folder(from) && !/^src\/[^/]+\.ts$/.test(to))
    .map(
      ({ from, line, to }) =>
        `${from}:${line}: imports ${to}, which is not public; export it from a file directly in src/, or do without`,
    );
}

/** Relative specifiers name an existing `.ts` file; bare ones are Node's, with `node:`, or declared for users. */
export function specifierFaults(sources: readonly Source[], packages: DeclaredPackages): readonly string[] {
  const paths = new Set(sources.map(({ path }) => path));
  return sources.flatMap((source) =>
    importsOf(source).flatMap(({ specifier, line }) => {
      const fault = specifier.startsWith('.')
        ? relativeFault(source.path, specifier, paths)
        : bareFault(source.path, specifier, packages);
      return fault === undefined ? [] : [`${source.path}:${line}: '${specifier}' ${fault}`];
    }),
  );
}

function relativeFault(from: string, specifier: string, paths: ReadonlySet<string>): string | undefined {
  if (isPage(from) && specifier.endsWith('.css')) return undefined;
  if (!isKernel(from) && !/\.tsx?$/.test(specifier)) return 'does not end in .ts; Node needs the full file name';
  const target = resolve(from, specifier);
  if (target.startsWith('src/') && !paths.has(target)) return `names ${target}, which does not exist; correct the path`;
  return undefined;
}

function bareFault(from: string, specifier: string, packages: DeclaredPackages): string | undefined {
  if (specifier.startsWith('node:')) return undefined;
  if (builtinModules.includes(specifier)) return `is Node's own; write 'node:${specifier}'`;
  const name = packageOf(specifier);
  if (name === packages.name) return 'is this package; import the file by its relative path';
  if (packages.runtime.has(name)) return undefined;
  if (isPage(from) && BUNDLED.includes(name)) return undefined;
  if (!packages.development.has(name)) return 'is not in package.json; add it to dependencies, or do without';
  return isTest(from) ? undefined : 'is a development package that users do not install; move it to dependencies, or do without';
}

/**
 * Files directly in src/ only re-export, by name; files in folders are never only that. The kernels are exempt: there an entry
 * file's re-exports are what the compiled module exports.
 */
export function surfaceFaults(sources: readonly Source[]): readonly string[] {
  return sources.flatMap((source) => {
    const inFolder = folderOf(source.path) !== undefined;
    const { body } = source.program;
    const reExports = body.filter(isReExport);
    if (inFolder) {
      const barrel = body.length > 0 && reExports.length === body.length && !isKernel(source.path);
      return barrel ? [`${source.path}: only re-exports; import from the declaring files and delete this barrel`] : [];
    }
    return body.flatMap((node) => {
      const at = `${source.path}:${lineAt(source, node.start)}`;
      if (!isReExport(node))
        return [`${at}: ${node.type} in a file of the public surface; it may only hold \`export { name } from '…'\``];
      return node.type === 'ExportAllDeclaration' ? [`${at}: \`export *\` hides what is public; list the names`] : [];
    });
  });
}

/** Every file that a file of ours leads to, itself included, by imports that count. */
export function reachedFrom(
  path: string,
  sources: readonly Source[],
  counts: (site: ImportSite) => boolean = ({ late }) => !late,
): readonly Source[] {
  const byPath = new Map(sources.map((source) => [source.path, source]));
  const seen = new Set<Source>();
  const walk = (from: string): void => {
    const source = byPath.get(from);
    if (source === undefined || seen.has(source)) return;
    seen.add(source);
    for (const site of importsOf(source)) if (counts(site) && site.specifier.startsWith('.')) walk(resolve(from, site.specifier));
  };
  walk(path);
  return [...seen];
}

/** Packages that are loaded with a file, or needed to read its types: by it, or by what it imports. */
export function packagesBehind(path: string, sources: readonly Source[]): ReadonlySet<string> {
  const sites = reachedFrom(path, sources)
    .flatMap(importsOf)
    .filter(({ late }) => !late);
  const bare = sites.map(({ specifier }) => specifier).filter((specifier) => !/^(?:node:|\.)/.test(specifier));
  return new Set(bare.map(packageOf));
}

function packageOf(specifier: string): string {
  return specifier.split('/', specifier.startsWith('@') ? 2 : 1).join('/');
}

function isReExport(node: Source['program']['body'][number]): boolean {
  return node.type === 'ExportAllDeclaration' || (node.type === 'ExportNamedDeclaration' && node.source !== null);
}

function relativeEdges(sources: readonly Source[]): readonly Edge[] {
  return sources.flatMap((source) =>
    importsOf(source)
      .filter(({ specifier }) => specifier.startsWith('.'))
      .map((site) => ({ ...site, from: source.path, to: resolve(source.path, site.specifier) })),
  );
}

function resolve(from: string, specifier: string): string {
  const target = posix.join(posix.dirname(from), specifier);
  return /\.(?:tsx?|css)$/.test(target) ? target : `${target}.ts`;
}

/** The folder of src/ that a file lives in, as the plan names it; undefined for files directly in src/ and outside. */
export function folderOf(path: string): string | undefined {
  const [, folder, inner] = /^src\/([^/]+)\/(?:([^/]+)\/)?/.exec(path) ?? [];
  return folder !== undefined && inner !== undefined && GROUPS.test(folder) ? `${folder}/${inner}` : folder;
}

function levelOf(path: string): number | undefined {
  const level = LEVELS.findIndex((folders) => (folders as readonly string[]).includes(folderOf(path) ?? ''));
  return level < 0 ? undefined : level;
}

function literalText(node: unknown): string | undefined {
  if (typeof node !== 'object' || node === null) return undefined;
  if ('value' in node && typeof node.value === 'string') return node.value;
  const template = node as { readonly quasis?: readonly { readonly value: { readonly cooked: string | null } }[] };
  return template.quasis?.length === 1 ? (template.quasis[0]?.value.cooked ?? undefined) : undefined;
}
