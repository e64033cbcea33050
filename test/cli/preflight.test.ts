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

describe('a probe', () => {
  it('of the shipped policy at its own job finds something to learn, and says what a run needs', async () => {
    const flags = ['--probe', '--threads', '1', '--price', '1,2', '--steps', '30'];
    const { code, stdout } = await sharedTrainyard('preflight', join(ROOT, 'examples/shop/agent.ts'), ...flags);
    expect(code).toBe(0);
    expect(stdout.match(/\n {2}task +[0-8] of 8 solved, mean reward \d\.\d\d.*: train-\d+/g)).toHaveLength(4);
    expect(stdout).toMatch(/\n {2}signal +[1-4] of 4 groups have rewards that differ\n/);
    expect(stdout).toMatch(/\n {2}longest prompt +\d+ tokens of a context of 512: \d+ left to answer\n/);
    expect(stdout).toMatch(/\n {2}a whole run +30 steps of 8 × 8: about .* training comes on top and is not measured\n/);
    expect(stdout).toMatch(/\n +about \S+ model calls, \S+ prompt and \S+ sampled tokens, cost \d\.\d+\n/);
    expect(stdout).toMatch(/\n {2}model +base: 0\.1 M parameters, 0\.1 M trained, context 512; memory up to .* GB/);
    expect(stdout).toMatch(/\nThere is something to learn from\.\n$/);
  });

  it('of what cannot succeed ends with 1, and says what was answered and what to do', async () => {
    const entry = await home.write(
      'hopeless.ts',
      `import { defineGrader, defineWorkflow } from 'trainyard';
      export default defineWorkflow(async ({ task, model }) => {
        const { baseURL, apiKey, name } = model();
        const headers = { authorization: \`Bearer \${apiKey}\`, 'content-type': 'application/json' };
        const body = JSON.stringify({ model: name, messages: task.prompt });
        await fetch(\`\${baseURL}/chat/completions\`, { method: 'POST', headers, body });
      });
      export const grader = defineGrader(() => 0);`,
    );
    const tasks = await home.write(
      'hopeless.jsonl',
      ['a', 'b', 'c', 'd', 'e'].map((prompt) => JSON.stringify({ prompt, answer: 1 })).join('\n'),
    );
    const flags = ['--probe', '--tasks', tasks, '--call-tokens', '8', '--threads', '1', '--json'];
    const { code, stdout } = await sharedTrainyard('preflight', entry, ...flags);
    expect(code).toBe(1);
    const { ok, probe } = JSON.parse(stdout);
    expect({ ok, rollouts: probe.rollouts }).toEqual({ ok: true, rollouts: 32 });
    const task = { id: expect.any(String), success: 0, meanReward: 0, hasSignal: false };
    expect(probe.tasks).toEqual([task, task, task, task]);
    const words =
      /^no group had two different rewards; rewards of the last 32 rollouts: 32 × 0 by the grader; the policy gave 32 answers: /;
    expect(probe.missing).toEqual({ message: expect.stringMatching(words), hint: expect.stringContaining('measure the agent') });
  });

  it('has flags that are refused without it', async () => {
    const { code, stderr } = await sharedTrainyard('preflight', 'any.ts', '--call-tokens', '8');
    expect({ code, stderr }).toEqual({
      code: 2,
      stderr: expect.stringContaining('--call-tokens: expected --probe beside it'),
    });
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
