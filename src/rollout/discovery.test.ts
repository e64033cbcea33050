/** Exports that are meant as graders and are none: found when the entry is read, before any rollout. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { scratch } from '../../test/cli/command.ts';
import { inspectEntry } from './discovery.ts';

const WORKFLOW = `import { defineWorkflow } from 'trainyard';\nexport default defineWorkflow(async () => 'done');\n`;

let home: Awaited<ReturnType<typeof scratch>>;
beforeAll(async () => {
  home = await scratch();
});
afterAll(() => home.remove());

let n = 0;
async function problemsOf(source: string) {
  const { problems } = await inspectEntry(await home.write(`entry-${n++}.ts`, source));
  return problems.map(({ code, message, hint }) => `${code}: ${message} (${hint})`);
}

const AGENT = `{ async run(data, { baseURL }) { return baseURL ? 1 : 0; } }`;

describe('an agent after AReaL', () => {
  it.each([
    [`export default class Mine ${AGENT}`, 'Mine'],
    [`class Mine ${AGENT}\nexport const agent = new Mine();`, 'Mine'],
    [`export const agent = ${AGENT};`, 'agent'],
  ])('needs no wrapper where it is the only thing that can be meant: %s', async (source, name) => {
    const { entry, problems } = await inspectEntry(await home.write(`agent-${n++}.ts`, source));
    expect(problems).toEqual([]);
    expect(entry).toMatchObject({ workflow: { name, grading: 'when-missing' }, workflowModule: { url: expect.any(String) } });
  });

  it.each([
    [`export class A ${AGENT} export class B ${AGENT}`, /^WORKFLOW_AMBIGUOUS: .* exports 2 workflows \(A, B\)/],
    ['export class A { async run(data, extra) { return 1; } }', /wrap it in agentWorkflow\(…\) of trainyard\/areal/],
    ['export class A { async run(ctx) { return ctx.model().baseURL; } }', /A is a plain class: wrap it in defineWorkflow/],
    [`export class A { constructor(x) {} async run(data, { baseURL }) {} }`, /mark an instance: agentWorkflow\(new A\(…\)\)/],
  ])('is told which wrapper it needs otherwise: %s', async (source, says) => {
    expect(await problemsOf(source)).toEqual([expect.stringMatching(says)]);
  });

  it('does not count beside a workflow', async () => {
    expect(await problemsOf(`${WORKFLOW}export class A ${AGENT}`)).toEqual([]);
  });
});

describe('an entry', () => {
  it('with two workflows, one of them unusable, is told of both mistakes', async () => {
    const source = `import { AgentWorkflow, Grader } from 'trainyard/osmosis';
      export class A extends AgentWorkflow { run() {} }
      export class B extends AgentWorkflow { async run() {} }
      export class C extends Grader { async grade() {} }`;
    expect(await problemsOf(source)).toEqual([
      expect.stringMatching(/^WORKFLOW_NOT_ASYNC: A\.run/),
      expect.stringMatching(/^WORKFLOW_AMBIGUOUS: .* exports 2 workflows \(A, B\)/),
    ]);
  });

  it('that does not exist is compared with the modules of its folder', async () => {
    await home.write('my-agent.ts', WORKFLOW);
    for (const typed of ['my_agent.ts', 'my-agent.js', 'my-agnet.ts', 'myagent']) {
      const { problems } = await inspectEntry(`${home.dir}/${typed}`);
      expect(problems[0]?.hint).toContain(`did you mean ${home.dir}/my-agent.ts?`);
    }
    const { problems } = await inspectEntry(`${home.dir}/elsewhere.ts`);
    expect(problems[0]).toMatchObject({ code: 'FILE_NOT_FOUND', hint: expect.not.stringContaining('did you mean') });
  });
});

describe('an export named grader', () => {
  it.each([
    [
      'export const grader = () => 1;',
      /^GRADER_INVALID: the export grader is a plain function, no grader \(wrap it in defineGrader/,
    ],
    ['export async function grader() { return 1; }', /plain function.*wrap it in defineGrader/],
    [
      `import { exactMatch } from 'trainyard/graders'; export const grader = exactMatch;`,
      /the export grader is the function exactMatch, no grader \(if exactMatch makes graders, call it: grader = exactMatch\(…\)/,
    ],
    ['export const grader = { grade: () => 1 };', /it is an Object \(wrap it in defineGrader/],
    ['export class ShopGrader { grade() { return 1; } }', /the export ShopGrader is a plain class, no grader \(wrap it/],
    ['export const grader = 1;', /it is a Number \(write export const grader = defineGrader/],
    ['export const grader = undefined;', /it is undefined \(/],
  ])('that is none is told before the run: %s', async (source, says) => {
    expect(await problemsOf(WORKFLOW + source)).toEqual([expect.stringMatching(says)]);
  });

  it('is told together with a workflow that is missing, for which it is not taken', async () => {
    expect(await problemsOf('export const grader = () => 1;')).toEqual([
      expect.stringMatching(/^WORKFLOW_NOT_FOUND: .*\(export default defineWorkflow/),
      expect.stringMatching(/^GRADER_INVALID: the export grader is a plain function/),
    ]);
  });

  it('does not matter beside a grader, and other functions are nobody’s business', async () => {
    const real = `import { exactMatch } from 'trainyard/graders'; export const exact = exactMatch();`;
    expect(await problemsOf(`${WORKFLOW}${real} export const grader = () => 1;`)).toEqual([]);
    expect(await problemsOf(`${WORKFLOW}export const grade = () => 1; export const graderConfig = { a: 1 };`)).toEqual([]);
    expect(await problemsOf(`${WORKFLOW}export class School { grade() {} } export { Grader } from 'trainyard/osmosis';`)).toEqual(
      [],
    );
  });
});
