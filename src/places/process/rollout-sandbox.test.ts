/** What an isolated rollout sees and can change, each beside what it could without the sandbox. */
import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { needsSandbox } from '../../../test/fixtures/sandbox.ts';
import { findBubblewrap } from '../../processes/bubblewrap.ts';
import { inspectEntry } from '../../rollout/discovery.ts';
import { startWorkflow } from '../../rollout/runner.ts';
import { RolloutFiles } from './isolated-workflow.ts';
import { explained, type RolloutView, sandboxCommand, viewOf } from './rollout-sandbox.ts';

const ANSWER = 'the answer is 42';
const source = (path: string): string => JSON.stringify(new URL(path, import.meta.url).href);
/** Not below /tmp, which is another folder inside. */
const root = realpathSync(mkdtempSync('/var/tmp/rollout-sandbox-'));
const at = (name: string): string => join(root, name);
const app = at('app');
const FILES = {
  'app/package.json': '{}',
  'app/agent.js': `import { defineGrader, defineWorkflow } from ${source('../../index.ts')};
export const grader = defineGrader(() => 1);
export default defineWorkflow(async () => '');\n`,
  'app/tasks.jsonl': ANSWER,
  'app/runs/this/store.sqlite': ANSWER,
  'app/runs/serve-1/store.sqlite': ANSWER,
  'app/runs/tinker/api-key': ANSWER,
  'repository/.git/objects/aa': ANSWER,
  'repository/.git/worktrees/app/commondir': '../..\n',
  'app/.git': `gitdir: ${at('repository/.git/worktrees/app')}\n`,
  'lib/scoped/index.js': '',
  'home/.local/bin/ls': '',
  'home/.pyenv/lib/sitecustomize.py': '',
};
let view: RolloutView;
let files: RolloutFiles;
beforeAll(() => {
  for (const [name, text] of Object.entries(FILES)) {
    mkdirSync(dirname(at(name)), { recursive: true });
    writeFileSync(at(name), text);
  }
  mkdirSync(at('app/node_modules/@own'), { recursive: true });
  symlinkSync('../../../lib/scoped', at('app/node_modules/@own/scoped'));
  symlinkSync('not there', at('app/node_modules/broken'));
  symlinkSync('app', at('link'));
  files = new RolloutFiles();
  const hidden = { run: at('app/runs/this'), tasks: [at('app/tasks.jsonl'), at('none.jsonl'), ['rows']] };
  view = viewOf(hidden, pathToFileURL(at('app/agent.js')).href, [files.root]);
});
afterAll(async () => {
  await files[Symbol.asyncDispose]();
  rmSync(root, { recursive: true });
});

let started = 0;
/** What a shell prints, in the sandbox and without it. */
async function both(script: string): Promise<readonly [inside: string, outside: string]> {
  const run = async (prefix: readonly string[]): Promise<string> => {
    const [command = '', ...args] = [...prefix, '/bin/sh', '-c', `exec 2>&1; ${script}; true`];
    return (await promisify(execFile)(command, args, { cwd: app })).stdout.trim();
  };
  return [await run(sandboxCommand(findBubblewrap(), view, files.open(++started))), await run([])];
}

