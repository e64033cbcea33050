/** Every mistake a person can make on the command line: one line of cause, what to do, the right exit code, nothing written. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { cp, mkdir, open, readFile, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { beforeAll, describe, expect, it } from 'vitest';
import { hasProc } from '../fixtures/system.ts';
import { ROOT, sharedTrainyard, start, trainyard, useScratch } from './command.ts';

const home = useScratch();
beforeAll(async () => {
  await home.write('tasks.jsonl', ['a', 'b', 'c', 'd'].map((id) => `{"id":"${id}","prompt":"hi","answer":1}\n`).join(''));
});

const GRADER = 'export const grader = defineGrader(() => 1);';
const WORKFLOW = 'export default defineWorkflow(async () => {});';
const IMPORT = "import { defineGrader, defineWorkflow } from 'trainyard';";
const GOOD = `${IMPORT}${GRADER}${WORKFLOW}`;
/** At most a line of cause and one of what to do. */
const LINES = /^[^\n]*\n([^\n]*\n)?$/;

async function trainEntry(name: string, text: string, ...flags: readonly string[]) {
  const entry = await home.write(name, text);
  const run = join(home.dir, `run-${name}`);
  const args = ['train', entry, '--tasks', join(home.dir, 'tasks.jsonl'), '--run', run, '--steps', '1', ...flags];
  return { ...(await sharedTrainyard(...args)), run };
}

describe('output', () => {
  it.skipIf(!existsSync('/dev/full'))('that cannot be written fails the command', async () => {
    await using full = await open('/dev/full', 'w');
    const args = ['--conditions=trainyard-source', join(ROOT, 'src/cli/main.ts'), '--help'];
    const child = spawn(process.execPath, args, { stdio: ['ignore', full.fd, 'pipe'] });
    const [said, [code]] = await Promise.all([text(child.stderr!), once(child, 'exit')]);
    expect([code, said]).toEqual([1, 'error: the output could not be written (ENOSPC)\n']);
  });
});

describe('usage', () => {
  it.each([
    [['train', 'x.ts', '--stepz', '3'], 'unknown option'],
    [['train'], 'missing required argument'],
    [['fly'], 'unknown command'],
    [['train', 'x.ts', '--steps', 'many'], 'whole number'],
    [['train', 'x.ts', '--steps', '0'], 'expected a whole number from 1 to 1000000, found "0"'],
    [['train', 'x.ts', '--group', '1'], 'from 2 to 1000000: a rollout is compared with the others of its group'],
    [['train', 'x.ts', '--split', '10'], 'expected a share between 0 and 1, such as 0.1'],
    [['train', 'x.ts', '--set', 'lora-rnk=8'], '--set lora-rnk: this command has no such setting, did you mean lora-rank?'],
    [['train', 'x.ts', '--set', 'lora-rank'], '--set lora-rank: expected a value, as in --set lora-rank=<n>'],
    [
      ['train', 'x.ts', '--store', 'mysql://me:pw@h/d'],
      '--store: expected the URL of a PostgreSQL database, postgres://user@host:5432/database, found String',
    ],
    [
      ['train', 'x.ts', '--set', 'baseURL=pw'],
      '--set baseURL: expected an address that begins with http:// or https://, found String',
    ],
    [['train', 'x.ts', '--set', 'max-time=soon'], '--set max-time: expected a time such as 90s, 10m or 2h, found "soon"'],
    [['eval', 'x.ts', '--set', 'adam-beta1=0.5'], '--set adam-beta1: this command has no such setting'],
    [['train', 'x.ts', '--run'], 'argument missing'],
    [['export', 'runs/x'], 'expected what to write'],
    [['train', 'x.ts', '--loss', 'grpo'], 'did you mean algorithm grpo?'],
    [['train', 'x.ts', '--clip-high', '-1'], 'expected a number of at least 0, found "-1"'],
    [['train', 'x.ts', '--set', 'klEstimator=k1'], '--set klEstimator: expected kl above 0 beside it'],
    [['train', 'x.ts', '--kl-estimator=k1'], '--kl-estimator: expected kl above 0 beside it'],
    [['eval', 'x.ts', '--price', '1'], 'expected two prices'],
    [['help', 'troubleshoting'], 'trainyard help troubleshooting?'],
  ])('%j exits 2', async (args, message) => {
    const { code, stderr } = await sharedTrainyard(...args);
    expect(stderr).toContain(message);
    expect({ code, stderr }).toEqual({ code: 2, stderr: expect.stringMatching(LINES) });
  });

  it('says where the flag of a value went that npm passed on without it', async () => {
    const hintAfter = async (shell: string): Promise<string | undefined> => {
      const { code, stderr } = await start(['eval', 'my/agent.ts', '4'], ROOT, shell).ended;
      expect(code).toBe(2);
      return /too many arguments.*\n {2}(.*)\n$/.exec(stderr)?.[1];
    };
    const swallowed = 'npm swallows flags that do not follow --: npm run trainyard -- eval …';
    expect(await hintAfter('export npm_lifecycle_event=trainyard')).toBe(swallowed);
    expect(await hintAfter('unset npm_lifecycle_event npm_command')).toBe('see trainyard eval --help');
  });

  it('says how to see the verbs as it was called, and where there is no run', async () => {
    const unknown = await start(['trian'], ROOT, 'export npm_lifecycle_event=trainyard').ended;
    expect(unknown.stderr).toContain("unknown command 'trian' (Did you mean train?)\n  see npm run trainyard -- --help\n");
    const { code, stderr } = await sharedTrainyard('verify', join(home.dir, 'nope'));
    expect(code).toBe(2);
    expect(stderr).toMatch(/error FILE_NOT_FOUND: .*nope holds no run\.json, so there is no run\n/);
  });

  it('--help exits 0 and names the verbs', async () => {
    const { code, stdout } = await sharedTrainyard('--help');
    expect(stdout).toMatch(/train[\s\S]*eval/);
    expect(code).toBe(0);
  });
});

