/** `trainyard replay`: a stored rollout again, before and after its code was edited. */
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { ROOT, saidIn, start, trainyard, useScratch } from './command.ts';

const home = useScratch();
let [entry, run, rollout] = ['', '', ''];
const edit = async (from: string, to: string) => writeFile(entry, (await readFile(entry, 'utf8')).replace(from, to));

beforeAll(async () => {
  await home.write('tasks.jsonl', '{"id":"a","prompt":"hello","answer":"x"}\n{"id":"b","prompt":"hi","answer":"y"}\n');
  entry = await home.write(
    'agent.ts',
    `import { defineGrader, defineWorkflow } from 'trainyard';
export default defineWorkflow(async (ctx) => {
  console.log('working on', ctx.task.id);
  const { message } = await ctx.model().generate({ messages: [{ role: 'system', content: 'Be brief.' }, ...ctx.prompt] });
  await ctx.model().generate({ messages: [...ctx.prompt, message, { role: 'user', content: 'The tool says 3.' }] });
  return 'done';
});
export const grader = defineGrader(({ task }) => { console.log('grading', task.id); return 0.5; });
`,
  );
  run = join(home.dir, 'run');
  const ended = await trainyard('eval', entry, '--held-out', join(home.dir, 'tasks.jsonl'), '--run', run);
  expect(ended.code, ended.stderr).toBe(0);
  expect(ended.stdout.match(/working on/g), 'kept, not shown').toBeNull();
  expect(ended.stdout).toMatch(/PRINTS_KEPT: rollout e-\S+: .*: trainyard show \S+run e-/);
  rollout = saidIn(await trainyard('show', run, '--json')).find(({ taskId }) => taskId === 'a').rolloutId;
});

describe('trainyard replay', () => {
  it('finds everything as recorded, shows what was printed, and leaves the run as it was', async () => {
    const shown = await trainyard('show', run, rollout);
    expect(shown.stdout).toMatch(/ s {2}the workflow: working on a\n.* s {2}the grader: grading a\ncompleted · reward 0.5/);
    const { code, stdout } = await trainyard('replay', run, rollout);
    expect(stdout).toMatch(/^ {4}the workflow: working on a\n {2}0 default .*\n {4}system: Be brief.\n/);
    expect(stdout).toMatch(/completed · reward 0.5\n {2}output: done\nAs recorded\n$/);
    expect(code).toBe(0);
    expect((await trainyard('show', run, rollout)).stdout).toBe(shown.stdout);
  });

  it('names the message that an edit changed, another output and another reward, and exits 1', async () => {
    await edit('The tool says 3.', 'The tool says 4.');
    await edit("return 'done'", "return 'done?'");
    await edit('return 0.5', 'return { value: 1, parts: { exact: 1 } }');
    const { code, stdout } = await trainyard('replay', run, rollout);
    expect(stdout).toMatch(/^warning ENTRY_CHANGED: since the run began: \S+agent.ts has changed; /);
    const place =
      'default · the call of turn 1 differs at message 2\n    was user: The tool says 3.\n    is  user: The tool says 4.\n';
    expect(stdout).toContain(place);
    expect(stdout).toMatch(
      /another output\n {4}was done\n {4}is {2}done\?\nanother grade\n {4}was reward 0.5\n {4}is {2}reward 1 \(exact 1\)/,
    );
    expect(stdout).toMatch(/Not as recorded · 1 call asked something else\n$/);
    expect(code).toBe(1);
  });

  it('with --grade only grades what was stored, with the grader as it is now', async () => {
    const ended = await trainyard('replay', run, rollout, '--grade', '--json');
    expect(ended.code).toBe(1);
    expect(saidIn(ended).slice(1)).toMatchObject([
      { type: 'ended', output: 'done', logs: [{ text: 'grading a', from: 'grader' }] },
      { type: 'replayed', same: false, different: 0, changes: [{ what: 'grade', was: {}, is: { reward: { value: 1 } } }] },
    ]);
  });

  it('needs no model, and takes another entry', async () => {
    const other = await home.write('other.ts', (await readFile(entry, 'utf8')).replace('Be brief.', 'Be long.'));
    const record = JSON.parse(await readFile(join(run, 'run.json'), 'utf8'));
    await writeFile(join(run, 'run.json'), JSON.stringify({ ...record, settings: { ...record.settings, model: '/nowhere' } }));
    const { code, stdout } = await trainyard('replay', run, rollout, '--entry', other);
    expect([code, stdout]).toEqual([1, expect.stringContaining('turn 0 differs at message 0\n    was system: Be brief.')]);
    expect(stdout).not.toContain('ENTRY_CHANGED');
  });

  it('under a debugger runs the workflow in its own process, isolated or not', async () => {
    await edit("console.log('working on', ctx.task.id)", "console.log('with', process.argv[2])");
    const record = JSON.parse(await readFile(join(run, 'run.json'), 'utf8'));
    await writeFile(join(run, 'run.json'), JSON.stringify({ ...record, settings: { ...record.settings, isolation: 'process' } }));
    const shownBy = async (shell?: string) => (await start(['replay', run, rollout], ROOT, shell).ended).stdout;
    expect(await shownBy()).not.toContain('with replay');
    expect(await shownBy('export NODE_OPTIONS=--inspect=127.0.0.1:0')).toContain('the workflow: with replay');
  });

  it('says why there is nothing to replay', async () => {
    const failing = async (...args: readonly string[]) => (await trainyard('replay', ...args)).stderr;
    expect(await failing(run, 'nobody')).toMatch(/holds no rollout "nobody"\n {2}list them: .*trainyard.* show /);
    const record = JSON.parse(await readFile(join(run, 'run.json'), 'utf8'));
    const { entry: _, ...settings } = record.settings;
    await writeFile(join(run, 'run.json'), JSON.stringify({ ...record, settings }));
    expect(await failing(run, rollout)).toMatch(/begun from TypeScript\n.*--entry/);
    await rm(join(run, 'run.json'));
    expect(await failing(run, rollout)).toContain('what agents did at trainyard serve');
    await writeFile(join(run, 'run.json'), '{"kind":"sft"}');
    expect(await failing(run, rollout)).toContain('supervised fine-tuning, which keeps no rollouts');
  });
});