describe('an isolated rollout', needsSandbox, () => {
  it.each([
    ['the task file', 'cat tasks.jsonl'],
    ['the store of its run', 'cat runs/this/store.sqlite'],
    ['what serves beside the run', 'cat runs/serve-1/store.sqlite'],
    ['a key that lies beside the run', 'cat runs/tinker/api-key'],
    ['the Git history that a worktree leads to', `cat ${at('repository/.git/objects/aa')}`],
    ['the folders of other rollouts', `cat ${'$'}(dirname $FILES)/*/tmp/secret`],
  ])('cannot read %s', async (_, script) => {
    const other = files.open(++started);
    writeFileSync(join(other.tmp, 'secret'), ANSWER);
    const [inside, outside] = await both(script.replace('$FILES', dirname(other.tmp)));
    expect(inside).not.toContain(ANSWER);
    expect(outside).toContain(ANSWER);
  });

  it('cannot see what is put beside the run later', async () => {
    mkdirSync(at('app/runs/later'));
    expect(await both('ls runs')).toEqual(['this', 'later\nserve-1\nthis\ntinker']);
  });

  it.each([
    ['a program in a folder of PATH', 'home/.local/bin/ls'],
    ['a file that Python loads when it starts', 'home/.pyenv/lib/sitecustomize.py'],
    ['the grader', 'app/agent.js'],
    ['a package that is only linked to', 'lib/scoped/index.js'],
  ])('cannot change %s', async (_, name) => {
    const before = readFileSync(at(name), 'utf8');
    const [inside, outside] = await both(`echo changed >>${at(name)} && echo done; tail -1 ${at(name)}`);
    expect(inside).toMatch(/Read-only file system/);
    expect(outside).toBe('done\nchanged');
    writeFileSync(at(name), before);
  });

  it('can write to its temporary folder and to that of its files, and nowhere else', async () => {
    const places = ['/var/tmp', '/usr/bin', '/etc', '$HOME', app, at('app/runs'), at('app/runs/this'), '/dev/shm'];
    const script = `for f in /tmp ${at('app/runs/this/artifacts')} ${places.join(' ')}; do { echo own >$f/own; } 2>/dev/null && echo $f; done`;
    const prefix = sandboxCommand(findBubblewrap(), view, files.open(++started));
    const env = { HOME: process.env['HOME'] ?? '/root' };
    const { stdout } = await promisify(execFile)(prefix[0]!, [...prefix.slice(1), '/bin/sh', '-c', script], { cwd: app, env });
    expect(stdout.trim().split('\n')).toEqual(['/tmp', at('app/runs/this/artifacts'), '/dev/shm']);
    const own = join(files.root, String(started));
    const written = () => ['tmp/own', 'artifacts/own', '/dev/shm/own'].map((path) => existsSync(resolve(own, path)));
    expect(written()).toEqual([true, true, false]);
    await files.leave(started);
    expect(written()).toEqual([false, true, false]);
  });

  it('has no rights, also where the run is root: no settings of the kernel, no disks, nothing to take down', async () => {
    const tries = ['true >>/proc/sys/kernel/core_pattern', `umount -l ${at('app/tasks.jsonl')}`, `mount -o remount,rw ${app}`];
    const script = `${tries.map((one) => `{ ${one}; } 2>/dev/null && echo "${one}"`).join('; ')}; find /dev -type b; cat tasks.jsonl`;
    const [inside] = await both(`${script}; unshare --user --map-root-user --mount sh -c '${tries[1]}; cat tasks.jsonl'`);
    expect(inside.replace(/^unshare: .*$/m, '')).toBe('');
    expect((await both('grep -h ^Cap /proc/self/status | grep -v 0000000000000000'))[0]).toBe('');
  });

  it('sees and reaches no process but its own, and no socket of other programs', async () => {
    const [inside, outside] = await both(`ls -d /proc/${process.pid}; kill -0 ${process.pid} && echo reached`);
    expect(inside).toMatch(/No such file.*\n.*No such process/);
    expect(outside).toBe(`/proc/${process.pid}\nreached`);
    const socket = `/run/rollout-sandbox-${process.pid}.sock`;
    const server = createServer();
    const isListening = await new Promise<boolean>((resolve) => {
      server.on('error', () => resolve(false)).listen(socket, () => resolve(true));
    });
    if (!isListening) return;
    expect(await both(`[ -S ${socket} ] && echo there`)).toEqual(['', 'there']);
    server.close();
  });

  it('imports an entry whose grader needs a sandbox of its own: it grades nothing', async () => {
    const path = at('app/coder.js');
    writeFileSync(
      path,
      `import { defineWorkflow } from ${source('../../index.ts')};
import { unitTests } from ${source('../../graders.ts')};
export const grader = unitTests({ language: 'javascript' });
export default defineWorkflow({ isolation: 'process', run: async () => '' });`,
    );
    const { entry, problems } = await inspectEntry(path);
    expect(problems).toEqual([]);
    const { signal } = new AbortController();
    const isolation = { module: entry!.workflowModule!, workers: 1, signal, files: { tasks: [] } };
    await using _started = await startWorkflow(entry!.workflow, isolation);
  });
});

it('is not disturbed by what happens in its own run, by folders that are no runs, by a run that is removed, or by one in a hidden folder', () => {
  const own = at('app/own');
  mkdirSync(own);
  mkdirSync(at('app/old'));
  writeFileSync(at('app/old/run.json'), '{}');
  const { replaced } = viewOf({ run: own, tasks: [] }, pathToFileURL(at('app/agent.js')).href);
  writeFileSync(join(own, 'run.json'), '{}');
  mkdirSync(join(own, 'checkpoints'));
  mkdirSync(at('app/build'));
  rmSync(at('app/old'), { recursive: true });
  expect(replaced()).toBeUndefined();
  const inTmp = () => mkdtempSync(join(tmpdir(), 'rollout-sandbox-'));
  const [ownInTmp, otherInTmp] = [inTmp(), inTmp()];
  const viewInTmp = viewOf({ run: ownInTmp, tasks: [] }, pathToFileURL(at('app/agent.js')).href);
  writeFileSync(join(otherInTmp, 'run.json'), '{}');
  expect(viewInTmp.replaced()).toBeUndefined();
  rmSync(ownInTmp, { recursive: true });
  rmSync(otherInTmp, { recursive: true });
  mkdirSync(at('app/old'));
  writeFileSync(at('app/old/run.json'), '{}');
  expect(replaced()).toBe(at('app/old'));
});

it('is shown what it is made of: its project, packages that are only linked to, and Node', () => {
  expect(view.sources).toEqual(expect.arrayContaining([app, at('lib/scoped'), realpathSync(process.execPath)]));
});

it('goes by the entry that its grader is loaded from: one that was given by a link has its own name', async () => {
  const { entry } = await inspectEntry(at('link/agent.js'));
  const url = pathToFileURL(at('app/agent.js')).href;
  expect(entry).toMatchObject({ workflowModule: { url }, graderModule: { url } });
});

describe('an error of a file', () => {
  const why = (message: string): string => explained(message, view).slice(message.length);

  const EROFS = 'EROFS: read-only file system,';
  it.each([
    `${EROFS} open '${app}/log.txt'`,
    `the tool failed: ${EROFS} open '${app}/log.txt' at 3`,
    `${EROFS} rename '/a' -> '${app}/..log'`,
  ])('%s: files are read-only', (text) => expect(why(text)).toContain('write to ctx.artifactsDir or os.tmpdir()'));

  it.each([['runs/this/store.sqlite'], ['tasks.jsonl'], ['.git/HEAD']])('ENOENT or EACCES, %s: it is hidden', (name) => {
    expect(why(`ENOENT: no such file or directory, open '${app}/${name}'`)).toContain('hidden under isolation');
    expect(why(`EACCES: permission denied, open '${at('link')}/${name}'`)).toContain('hidden under isolation');
  });

  it.each([
    ['no such item'],
    ...['gone.json', 'runs/this/artifacts/r1/gone.txt', 'running/gone.txt'].map((name) => [
      `ENOENT: no such file or directory, open '${app}/${name}'`,
    ]),
  ])('%s: the sandbox has no part in it', (text) => expect(why(text!)).toBe(''));
});