describe('the entry', () => {
  it.each([
    ['no-workflow.ts', `${IMPORT}${GRADER} export const x = 1;`, 'WORKFLOW_NOT_FOUND', 'it exports grader, x'],
    ['two.ts', `${GOOD} export const other = defineWorkflow(async () => {});`, 'WORKFLOW_AMBIGUOUS', 'default, other'],
    ['sync.ts', `${IMPORT}${GRADER} export default defineWorkflow((() => {}) as never);`, 'WORKFLOW_NOT_ASYNC', 'not async'],
    ['enum.ts', `${GOOD} export enum Colour { Red }`, 'ENTRY_UNLOADABLE', 'use const objects'],
    ['needs-tsx.ts', `${GOOD} enum Colour { Red }`, 'ENTRY_UNLOADABLE', 'npm install --save-dev tsx'],
    ['decorator.ts', `${GOOD}\n@seal class A {}`, 'ENTRY_UNLOADABLE', 'a decorator (decorator.ts:'],
    ['view.tsx', GOOD, 'ENTRY_UNLOADABLE', '.tsx'],
    ['extensionless.ts', `${GOOD} import './no-workflow';`, 'ENTRY_UNLOADABLE', 'write ./file.ts'],
    ['package.ts', `${GOOD} import 'no-such-package-here';`, 'ENTRY_UNLOADABLE', 'install the missing package'],
    ['throws.ts', `${GOOD} throw new Error('at import');`, 'ENTRY_UNLOADABLE', 'at import'],
    ['syntax.ts', `${GOOD} const = 3;`, 'ENTRY_UNLOADABLE', 'cannot import'],
  ])('%s: %s', async (name, text, code, message) => {
    const ended = await trainEntry(name, text);
    expect(ended).toMatchObject({ code: 2, stderr: expect.stringMatching(LINES) });
    for (const said of [`error ${code}`, message]) expect(ended.stderr).toContain(said);
    expect(existsSync(ended.run)).toBe(false);
  });

  it('that does not exist is named', async () => {
    const { code, stderr } = await sharedTrainyard('train', join(home.dir, 'none.ts'));
    expect(stderr).toContain('none.ts');
    expect(code).toBe(2);
  });
});

