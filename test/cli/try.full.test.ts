/** `trainyard try`: one rollout to look at. */
import { cp, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { hasSandbox, needsSandbox } from '../fixtures/sandbox.ts';
import { toollessTemplate } from '../fixtures/tokens/templates.ts';
import { saidIn, sharedTrainyard, trainyard, useScratch } from './command.ts';

const home = useScratch();
let tasks: string;
beforeAll(async () => {
  tasks = await home.write(
    'tasks.jsonl',
    ['a', 'b'].map((id) => JSON.stringify({ id, prompt: `hello ${id}`, answer: 1 })).join('\n'),
  );
});

let entries = 0;
const entry = (name: string, body: string, more = '') =>
  home.write(
    `${++entries}-${name}`,
    `import { defineGrader, defineWorkflow } from 'trainyard';\nexport default defineWorkflow(async (ctx) => {${body}});\n${more}`,
  );
const isolated = (name: string, body: string) =>
  home.write(
    name,
    `import { writeFileSync } from 'node:fs';\nimport { defineGrader, defineWorkflow } from 'trainyard';
export default defineWorkflow({ isolation: 'process', run: async () => {${body} } });\n${GRADER}`,
  );
const GRADER = 'export const grader = defineGrader(() => 1);';
const CALL = 'await ctx.model().generate({ messages: ctx.prompt });';

describe('trainyard try', () => {
  it('shows the task, every turn, the log, the ending, the reward and what was returned', async () => {
    const file = await entry('good.ts', `ctx.log('thinking'); ${CALL} return { output: 'done', metrics: { tries: 1 } };`, GRADER);
    const { code, stdout } = await sharedTrainyard('try', file, '--tasks', tasks, '--task', 'b');
    expect(code).toBe(0);
    expect(stdout).toMatch(/task b\n {4}user: hello b\n {2}0 default · \d+ \+ \d+ tokens .*\n {4}user: hello b\n/);
    expect(stdout).toContain('s  thinking');
    expect(stdout).toMatch(/completed · reward 1\n {2}output: done\n {2}metrics: {"tries":1}/);
  });

  it('warns of a model whose chat template leaves out tools', async () => {
    const model = join(dirname(tasks), 'toolless');
    await cp(join(import.meta.dirname, '../../models/base'), model, { recursive: true });
    await writeFile(join(model, 'chat_template.jinja'), toollessTemplate);
    const file = await entry('good.ts', `${CALL} return { reward: 0.5 };`);
    const ended = await sharedTrainyard('try', file, '--tasks', tasks, '--model', model);
    expect(ended.code).toBe(0);
    expect(ended.stdout + ended.stderr).toContain('TEMPLATE_WITHOUT_TOOLS: the chat template of');
  });

  it('shows what the grader printed', async () => {
    const grader = `export const grader = defineGrader(({ task }) => { console.log('looking at', task.id); return 1; });`;
    const { stdout } = await sharedTrainyard('try', await entry('loud.ts', CALL, grader), '--tasks', tasks);
    expect(stdout).toMatch(/ s {2}the grader: looking at a\ncompleted · reward 1\n/);
  });

  it('shows what the workflow prints as it comes, once, also from a process of its own', async () => {
    const body = `ctx.log('before'); console.log('one\\n\\u001b[31mtwo'); ${CALL} process.stderr.write('three');`;
    const file = await entry('prints.ts', body, GRADER);
    for (const where of hasSandbox ? ['none', 'process'] : ['none']) {
      const { stdout } = await sharedTrainyard('try', file, '--tasks', tasks, '--isolation', where);
      expect(stdout, where).toMatch(/hello a\n {4}the workflow: one\n {4}the workflow: ·\[31mtwo\n {2}0 default /);
      expect(stdout, where).toMatch(/\n {4}the workflow: three\n {4}\d.\d\d s {2}before\ncompleted · reward 1\n$/);
      const said = saidIn(await sharedTrainyard('try', file, '--tasks', tasks, '--isolation', where, '--json'));
      const lines = said.at(-1).logs.map(({ text, from }: { text: string; from?: string }) => [text, from]);
      expect(lines).toEqual([['before', undefined], ...['one', '\u001b[31mtwo', 'three'].map((text) => [text, 'workflow'])]);
    }
  });

  it('exits 1 with the sizes if no prompt fits into the context', async () => {
    const long = `await ctx.model().generate({ messages: [{ role: 'user', content: 'word '.repeat(2000) }] });`;
    const { code, stdout } = await sharedTrainyard('try', await entry('long.ts', long, GRADER), '--tasks', tasks);
    expect(code).toBe(1);
    expect(stdout).toMatch(
      /truncated by its limit of context: the prompt has \d+ tokens, the context is 512 \(shorten .*not graded\n/,
    );
  });

  it('takes a task by its number, and tells programs the same', async () => {
    const file = await entry('good.ts', `${CALL} return { reward: 0.5 };`);
    const ended = await sharedTrainyard('try', file, '--tasks', tasks, '--task', '1', '--json');
    expect(saidIn(ended)).toMatchObject([
      { type: 'task', id: 'a' },
      { type: 'turn', index: 0, prompt: [{ content: 'hello a' }], rewritten: null, excluded: null },
      { type: 'ended', outcome: { kind: 'completed' }, grade: { reward: { value: 0.5, source: 'workflow' } } },
    ]);
    expect(ended.stdout).not.toContain('answer');
  });

  it('allows as many model calls as it is told', async () => {
    const file = await entry('long.ts', `for (let n = 0; n < 3; n++) ${CALL} return { reward: 1 };`);
    const { stdout: short } = await sharedTrainyard('try', file, '--tasks', tasks, '--turns', '2');
    expect(short).toContain('truncated by its limit of turns');
    const { stdout } = await sharedTrainyard('try', file, '--tasks', tasks, '--turns', '3');
    expect(stdout).toContain('completed · reward 1');
  });

  it('shows the stack of what the workflow threw, and exits 1', async () => {
    const file = await entry('bad.ts', `${CALL} function deep() { throw new Error('no such item'); } deep();`, GRADER);
    const { code, stdout } = await sharedTrainyard('try', file, '--tasks', tasks);
    expect(code).toBe(1);
    expect(stdout).toMatch(/Error: no such item\n\s+at deep \(.*bad\.ts:2/);
    expect(stdout).toContain('failed WORKFLOW_FAILED: no such item · not graded');
    expect(stdout, 'frames that are not the agent’s').not.toContain('src/rollout/runner.ts');
    expect(stdout.match(/no such item/g), 'with the stack and in the ending').toHaveLength(2);
  });

  it('says once what is wrong with what was returned, and what to do', async () => {
    const file = await entry('bad.ts', `${CALL} return 1;`, GRADER);
    const { code, stdout } = await sharedTrainyard('try', file, '--tasks', tasks);
    expect(code).toBe(1);
    expect(stdout).toMatch(/failed WORKFLOW_BAD_RESULT: run returned 1; .* · not graded\n {2}what the grader should see /);
    expect(stdout.match(/run returned 1/g)).toHaveLength(1);
  });

  it('shows no stack for a rollout that was rejected, and says what no_turns means', async () => {
    const file = await entry('no.ts', `if (ctx.task.id === 'a') ctx.reject('no mood');`, GRADER);
    const { code, stdout } = await sharedTrainyard('try', file, '--tasks', tasks);
    expect({ code, last: stdout.split('\n').slice(2).join('\n') }).toEqual({ code: 0, last: 'rejected: no mood · not graded\n' });
    const { stdout: other } = await sharedTrainyard('try', file, '--tasks', tasks, '--task', 'b');
    expect(other).toContain('rejected: no_turns (it ended before any model call through ctx.model() was answered)');
  });

  it('runs an agent flow by its name, also from a list of flows', async () => {
    const file = await home.write(
      'flow.ts',
      `import { defineGrader } from 'trainyard';
      import { register, SingleStepSingleTurnAgentFlow } from 'trainyard/agent-flow';
      export class One extends SingleStepSingleTurnAgentFlow {}
      register('one')(One);
      ${GRADER}`,
    );
    const flows = await home.write('flows.yaml', '- name: listed\n  _target_: ./flow.ts#One\n');
    const byName = await sharedTrainyard('try', file, '--flow', 'one', '--tasks', tasks);
    expect(byName).toMatchObject({ code: 0, stdout: expect.stringMatching(/ 0 default · .*\n(.*\n)*completed · reward 1/) });
    const listed = await sharedTrainyard('try', '--flow', 'listed', '--flows', flows, '--tasks', tasks);
    expect(listed).toMatchObject({ code: 0, stdout: expect.stringContaining('completed · reward 1') });
    const flags = ['--min-tasks', '2', '--flow', 'listed', '--flows', flows, '--tasks', tasks];
    const words = expect.stringMatching(/workflow +listed\n {2}written as +an agent flow\n/);
    expect(await sharedTrainyard('preflight', ...flags)).toMatchObject({ code: 0, stdout: words });
    const lone = await home.write('lone.ts', (await readFile(file, 'utf8')).replace('export class', 'class'));
    // A name is registered once in a process.
    const choose = expect.stringMatching(/WORKFLOW_NOT_FOUND: .*\n.*choose one with --flow one\n/);
    expect(await trainyard('preflight', lone, '--tasks', tasks)).toMatchObject({ code: 2, stdout: choose });
    const unnamed = await sharedTrainyard('preflight', '--flows', flows);
    expect(unnamed).toMatchObject({ code: 2, stderr: expect.stringContaining('expected the name of a flow') });
    const nothing = await sharedTrainyard('try');
    expect(nothing).toMatchObject({ code: 2, stderr: expect.stringContaining('missing required argument: entry') });
  });

  it.each([['here', ''], ...(hasSandbox ? [['isolated', "isolation: 'process', "]] : [])])(
    'gives a folder for files, %s, and says where they are',
    async (name, isolation) => {
      const file = await home.write(
        `files-${name}.ts`,
        `import { readFileSync, writeFileSync } from 'node:fs';
      import { defineGrader, defineWorkflow } from 'trainyard';
      export default defineWorkflow({ ${isolation}run: async (ctx) => {
        ${CALL}
        if (ctx.task.id === 'a') writeFileSync(ctx.artifactsDir + '/log.txt', 'seen');
      } });
      export const grader = defineGrader(({ task, artifactsDir }) =>
        task.id === 'a' && readFileSync(artifactsDir + '/log.txt', 'utf8') === 'seen' ? 1 : 0);`,
      );
      const { code, stdout } = await sharedTrainyard('try', file, '--tasks', tasks);
      const folder = /^ {2}files: (.+)$/m.exec(stdout)?.[1] ?? '';
      expect({ code, stdout }).toEqual({ code: 0, stdout: expect.stringContaining('completed · reward 1') });
      expect(await readFile(join(folder, 'log.txt'), 'utf8')).toBe('seen');
      await rm(dirname(dirname(folder)), { recursive: true });
      const { stdout: without } = await sharedTrainyard('try', file, '--tasks', tasks, '--task', 'b');
      expect(without).toContain('completed · reward 0');
      expect(without).not.toContain('files:');
    },
  );

  it('shows where an isolated workflow threw, in its own file', needsSandbox, async () => {
    const file = await isolated('thrown-apart.ts', `\nthrow new Error('no such item');`);
    const { code, stdout } = await sharedTrainyard('try', file, '--tasks', tasks);
    expect(code).toBe(1);
    expect(stdout).toMatch(/Error: no such item\n\s+at .*thrown-apart\.ts:4/);
    expect(stdout).toContain('failed WORKFLOW_FAILED: no such item · not graded');
    expect(stdout).not.toContain('src/places/process/workflow-child.ts');
  });

  it('says why an isolated workflow cannot write beside its entry, and where it may', needsSandbox, async () => {
    const file = await isolated('beside.ts', `\nwriteFileSync(new URL('log.txt', import.meta.url), 'seen');`);
    const { code, stdout } = await sharedTrainyard('try', file, '--tasks', tasks);
    expect(code).toBe(1);
    expect(stdout).toMatch(/at .*beside\.ts:4/);
    expect(stdout).toMatch(
      /WORKFLOW_FAILED: EROFS: .*log\.txt' \(files are read-only under isolation: write to ctx\.artifactsDir or os\.tmpdir\(\)\)/,
    );
  });

  it('says which tasks there are when there is no such one', async () => {
    const file = await entry('good.ts', CALL, GRADER);
    const { code, stderr } = await sharedTrainyard('try', file, '--tasks', tasks, '--task', 'zzz');
    expect(code).toBe(2);
    expect(stderr).toContain('a number from 1 to 2');
  });

  it('ends at once where nothing gives a reward', async () => {
    const file = await entry('none.ts', CALL);
    const { code, stderr } = await sharedTrainyard('try', file, '--tasks', tasks);
    expect(code).toBe(2);
    expect(stderr).toMatch(/error REWARD_MISSING: rollout try returned no reward.*\n.*defineGrader/);
  });
});
