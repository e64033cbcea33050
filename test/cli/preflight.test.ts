/** `trainyard preflight`, by the real command: what it finds, and everything that is wrong at once. */
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ROOT, sharedTrainyard, useScratch } from './command.ts';

const home = useScratch();

const GOOD = `
import { AgentWorkflow, AgentWorkflowConfig, ConcurrencyConfig, Grader } from 'trainyard/osmosis';
class SearchConfig extends AgentWorkflowConfig {
  name = 'search-workflow';
  concurrency = new ConcurrencyConfig({ maxConcurrent: 4 });
}
export const config = new SearchConfig();
export class SearchWorkflow extends AgentWorkflow<SearchConfig> {
  async run() { throw new Error('nothing is to be run'); }
}
export { SearchWorkflow as default };
export class Fair extends Grader { async grade() {} }
setInterval(() => {}, 1000);
`;

describe('a good entry', () => {
  it('is described, and nothing of it is run', async () => {
    const entry = await home.write('good.ts', GOOD);
    const tasks = await home.write('tasks.jsonl', '{"prompt":"a","answer":1}\n{"prompt":"b","answer":2}\n');
    const { code, stdout, stderr } = await sharedTrainyard('preflight', entry, '--tasks', tasks, '--min-tasks', '2', '--json');
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const found = {
      ...{ workflow: 'search-workflow', shape: 'AgentWorkflow', config: 'SearchConfig', roles: {}, concurrency: 4 },
      ...{ isolation: 'none', grader: 'Fair', graderConcurrency: null, tasks: 2, heldOut: 0 },
    };
    expect(JSON.parse(stdout)).toEqual({ type: 'preflight', ok: true, problems: [], warnings: [], found });
  });

  it('of any shape is told in words, with the tasks beside it', async () => {
    const { code, stdout } = await sharedTrainyard('preflight', join(ROOT, 'examples/desk/agent.ts'));
    expect(code).toBe(0);
    expect(stdout).toMatch(/^Ready:\n {2}workflow /);
    expect(stdout).toMatch(/written as +defineWorkflow\n/);
    expect(stdout).toMatch(/roles +.*customer \(not trained\)/);
    expect(stdout).toMatch(/\n {2}tasks +1000\n {2}held-out tasks +300\n/);
  });
});

describe('tasks', () => {
  const graded = () =>
    home.write(
      'graded.ts',
      `import { defineGrader, defineWorkflow } from 'trainyard';
      export default defineWorkflow(async () => 'done');
      export const grader = defineGrader(({ task, output }) => Number(output === task.answer));`,
    );

  it('that are not there are said to be missing', async () => {
    const { code, stdout } = await sharedTrainyard('preflight', await graded());
    expect(code).toBe(0);
    expect(stdout).toMatch(/^The entry is in order; there are no tasks yet:\n/);
    expect(stdout).not.toContain('Ready');
    expect(stdout).toMatch(/\n {2}tasks +none: .*--tasks\n {2}held-out tasks +none: .*--held-out/);
  });

  it('that look wrong are warned about', async () => {
    const tasks = await home.write('some.jsonl', '{"prompt":"a","answer":1}\n{"prompt":"b","answer":null}\n');
    const { code, stdout } = await sharedTrainyard('preflight', await graded(), '--tasks', tasks, '--min-tasks', '2');
    expect(code).toBe(0);
    expect(stdout.match(/Warning.*/g)).toEqual([expect.stringContaining('NO_ANSWERS: 1 of 2 tasks have no answer')]);
  });
});

describe('a bad entry', () => {
  it('is told everything at once, tasks included', async () => {
    const entry = await home.write(
      'bad.ts',
      `import { AgentWorkflow, AgentWorkflowConfig } from 'trainyard/osmosis';
      export class B extends AgentWorkflow { run() {} }
      export class A extends AgentWorkflow { async run() {} }
      export const one = new AgentWorkflowConfig({ name: 'one' });
      export const two = new AgentWorkflowConfig({ name: 'two' });`,
    );
    const tasks = await home.write('bad.jsonl', '{"prompt":1}\n');
    const { code, stdout } = await sharedTrainyard('preflight', entry, '--tasks', tasks, '--held-out', 'gone.jsonl', '--json');
    expect(code).toBe(2);
    const { ok, problems, found } = JSON.parse(stdout);
    expect({ ok, found }).toEqual({ ok: false, found: {} });
    expect(problems.map((problem: { code: string }) => problem.code)).toEqual([
      ...['CONFIG_INVALID', 'WORKFLOW_NOT_ASYNC', 'WORKFLOW_AMBIGUOUS', 'GRADER_NOT_FOUND', 'DATASET_INVALID', 'FILE_NOT_FOUND'],
    ]);
    const stdoutWords = expect.stringMatching(/^5 problems:\n {2}CONFIG_INVALID: .*\n {4}keep only one/);
    expect(await sharedTrainyard('preflight', entry, '--tasks', tasks)).toMatchObject({ code: 2, stdout: stdoutWords });
  });

  it.each([
    ['gone.ts', 'FILE_NOT_FOUND', 'no entry file at'],
    ['.', 'FILE_NOT_FOUND', 'is a folder'],
    ['agent.py', 'ENTRY_UNLOADABLE', 'use a .ts, .mts, .js or .mjs file'],
    ['broken.ts', 'ENTRY_UNLOADABLE', 'cannot import'],
  ])('%s is %s', async (name, problem, words) => {
    await home.write('agent.py', 'x = 1');
    await home.write('broken.ts', 'import "./not-there.ts";');
    const { code, stdout } = await sharedTrainyard('preflight', join(home.dir, name));
    expect({ code, stdout }).toEqual({ code: 2, stdout: expect.stringContaining(problem) });
    expect(stdout).toContain(words);
  });
});

describe('tasks that name flows', () => {
  it('are held against the flows there are, whether or not one was chosen by name', async () => {
    const entry = await home.write(
      'flow.ts',
      `import { register, SingleStepSingleTurnAgentFlow } from 'trainyard/agent-flow';
       export class Mine extends SingleStepSingleTurnAgentFlow {}
       register('mine')(Mine);`,
    );
    const rows = ['mine', 'Mine', 'nobody', null].map((agent_name) => JSON.stringify({ prompt: 'a', metadata: { agent_name } }));
    const tasks = await home.write('flow-tasks.jsonl', `${rows.join('\n')}\n`);
    const { code, stdout } = await sharedTrainyard('preflight', entry, '--tasks', tasks, '--json');
    expect(code).not.toBe(0);
    const { problems } = JSON.parse(stdout) as { problems: readonly { readonly message: string }[] };
    expect(problems.map(({ message }) => message)).toEqual([
      expect.stringMatching(/^the agent_name of task .* is no text$/),
      expect.stringMatching(/^tasks ask for the flows nobody by agent_name; there are Mine, mine, /),
    ]);
  });
});