describe('files', () => {
  it('a bad line in a task file is named by its number', async () => {
    const tasks = await home.write('bad.jsonl', '{"prompt":"fine"}\n{"answer":3}\n');
    const { code, stderr } = await trainEntry('lines.ts', GOOD, '--tasks', tasks);
    expect(stderr).toContain('bad.jsonl line 2: top-level fields differ from the first row (missing: prompt; extra: answer)');
    expect(code).toBe(2);
  });

  it('missing task, held-out and model files are named', async () => {
    for (const flag of ['--tasks', '--held-out', '--model']) {
      const { code, stderr, run } = await trainEntry('files.ts', GOOD, flag, join(home.dir, 'nowhere'));
      expect(stderr).toContain('nowhere');
      expect(code).toBe(2);
      expect(existsSync(run)).toBe(false);
    }
  });

  it('a truncated safetensors file and a checkpoint of another model are told apart', async () => {
    const model = join(home.dir, 'model');
    await cp(join(ROOT, 'models/base'), model, { recursive: true });
    await truncate(join(model, 'model.safetensors'), 100_000);
    const cut = await trainEntry('cut.ts', GOOD, '--model', model);
    expect(cut).toMatchObject({ code: 1, stderr: expect.stringContaining('SAFETENSORS_INVALID') });
    await cp(join(ROOT, 'models/base/model.safetensors'), join(model, 'model.safetensors'));
    const config = JSON.parse(await readFile(join(model, 'config.json'), 'utf8'));
    await writeFile(join(model, 'config.json'), JSON.stringify({ ...config, num_hidden_layers: config.num_hidden_layers + 1 }));
    const other = await trainEntry('other.ts', GOOD, '--model', model);
    expect(other).toMatchObject({ code: 1, stderr: expect.stringContaining('CHECKPOINT_MISMATCH') });
    expect(existsSync(cut.run) || existsSync(other.run)).toBe(false);
  });

  it('a run directory that holds something else is left alone', async () => {
    const run = join(home.dir, 'mine');
    await mkdir(run);
    await writeFile(join(run, 'thesis.txt'), 'all of it');
    const { code, stderr } = await trainEntry('taken.ts', GOOD, '--run', run);
    expect(stderr).toContain('thesis.txt');
    expect(code).toBe(2);
    expect(await readFile(join(run, 'thesis.txt'), 'utf8')).toBe('all of it');
  });

  it('a run directory that cannot be made is said to be so', async () => {
    for (const place of [...(hasProc ? ['/proc/nowhere/run'] : []), join(home.dir, 'tasks.jsonl', 'run')]) {
      const { code, stderr } = await trainEntry('unmakable.ts', GOOD, '--run', place);
      expect(stderr).toContain(`cannot create the run directory ${place}`);
      expect(code).toBe(2);
    }
  });

  it('a second run on the same directory is refused while the first lives, and after kill -9 the lock is gone', async () => {
    const entry = await home.write(
      'slow.ts',
      `${IMPORT}${GRADER} export default defineWorkflow(async () => { await new Promise((r) => setTimeout(r, 60_000)); });`,
    );
    const run = join(home.dir, 'locked');
    const args = ['train', entry, '--tasks', join(home.dir, 'tasks.jsonl'), '--run', run, '--json'];
    const first = start(args);
    await first.prints('run-start');
    const second = await trainyard(...args);
    expect(second.stderr).toContain('RUN_LOCKED');
    expect(second.code).toBe(1);
    first.child.kill('SIGKILL');
    await first.ended;
    const third = await trainyard(...args);
    expect(third.stderr).toContain('RUN_NOT_EMPTY');
  });
});

describe('workflows that cannot be trained', () => {
  const flow = (body: string): string => `${IMPORT}${GRADER} export default defineWorkflow(async () => { ${body} });`;

  it.each([
    ['always throws ends the run with its error', 'always', `throw new Error('no such luck\\u001b[31m');`, 'no such luck·[31m'],
    ['never calls the policy is told what to do', 'bypasses', '', 'error POLICY_BYPASSED'],
  ])('one that %s', async (_, name, body, message) => {
    const { code, stderr } = await trainEntry(`${name}.ts`, flow(body));
    expect(stderr).toContain(message);
    expect(stderr).toContain(name === 'always' ? 'error FAILURE_BUDGET' : 'ctx.model()');
    expect(code).toBe(1);
  });

  it.each([
    ['leaves the process does not pass for success', 'process.exit(0);', 'process.exit(0)'],
    ['leaves timers behind does not keep the command from ending', 'setInterval(() => {}, 1000);', 'POLICY_BYPASSED'],
  ])('one that %s', async (name, body, message) => {
    const entry = await home.write(`${name.split(' ')[1]}.ts`, flow(body));
    const run = join(home.dir, `run-${name.split(' ')[1]}`);
    const { code, stderr } = await trainyard('train', entry, '--tasks', join(home.dir, 'tasks.jsonl'), '--run', run);
    expect(stderr).toContain(message);
    expect(code).toBe(1);
  });

  it.each([
    ['timer.ts', `setTimeout(() => { throw new Error('late'); }, 1); await new Promise((r) => setTimeout(r, 20));`, 'late'],
    ['stray.ts', `void Promise.reject(new Error('floating'));`, 'floating'],
  ])('one that throws later, as %s, is reported and does not end the others', async (name, body, message) => {
    const { code, stdout } = await trainEntry(name, flow(body), '--json');
    expect(stdout).toContain(`"code":"STRAY_REJECTION","message":"${message}"`);
    expect(stdout).toContain('POLICY_BYPASSED');
    expect(code).toBe(1);
  });

  it('one that blocks the event loop for good is killed', async () => {
    const script = await home.write(
      'blocked.ts',
      `import { watch } from '${ROOT}/src/cli/watchdog.ts'; watch(2); setTimeout(() => { for (;;); }, 700);`,
    );
    const child = spawn(process.execPath, [script], { stdio: ['ignore', 'ignore', 'pipe'] });
    const [said, [, signal]] = await Promise.all([text(child.stderr), once(child, 'close')]);
    expect(signal).toBe('SIGKILL');
    expect(said).toContain('without awaiting');
  });
});
