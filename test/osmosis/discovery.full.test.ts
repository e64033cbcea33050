/** What an entry module may export in the Osmosis shape, and that everything wrong with it is told at once. */
import { describe, expect, it } from 'vitest';
import { AgentWorkflow, AgentWorkflowConfig, GraderConfig, LocalBackend } from '../../src/osmosis.ts';
import { inspectEntry } from '../../src/rollout/discovery.ts';
import { ROOT, trainyard, useScratch } from '../cli/command.ts';

const home = useScratch();

const HEAD = `import { AgentWorkflow, AgentWorkflowConfig, ConcurrencyConfig, Grader, GraderConfig } from 'trainyard/osmosis';\n`;
const GOOD = 'export class Good extends AgentWorkflow { async run() {} }\n';
const GRADER = '\nexport class Fair extends Grader { async grade() {} }\n';

let n = 0;
/** With a grader, where the source has none of its own. */
async function inspect(source: string, alone = false) {
  const grader = source.includes('extends Grader') ? '' : GRADER;
  const { entry, problems } = await inspectEntry(await home.write(`entry-${n++}.ts`, HEAD + source + (alone ? '' : grader)));
  return { entry, problems: problems.map(({ code, message, hint }) => ({ code, message, hint })) };
}
const codesOf = async (source: string) => (await inspect(source)).problems.map(({ code }) => code);

describe('an entry', () => {
  it('with one workflow, one grader and a config of each is complete', async () => {
    const { entry, problems } = await inspect(`${GOOD}${GRADER}
      export const config = new AgentWorkflowConfig({ name: ' search ', concurrency: new ConcurrencyConfig({ maxConcurrent: 4 }) });
      export const graderConfig = new GraderConfig({ name: 'fair' });`);
    expect(problems).toEqual([]);
    expect(entry).toMatchObject({
      workflow: { name: 'search', concurrency: 4 },
      workflowModule: { exportName: 'Good' },
      grader: { name: 'fair' },
      graderModule: { exportName: 'Fair' },
    });
  });

  it('may export one class under two names, abstract bases, and what other files define', async () => {
    await home.write('base.ts', `${HEAD}export abstract class Base extends AgentWorkflow { abstract helper(): void }`);
    await home.write(
      'agent.ts',
      `${HEAD}import { Base } from './base.ts';
      export class Imported extends Base { helper() {} async run() {} }`,
    );
    const inherited = await inspect(`class Base extends AgentWorkflow { static abstract = true; async run() {} }
      export class Concrete extends Base {}`);
    expect(inherited.entry?.workflow.name).toBe('Concrete');
    const { entry, problems } = await inspect(`export { Base } from './base.ts';
      export { Imported, Imported as default } from './agent.ts';
      export class AlsoAbstract extends AgentWorkflow { static abstract = true; async run() {} }
      export { AgentWorkflow, AgentWorkflowConfig };`);
    expect(problems).toEqual([]);
    expect(entry?.workflow.name).toBe('Imported');
  });

  it('without a workflow is told what it exports, and which class only lacks its method', async () => {
    expect(await inspect('export const config = new AgentWorkflowConfig({ name: "x" });')).toMatchObject({
      problems: [{ code: 'WORKFLOW_NOT_FOUND', message: expect.stringContaining('exports no workflow (it exports ') }],
    });
    expect(await inspect('export abstract class Unfinished extends AgentWorkflow {}')).toMatchObject({
      problems: [{ hint: expect.stringContaining('Unfinished is an abstract base class') }],
    });
  });

  it('without a grader is told so with everything else, because its run gives no rewards', async () => {
    expect(await inspect(GOOD, true)).toMatchObject({
      problems: [
        { code: 'GRADER_NOT_FOUND', message: expect.stringMatching(/exports no grader, and Good gives no rewards itself$/) },
      ],
    });
    const { problems } = await inspect(`${GOOD}export const config = new AgentWorkflowConfig();`, true);
    expect(problems.map(({ code }) => code)).toEqual(['CONFIG_INVALID', 'GRADER_NOT_FOUND']);
  });

  it('with two workflows or two graders is told their names, sorted', async () => {
    const { problems } = await inspect(`export class B extends AgentWorkflow { async run() {} }
      export class A extends AgentWorkflow { async run() {} }
      export class D extends Grader { async grade() {} }
      export class C extends Grader { async grade() {} }`);
    expect(problems).toMatchObject([
      { code: 'WORKFLOW_AMBIGUOUS', message: expect.stringContaining('2 workflows (A, B), expected one') },
      { code: 'WORKFLOW_AMBIGUOUS', message: expect.stringContaining('2 graders (C, D), expected one') },
    ]);
  });

  it('with two configs of a kind is told so once, however many classes ask', async () => {
    const { problems } = await inspect(`${GOOD}export class Other extends AgentWorkflow { async run() {} }
      export const two = new AgentWorkflowConfig({ name: 'b' });
      export const one = new AgentWorkflowConfig({ name: 'a' });
      export { one as zero };`);
    expect(problems.map(({ code }) => code)).toEqual(['CONFIG_INVALID', 'WORKFLOW_AMBIGUOUS']);
    expect(problems[0]?.message).toBe('multiple AgentWorkflowConfig instances found: one, two; expected at most one');
    expect(
      await codesOf(`${GOOD}${GRADER}
      export const a = new GraderConfig({ name: 'a' });
      export const b = new GraderConfig({ name: 'b' });`),
    ).toEqual(['CONFIG_INVALID']);
  });

  it('need not export its config: the one made while it is imported counts, for each of several entries', async () => {
    await home.write('config.ts', `${HEAD}export const shared = new AgentWorkflowConfig({ name: 'elsewhere' });`);
    const found = await Promise.all([
      inspect(`${GOOD}const config = new AgentWorkflowConfig({ name: 'here' });`),
      inspect(`${GOOD}import { shared } from './config.ts'; void shared;`),
      inspect(GOOD),
    ]);
    expect(found.map(({ entry }) => entry?.workflow.name)).toEqual(['here', 'elsewhere', 'Good']);
    const again = await inspectEntry(`${home.dir}/entry-${n - 3}.ts`);
    expect(again.entry?.workflow.name).toBe('here');
    const { problems } = await inspect(`${GOOD}class Mine extends AgentWorkflowConfig { override name = 'mine'; }
      new Mine(); export const other = new AgentWorkflowConfig({ name: 'other' });`);
    expect(problems.map(({ message }) => message)).toEqual([
      "multiple AgentWorkflowConfig instances found: Mine 'mine' (not exported), other; expected at most one",
    ]);
  });

  it('has such a config in the processes that Node itself starts, too', async () => {
    const entry = await home.write(
      'unexported.ts',
      `${HEAD}class Strict extends GraderConfig { override name = 'strict'; least = 0.25; }
      new Strict(); new AgentWorkflowConfig({ name: 'quiet' });
      export class Says extends AgentWorkflow { async run(ctx) {
        await ctx.model().generate({ messages: ctx.prompt, maxTokens: 2 });
        if (ctx.config.name !== 'quiet') throw new Error('no config');
      } }
      export class Fair extends Grader { constructor(config) { super(config); this.least = config.least; }
        async grade(ctx) { ctx.setReward(this.least); } }`,
    );
    const ended = await trainyard('try', entry, '--tasks', `${ROOT}/examples/shop/train.jsonl`);
    expect(ended).toMatchObject({ code: 0, stdout: expect.stringContaining('completed · reward 0.25') });
  });

  it('is told of everything that is wrong at once', async () => {
    const { problems } = await inspect(`
      export class W extends AgentWorkflow { constructor(config) { super(config); throw new Error('no disk'); } run() {} }
      export class G extends Grader { constructor(config) { super(config); throw new Error('no key'); } grade() {} }
      export const config = new AgentWorkflowConfig({ name: '  ', concurrency: 4 as never, description: 7 as never });`);
    expect(problems.map(({ code }) => code)).toEqual([
      'CONFIG_INVALID',
      'WORKFLOW_NOT_ASYNC',
      'WORKFLOW_INIT_FAILED',
      'GRADER_INVALID',
      'GRADER_INIT_FAILED',
    ]);
    const told = problems.map(({ message }) => message).join('\n');
    for (const words of [
      "config: name: expected a name of 1 to 256 characters, found '  '",
      'description: expected a text or null, found 7',
      'concurrency: expected new ConcurrencyConfig({ maxConcurrent: … }), found 4',
      'W.run: expected an async method, found Function',
      'no disk',
      'G.grade: expected an async method, found Function',
      'no key',
    ]) {
      expect(told).toContain(words);
    }
  });
});

