/** What an isolated rollout finds of answers and passwords, alone and on an external worker, where the tasks lie all the same. */
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ROOT, start } from '../cli/command.ts';
import { localServer } from '../fixtures/local-server.ts';
import { needsSandbox } from '../fixtures/sandbox.ts';
import { databaseFor, needsPostgres } from '../postgres/server.ts';

const SECRET = 'SECRET-6b1f';
/** Says what it reads at each path of its task, and what it finds of the run in its environment. The grader writes that down. */
const AGENT = `
import { appendFileSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { defineGrader, defineWorkflow } from 'trainyard';
const read = (path: string): string => {
  try {
    if (!statSync(path).isDirectory()) return readFileSync(path, 'utf8');
    return readdirSync(path).map((name) => name + ': ' + read(path + '/' + name)).join();
  } catch (thrown) {
    return String((thrown as { code?: string }).code);
  }
};
export default defineWorkflow({ isolation: 'process', hidden: ['tasks/*/tests', 'notes.txt'], run: async (ctx) => {
  await ctx.model().generate({ messages: ctx.prompt, maxTokens: 3 });
  const { paths, waitsFor } = ctx.metadata as { paths: string[]; waitsFor?: string };
  if (waitsFor !== undefined) await fetch(waitsFor);
  const environments = ['/proc/1/environ', '/proc/self/environ', '/proc/1/cmdline'].map(read);
  const found = Object.fromEntries(paths.map((path) => [path, read(path)]));
  return { output: { found, environment: JSON.stringify([process.env, environments]) } };
} });
export const grader = defineGrader(({ output }) => {
  appendFileSync(process.env['SAID_TO']!, JSON.stringify(output) + '\\n');
  return 1;
});
`;

let root: string;
const at = (...names: readonly string[]): string => join(root, ...names);
const write = (name: string, text = SECRET): string => {
  mkdirSync(dirname(at(name)), { recursive: true });
  writeFileSync(at(name), text);
  return at(name);
};

// As `tasks/*/tests` finds them.
const LISTED = ['tasks/t1/tests/test.sh', 'tasks/.t2/tests/test.sh'];

/** The same agent, with tasks beside it, as on a machine that has a copy of the whole folder. */
function agentIn(folder: string): string {
  for (const name of ['train.jsonl', 'Held-Out.small.csv', 'data/more.jsonl', 'notes.txt', ...LISTED]) {
    write(`${folder}/${name}`);
  }
  write(`${folder}/tasks/t1/environment/README`, 'readable');
  symlinkSync('data/more.jsonl', at(folder, 'latest.jsonl'));
  write(`${folder}/package.json`, '{"type":"module"}');
  mkdirSync(at(folder, 'node_modules'));
  symlinkSync(ROOT, at(folder, 'node_modules/trainyard'));
  return write(`${folder}/agent.ts`, AGENT);
}

const secretsIn = (folder: string): readonly string[] =>
  ['train.jsonl', 'Held-Out.small.csv', 'data/more.jsonl', 'latest.jsonl', 'notes.txt', ...LISTED].map((name) =>
    at(folder, name),
  );

