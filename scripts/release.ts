/**
 * A release, tried before it is one: packs the tarballs, installs them into a fresh project in a temporary folder, and does there what a user does
 * first. With `--publish`, and only if all of that worked, the tarballs that were tried are published. It changes no version, tag or changelog.
 * It needs a registry, and runs on Linux and macOS.
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, posix } from 'node:path';
import { parseArgs } from 'node:util';

interface Manifest {
  readonly version: string;
  readonly exports: Readonly<Record<string, unknown>>;
  readonly peerDependencies: Readonly<Record<string, string>>;
  readonly devDependencies: Readonly<Record<string, string>>;
}

const root = join(import.meta.dirname, '..');
const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as Manifest;
/** In the order in which they are published: the second depends on the first. */
const PACKAGES = ['.', 'packages/create-trainyard'];
const QUIET = ['--no-audit', '--no-fund', '--loglevel=error'];

function run(cwd: string, program: string, ...args: readonly string[]): string {
  console.log(`$ ${program} ${args.join(' ')}`);
  return execFileSync(program, args, { cwd, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'], maxBuffer: 2 ** 26 });
}

function mustBe(isTrue: boolean, what: string): void {
  if (!isTrue) throw new Error(`not released: ${what}`);
}

/** What would make the published package another one than the tree, or publish what nobody meant to. */
function mustBeReleasable(): void {
  mustBe(run(root, 'git', 'status', '--porcelain') === '', 'the working tree has changes');
  const heading = /^## (.*)$/m.exec(readFileSync(join(root, 'CHANGELOG.md'), 'utf8'))?.[1] ?? '';
  mustBe(heading.startsWith(manifest.version), `the first heading of CHANGELOG.md is ${heading}, not ${manifest.version}`);
  mustBe(!/unreleased/i.test(heading), `CHANGELOG.md says that ${manifest.version} is unreleased`);
}

function pack(home: string): readonly string[] {
  return PACKAGES.map((folder) => {
    const before = readdirSync(home);
    run(join(root, folder), 'npm', 'pack', '--pack-destination', home, '--loglevel=error');
    const [tarball = ''] = readdirSync(home).filter((name) => !before.includes(name));
    return join(home, tarball);
  });
}

/** Optional peers that sub-paths import, at the versions that the tests use. */
function peers(): readonly string[] {
  return Object.keys(manifest.peerDependencies).flatMap((name) => {
    const version = manifest.devDependencies[name];
    return version === undefined ? [] : [`${name}@${version}`];
  });
}

/** A fresh project with these packages. */
function project(folder: string, packages: readonly string[]): string {
  mkdirSync(folder);
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ private: true, type: 'module' }));
  run(folder, 'npm', 'install', ...packages, ...QUIET);
  return folder;
}

function tryCommands(folder: string): void {
  mustBe(run(folder, 'npx', 'trainyard', '--version').trim() === manifest.version, 'trainyard --version names another version');
  run(folder, 'npx', 'trainyard', 'init', 'agent', '--yes');
  const agent = join(folder, 'agent');
  run(agent, 'npm', 'install', ...QUIET);
  const done = run(agent, 'npx', 'trainyard', 'eval', '--json').trim().split('\n').at(-1) ?? '';
  const { type, failed, success } = JSON.parse(done) as {
    readonly type: string;
    readonly failed: number;
    readonly success: number;
  };
  mustBe(type === 'done' && failed === 0, `the evaluation of the project that init wrote ended with ${done}`);
  console.log(`the project that init wrote: success ${success}`);
}

/** The sub-paths that this project cannot load, for want of a framework. */
function missingIn(folder: string, names: readonly string[]): readonly string[] {
  const attempt = `for (const name of ${JSON.stringify(names)}) await import(name).catch(({ code }) => console.log(name, code))`;
  const lines = run(folder, 'node', '--input-type=module', '--eval', attempt).split('\n').filter(Boolean);
  return lines.map((line) => {
    const [name = '', code] = line.split(' ');
    mustBe(code === 'ERR_MODULE_NOT_FOUND', `${name} cannot be loaded: ${code}`);
    return name;
  });
}

/** Frameworks ask for different majors of one client, so each has a project of its own. */
function tryImports(home: string, folder: string, tarball: string): void {
  let missing = missingIn(
    folder,
    Object.keys(manifest.exports).map((path) => posix.join('trainyard', path)),
  );
  for (const [index, peer] of peers().entries())
    if (missing.length > 0) missing = missingIn(project(join(home, `peer-${index}`), [tarball, peer]), missing);
  mustBe(missing.length === 0, `no framework makes these load: ${missing.join(', ')}`);
}

const { values } = parseArgs({ options: { publish: { type: 'boolean', default: false } } });
if (values.publish) mustBeReleasable();
const home = realpathSync(mkdtempSync(join(tmpdir(), 'trainyard-release-')));
try {
  const tarballs = pack(home);
  const folder = project(join(home, 'project'), tarballs);
  tryCommands(folder);
  tryImports(home, folder, tarballs[0] ?? '');
  if (values.publish) for (const tarball of tarballs) run(home, 'npm', 'publish', tarball, '--access', 'public');
  else console.log('All of it works. Nothing was published: npm run release -- --publish');
} finally {
  rmSync(home, { recursive: true, force: true });
}