describe('a config', () => {
  it.each([0, -1, 1.5, '4'])('cannot have %j as its concurrency', async (value) => {
    expect(
      await inspect(`export const c = new ConcurrencyConfig({ maxConcurrent: ${JSON.stringify(value)} as never });`),
    ).toMatchObject({
      problems: [{ code: 'CONFIG_INVALID', message: expect.stringContaining('expected a whole number from 1 up') }],
    });
  });

  it('has a name of at most 256 characters, after trimming', async () => {
    const named = (length: number) =>
      `${GOOD}export const c = new AgentWorkflowConfig({ name: ' ' + 'x'.repeat(${length}) + ' ' });`;
    expect(await codesOf(named(256))).toEqual([]);
    expect(await codesOf(named(257))).toEqual(['CONFIG_INVALID']);
  });

  it('that has no name, or lost what its constructor was given, is refused', async () => {
    expect(await inspect(`${GOOD}class C extends AgentWorkflowConfig { more = 1 }\nexport const c = new C();`)).toMatchObject({
      problems: [{ message: "c: name: expected a name of 1 to 256 characters, found ''" }],
    });
    expect(
      await inspect(
        `${GOOD}class C extends AgentWorkflowConfig { name = 'c'; steps = 8 }\nexport const c = new C({ steps: 3 });`,
      ),
    ).toMatchObject({ problems: [{ message: expect.stringContaining('steps: the constructor was given 3') }] });
  });
});

it('a config given to a backend is refused where the workflow does not take it, instead of being lost', () => {
  class Own extends AgentWorkflow {
    override async run(): Promise<void> {}
  }
  const backend = (workflowConfig?: unknown) => () => new LocalBackend({ workflow: Own, workflowConfig });
  for (const other of [{ name: 'plain' }, new GraderConfig({ name: 'other kind' }), 7]) {
    expect(backend(other)).toThrow(/workflowConfig is .*, which the workflow Own does not take/);
  }
  expect(backend(new AgentWorkflowConfig({ name: 'own' }))).not.toThrow();
  expect(backend()).not.toThrow();
});
