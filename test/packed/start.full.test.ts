/**
 * What a user does first, with what a user has: the packed package, in an empty folder, with the registry's packages. Init, install, measure, train,
 * look. Prints how long each took. Needs a registry; without one there is nothing to install from, and it does not run.
 */
import { execFile, execFileSync, spawn } from 'node:child_process';
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { mkdtemp, realpath } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { jsonLines, ROOT } from '../cli/command.ts';
import { viewKeyOf } from '../fixtures/view-key.ts';

const QUIET = ['--no-audit', '--no-fund', '--prefer-offline', '--loglevel=error'];
const NPM = execFileSync('sh', ['-c', 'realpath "$(command -v npm)"'], { encoding: 'utf8' }).trim();
const hasRegistry = ((): boolean => {
  try {
    execFileSync(process.execPath, [NPM, 'view', 'zod', 'version', '--fetch-retries=0', '--fetch-timeout=20000'], {
      stdio: 'ignore',
    });
    return true;
  } catch {
    return false;
  }
})();

let home = '';
let tarballs: readonly string[] = [];

/** A program in a folder, with the Node of another folder before all others. */
async function run(cwd: string, node: string, command: string, ...args: readonly string[]): Promise<string> {
  const env = {
    ...process.env,
    PATH: [dirname(node), process.env['PATH']].join(delimiter),
    NODE_TEST_CONTEXT: undefined,
    NODE_OPTIONS: undefined,
  };
  const began = performance.now();
  const file = command === 'npm' ? [NPM] : [join(dirname(NPM), 'npx-cli.js')];
  const { stdout } = await promisify(execFile)(node, [...file, ...args], { cwd, env, maxBuffer: 2 ** 26 });
  const said = `${command} ${args.filter((arg) => !QUIET.includes(arg)).join(' ')}`;
  process.stderr.write(`${((performance.now() - began) / 1000).toFixed(1)} s  ${said}\n`);
  return stdout;
}

async function nodeOf(major: number): Promise<string> {
  if (Number(process.versions.node.split('.')[0]) === major) return process.execPath;
  const folder = join(home, `node-${major}`);
  mkdirSync(folder);
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ private: true, allowScripts: { node: true } }));
  await run(folder, process.execPath, 'npm', 'install', `node@${major}`, ...QUIET);
  return join(folder, 'node_modules', 'node', 'bin', 'node');
}

/** What the page of `trainyard view` gets when its link is opened. */
async function seenIn(cwd: string, node: string, shown: string): Promise<unknown> {
  const began = performance.now();
  const view = spawn(node, [join(cwd, 'node_modules/trainyard/dist/cli/main.js'), 'view', shown, '--json'], { cwd });
  try {
    let said = '';
    for await (const chunk of view.stdout) {
      said += chunk;
      if (said.includes('\n')) break;
    }
    const { link: url } = JSON.parse(said.split('\n')[0]!) as { readonly link: string };
    const headers = await viewKeyOf(url);
    const read = (path: string): Promise<Response> => fetch(new URL(path, url), { headers });
    expect(await (await read('/')).text()).toContain('page.js');
    expect((await (await read('/page.js')).text()).length).toBeGreaterThan(10_000);
    const runs = await (await read('/api/runs')).json();
    process.stderr.write(`${((performance.now() - began) / 1000).toFixed(1)} s  trainyard view ${shown}\n`);
    return runs;
  } finally {
    view.kill('SIGINT');
  }
}

describe.skipIf(!hasRegistry)('from an empty folder, with the packed package', () => {
  beforeAll(async () => {
    home = await realpath(await mkdtemp(join(tmpdir(), 'trainyard-packed-')));
    // A copy, because packing builds dist/ anew, which other tests use.
    const copy = join(home, 'copy');
    const isSource = (path: string): boolean =>
      !/[/\\](?:node_modules|dist|runs|\.git|\.interop)(?:[/\\]|$)/.test(path.slice(ROOT.length));
    cpSync(ROOT, copy, { recursive: true, filter: isSource });
    symlinkSync(join(ROOT, 'node_modules'), join(copy, 'node_modules'));
    for (const folder of [copy, join(copy, 'packages/create-trainyard'), join(copy, 'packages/testing')])
      await run(folder, process.execPath, 'npm', 'pack', '--pack-destination', home, '--loglevel=error');
    tarballs = readdirSync(home).flatMap((name) => (name.endsWith('.tgz') ? [join(home, name)] : []));
    const bytes = Math.max(...tarballs.map((tarball) => readFileSync(tarball).length));
    process.stderr.write(`the package has ${(bytes / 1e6).toFixed(1)} MB\n`);
    expect(bytes).toBeLessThan(8e6);
  });
  afterAll(() => rmSync(home, { recursive: true, force: true }));

  it.each([
    [24, ['trainyard', 'init']],
    [22, ['create-trainyard']],
  ])('Node %i: %j, eval, train, show and view', async (major, init) => {
    const node = await nodeOf(major);
    const start = join(home, `start-${major}`);
    mkdirSync(start);
    await run(start, node, 'npm', 'install', ...tarballs, ...QUIET);
    await run(start, node, 'npx', ...init, 'demo', '--yes');
    const demo = join(start, 'demo');
    expect(JSON.parse(readFileSync(join(demo, 'package.json'), 'utf8')).dependencies.trainyard).toMatch(/^file:.*\.tgz$/);
    await run(demo, node, 'npm', 'install', ...QUIET);
    await run(demo, node, 'npm', 'run', 'typecheck');
    await run(demo, node, 'npm', 'test');
    const [measured] = jsonLines(await run(demo, node, 'npx', 'trainyard', 'eval', '--json')).slice(-1);
    expect(measured).toMatchObject({ type: 'done', n: 100 });
    const train = ['train', '--steps', '8', '--run', 'runs/mine', '--json'];
    const done = jsonLines(await run(demo, node, 'npx', 'trainyard', ...train)).at(-1) as never as Done;
    expect(done.after.success).toBeGreaterThan(done.before.success + 0.2);
    expect(await run(demo, node, 'npx', 'trainyard', 'show', 'runs/mine', '--limit', '3')).toContain('train');
    expect(await seenIn(demo, node, 'runs/mine')).toMatchObject([{ path: 'runs/mine', state: 'done', steps: 8 }]);
  });

  it('@trainyard/testing holds an engine and a store to their contracts, and knows the errors of the installed package', async () => {
    const project = join(home, 'suites');
    mkdirSync(project);
    writeFileSync(join(project, 'package.json'), JSON.stringify({ private: true, type: 'module' }));
    await run(project, process.execPath, 'npm', 'install', ...tarballs, ...QUIET);
    writeFileSync(join(project, 'suites.ts'), SUITES);
    const { stdout } = await promisify(execFile)(process.execPath, ['suites.ts'], { cwd: project });
    expect(stdout).toBe('store: true\nengine: true\n');
  });
});

const SUITES = `
import { engineConformance, storeConformance } from '@trainyard/testing';
import { BASE_MODEL } from 'trainyard';
import { EmbeddedModel, openSqliteStore } from 'trainyard/loop';

const store = storeConformance('store', () => openSqliteStore(':memory:'));
for (const { run } of store) await run();
console.log('store:', store.length > 20);
const engine = engineConformance('engine', async () => {
  const model = await EmbeddedModel.open({ dir: BASE_MODEL });
  return { engine: model, [Symbol.asyncDispose]: () => model.close() };
});
for (const { run } of engine) await run();
console.log('engine:', engine.length > 5);
`;

interface Done {
  readonly before: { readonly success: number };
  readonly after: { readonly success: number };
}
