/**
 * `trainyard init`: the project of every client type-checks and learns, the questions are asked at a terminal and nowhere else, nothing is ever
 * overwritten. Projects lie inside the package, so that its packages are found; `trainyard` itself is linked into each, as npm does.
 */
import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { clients } from '../../src/init/project.ts';
import { type Ended, ROOT, saidIn, start, useScratch } from './command.ts';
import { onTerminal } from './pty.ts';

const home = useScratch();
const CLIENTS = Object.keys(clients());
const MAIN = [process.execPath, '--conditions=trainyard-source', join(ROOT, 'src/cli/main.ts')];
const inHome = (...args: readonly string[]): Promise<Ended> => start(args, home.dir).ended;

async function project(name: string, ...flags: readonly string[]): Promise<string> {
  expect(await inHome('init', name, '--json', ...flags)).toMatchObject({ code: 0, stderr: '' });
  const folder = join(home.dir, name);
  mkdirSync(join(folder, 'node_modules'));
  symlinkSync(ROOT, join(folder, 'node_modules', 'trainyard'));
  symlinkSync(join(ROOT, 'test/packages/clients/node_modules/@mastra'), join(folder, 'node_modules', '@mastra'));
  return folder;
}

/** Runs a command in the project that must succeed; its last line, as JSON. Frameworks print lines of their own before it. */
async function within(folder: string, ...args: readonly string[]): Promise<Readonly<Record<string, unknown>>> {
  const ended = await start([...args, '--json'], folder).ended;
  expect({ code: ended.code, stderr: ended.stderr }).toEqual({ code: 0, stderr: '' });
  return JSON.parse(ended.stdout.trimEnd().split('\n').at(-1) ?? '');
}

describe('the project of every client', () => {
  it.each(CLIENTS)('%s: is measured and learns', async (client) => {
    const task = client === 'langchain' ? 'triage' : 'shop';
    const folder = await project(client, '--client', client, '--task', task);
    expect(await within(folder, 'preflight')).toMatchObject({ found: { tasks: 400, heldOut: 100 } });
    const steps = ['--steps', '8', '--eval-every', '0'];
    const done = (await within(folder, 'train', ...steps)) as never as {
      before: { success: number };
      after: { success: number };
    };
    expect(done.after.success).toBeGreaterThan(done.before.success + 0.2);
  });

  it('type-checks', async () => {
    for (const client of CLIENTS) await project(`types-${client}`, '--client', client, '--model-kind', 'api', '--task', 'triage');
    await project('types-shop', '--task', 'shop', '--model-kind', 'tinker');
    const config = { extends: './types-shop/tsconfig.json', compilerOptions: { customConditions: ['trainyard-source'] } };
    writeFileSync(join(home.dir, 'tsconfig.json'), JSON.stringify({ ...config, include: ['types-*/*.ts'] }));
    writeFileSync(
      join(home.dir, 'types-shop', 'wrong.ts'),
      "import { defineConfig } from 'trainyard';\ndefineConfig({ stepz: 1 });\n",
    );
    const check = promisify(execFile)(join(ROOT, 'node_modules/.bin/tsc'), ['-p', home.dir], { cwd: home.dir });
    const said = await check.then(
      () => '',
      ({ stdout }: { readonly stdout: string }) => stdout,
    );
    // Our own sources are checked with other options, and elsewhere.
    expect(said.split('\n').filter((line) => line.startsWith('types-'))).toEqual([
      expect.stringContaining('types-shop/wrong.ts(2,16)'),
    ]);
  });

  it('has a grader that passes its own test, for each task', async () => {
    for (const task of ['shop', 'triage']) {
      const cwd = await project(`graded-${task}`, '--task', task);
      const args = ['--conditions=trainyard-source', '--test', '--test-reporter=tap'];
      const { stdout } = await promisify(execFile)(process.execPath, args, {
        cwd,
        env: { ...process.env, NODE_TEST_CONTEXT: undefined },
      });
      expect(stdout).toContain('# pass 5\n# fail 0');
    }
  });

  it('has packages in the versions that are tested here', () => {
    const read = (path: string) => JSON.parse(readFileSync(join(ROOT, path), 'utf8')) as Record<string, Record<string, string>>;
    const { strands, ...others } = clients();
    const tested = { ...read('package.json')['devDependencies'], ...read('test/packages/clients/package.json')['dependencies'] };
    for (const { dependencies } of Object.values(others)) expect(tested).toMatchObject(dependencies);
    expect(read('test/packages/strands/package.json')['dependencies']).toMatchObject(strands?.dependencies ?? {});
  });
});

