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