let tasks: string;
let passwords: readonly string[];
beforeAll(() => {
  // Not below /tmp, which is another folder inside.
  root = realpathSync(mkdtempSync('/var/tmp/hidden-files-'));
  agentIn('here');
  agentIn('copy');
  write('runs/earlier/store.sqlite');
  write('runs/earlier/run.json', '{}');
  const named = { PGPASSFILE: write('named/pass'), PGSERVICEFILE: write('named/service'), PGSSLKEY: write('named/env.key') };
  Object.assign(environment, named, { HOME: at('home'), PGPASSWORD: SECRET, SAID_TO: at('said') });
  const usual = ['.pgpass', '.pg_service.conf', '.postgresql/postgresql.key'].map((name) => write(`home/${name}`));
  passwords = [...Object.values(named), ...usual, write('named/url.key')];
  tasks = at('here/data/more.jsonl');
  Object.assign(environment, { TMPDIR: dirname(dirname(write('tmp/trainyard-isolated-1/artifacts'))) });
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

const environment: Record<string, string> = {};

/** One task of these paths for each line. */
function giveTasks(rows: readonly Readonly<Record<string, unknown>>[]): void {
  const line = (metadata: object, i: number) => JSON.stringify({ id: `t${i}`, prompt: 'Go', answer: SECRET, metadata });
  writeFileSync(tasks, rows.map(line).join('\n'));
}

function trainyardHere(...args: readonly string[]) {
  const exports = Object.entries(environment).map(([name, value]) => `export ${name}='${value}'`);
  return start(args, at('here'), exports.join('; '));
}

const evaluation = (run: string, folder = 'runs'): readonly string[] => [
  ...['eval', at('here/agent.ts'), '--held-out', tasks, '--run', at(folder, run), '--json', '--no-config', '--threads', '1'],
  ...['--workflow-workers', '1', '--max-error-share', '1'],
];

function said(): readonly { readonly found: Record<string, string>; readonly environment: string }[] {
  const text = existsSync(at('said')) ? readFileSync(at('said'), 'utf8') : '';
  rmSync(at('said'), { force: true });
  return text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
}

describe('an isolated rollout', needsSandbox, () => {
  it('alone finds no answers and no passwords, in their usual places and where flags, variables and its workflow name them', async () => {
    const readable = at('here/tasks/t1/environment/README');
    const paths = [...secretsIn('here'), ...passwords.slice(0, -1), at('runs/earlier'), at('runs/alone'), at('tmp'), readable];
    giveTasks([{ paths }]);
    expect(await trainyardHere(...evaluation('alone')).ended).toMatchObject({ code: 0 });
    const [{ found, environment } = { found: {}, environment: '' }] = said();
    expect(Object.keys(found).sort()).toEqual(paths.toSorted());
    expect(Object.entries(found).filter(([, text]) => text.includes(SECRET))).toEqual([]);
    expect(found).toMatchObject({ [tasks]: '', [at('runs/earlier')]: 'ENOENT', [readable]: 'readable' });
    expect(environment).not.toContain(SECRET);
  });

  it(
    'on an external worker finds none either: not in the worker’s copy, nor where the coordinator has them on this machine',
    needsPostgres,
    async () => {
      await using database = await databaseFor();
      // Nobody answers there with TLS: the key is only named.
      const url = `${database.url}?sslkey=${at('named/url.key')}&sslmode=disable`;
      const run = at('runs/workers');
      const readable = at('copy/tasks/t1/environment/README');
      const secrets = [...secretsIn('here'), ...secretsIn('copy'), ...passwords];
      const paths = [...secrets, at('runs/earlier'), at('tmp'), run, readable];
      giveTasks([{ paths }]);
      writeFileSync(at('copy/data/more.jsonl'), SECRET);
      const small = ['--concurrency', '1', '--threads', '1'];
      const worker = trainyardHere('worker', at('copy/agent.ts'), '--store', url, '--json', ...small);
      const ended = await trainyardHere(...evaluation('workers'), '--store', url, '--workers', 'external').ended;
      worker.child.kill('SIGTERM');
      await worker.ended;
      expect(ended).toMatchObject({ code: 0 });
      const [{ found, environment } = { found: {}, environment: '' }] = said();
      expect(Object.keys(found).sort()).toEqual(paths.toSorted());
      expect(Object.entries(found).filter(([, text]) => text.includes(SECRET))).toEqual([]);
      expect(found).toMatchObject({ [run]: 'ENOENT', [readable]: 'readable' });
      expect(environment).not.toContain(SECRET);
    },
  );

  /** Evaluates three tasks, one after the other. `meanwhile` happens during the first. */
  async function during(paths: readonly string[], run: readonly string[], meanwhile: () => void): Promise<string> {
    await using server = await localServer((_, response) => {
      meanwhile();
      response.end();
    });
    giveTasks([{ paths, waitsFor: server.origin }, { paths }, { paths }]);
    const { stdout } = await trainyardHere(...run, '--concurrency', '1').ended;
    return stdout;
  }

  it('that could read a task file, because an editor replaced it, fails by name, and later ones cannot read it', async () => {
    const stdout = await during([tasks], evaluation('replaced'), () => {
      writeFileSync(`${tasks}.new`, SECRET);
      renameSync(`${tasks}.new`, tasks);
    });
    expect(stdout).toContain(`was no longer kept from ${tasks}, which was replaced`);
    expect(said().map(({ found }) => found)).toEqual([{ [tasks]: '' }, { [tasks]: '' }]);
  });

  it.each([
    ['in a folder `runs` that was not there', 'here/runs/other', 'here/runs'],
    ['beside its own', 'here/other', 'here/other'],
  ])('that could read a run that began %s fails by name, and later ones cannot read it', async (_, other, named) => {
    const events = at(other, 'events.jsonl');
    const stdout = await during([events], evaluation(`own-${other.length}`, 'here'), () => {
      write(`${other}/run.json`, '{}');
      write(`${other}/events.jsonl`);
    });
    expect(stdout).toContain(`was no longer kept from ${at(named)}, which was replaced or appeared`);
    expect(said().map(({ found }) => found)).toEqual([{ [events]: 'ENOENT' }, { [events]: 'ENOENT' }]);
  });

  it.each([
    ['tets', 'there is no'],
    ['..', 'rollouts need'],
    ['wrong.ts', 'rollouts need'],
  ])('is not started where its workflow hides %s', async (name, why) => {
    write('here/wrong.ts', AGENT.replace('notes.txt', name));
    giveTasks([{ paths: [] }]);
    const args = evaluation('wrong').with(1, at('here/wrong.ts'));
    const { code, stdout, stderr } = await trainyardHere(...args).ended;
    expect([code, stdout + stderr]).toEqual([2, expect.stringContaining(why)]);
  });
});