describe('with a model behind an API', () => {
  it('measures that one, refuses to train it, and trains the shipped policy without a key', async () => {
    const folder = await project('api', '--client', 'anthropic', '--model-kind', 'api', '--task', 'triage');
    const shown = await start(['eval', '--print-config'], folder, 'export ANTHROPIC_API_KEY=x').ended;
    expect(shown.stdout).toMatch(/engine +anthropic +trainyard\.config\.ts\n/);
    expect(shown.stdout).toMatch(/baseURL +https:\/\/api\.anthropic\.com +environment: ANTHROPIC_API_KEY\n/);
    expect(await start(['train'], folder).ended).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('anthropic cannot be trained'),
    });
    const run = ['--run', 'runs/mine', '--steps', '1', '--eval-every', '0'];
    expect(await within(folder, 'train', '--use', 'offline', ...run)).toMatchObject({ type: 'done', steps: 1 });
    // The command that a run prints at its end.
    const checkpoint = ['--model', 'runs/mine/checkpoints/step-000001'];
    expect(await within(folder, 'eval', ...checkpoint, '--rows', '1-5')).toMatchObject({ type: 'done', n: 5 });
  });
});

describe('the questions', () => {
  /** Without the sequences of an editable line. */
  const env = { TERM: 'dumb' };

  it('are asked at a terminal, and the answers decide', async () => {
    const { until, type, ended } = onTerminal([...MAIN, 'init', join(home.dir, 'asked'), '--task', 'triage'], { env });
    await until('1 to 8 [1]: ');
    type('nonsense\n');
    await until('nonsense');
    type('plain\n');
    await until('1 to 3 [1]: ');
    type('\n');
    expect(await ended).toBe(0);
    expect(readFileSync(join(home.dir, 'asked/agent.ts'), 'utf8')).toContain('without any client');
  });

  it('leave nothing behind on Ctrl-C', async () => {
    const { until, type, ended } = onTerminal([...MAIN, 'init', join(home.dir, 'cancelled')], { env });
    await until('1 to 8 [1]: ');
    type('\u0003');
    expect(await ended).toBe(130);
    expect(existsSync(join(home.dir, 'cancelled'))).toBe(false);
  });
});

describe('what is there', () => {
  it('is listed and never overwritten, and nothing else is written', async () => {
    mkdirSync(join(home.dir, 'full'));
    writeFileSync(join(home.dir, 'full/agent.ts'), 'mine');
    writeFileSync(join(home.dir, 'full/README.md'), 'mine');
    const { code, stderr } = await inHome('init', 'full', '--yes');
    expect({ code, stderr }).toEqual({
      code: 2,
      stderr: expect.stringContaining('found agent.ts, README.md; nothing was written'),
    });
    expect(readdirSync(join(home.dir, 'full')).toSorted()).toEqual(['README.md', 'agent.ts']);
    const unknown = await inHome('init', 'new', '--client', 'openapi');
    expect(unknown).toMatchObject({ code: 2, stderr: expect.stringContaining('--client: expected openai, anthropic') });
    expect(existsSync(join(home.dir, 'new'))).toBe(false);
  });

  it.each(['ai-sdk', 'langchain', 'openai-agents', 'strands'])(
    'is recognised: examples/frameworks/%s.ts needs no change',
    async (name) => {
      const file = join(ROOT, 'examples/frameworks', `${name}.ts`);
      const [said] = saidIn(await inHome('init', '--here', file, '--json'));
      expect(said).toMatchObject({ changes: [], isWorkflow: true, files: [] });
      expect(said.ready[0]).toContain(`${name}.ts:`);
    },
  );

  it('gets a config and example tasks with --here and --yes, with which preflight has what it needs', async () => {
    const folder = join(home.dir, 'here');
    mkdirSync(folder);
    const agent = `import { defineGrader, defineWorkflow } from 'trainyard';
import OpenAI from 'openai';
export default defineWorkflow(async () => {
  const client = new OpenAI({ apiKey: process.env.OPENAI_API_KEY });
});
export const grader = defineGrader(() => 1);`;
    writeFileSync(join(folder, 'agent.ts'), agent);
    const { code, stdout } = await start(['init', '--here', 'agent.ts', '--yes'], folder).ended;
    expect({ code, stdout }).toEqual({ code: 0, stdout: expect.stringContaining('agent.ts:4\n  before  new OpenAI({') });
    expect(readFileSync(join(folder, 'agent.ts'), 'utf8')).toBe(agent);
    expect(await within(folder, 'preflight')).toMatchObject({ found: { tasks: 8, heldOut: 4 } });
    const nothing = join(home.dir, 'nothing.ts');
    writeFileSync(nothing, 'export const a = 1;');
    expect(await inHome('init', '--here', nothing)).toMatchObject({
      code: 1,
      stdout: expect.stringContaining('Looked for new OpenAI('),
    });
  });
});
