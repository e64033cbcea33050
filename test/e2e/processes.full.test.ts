/** What blocks the event loop as a newcomer meets it: the real command, the shipped policy, a few tasks. */
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { jsonLines, ROOT, scratch, trainyard } from '../cli/command.ts';

const ENTRY = `
import { execSync } from 'node:child_process';
import { defineGrader, defineWorkflow } from 'trainyard';
export default defineWorkflow(async (ctx) => {
  await ctx.model().generate({ messages: ctx.prompt, maxTokens: 4 });
  runTool();
});
function runTool(): void {
  execSync('sleep 1'); // here
}
export const grader = defineGrader(() => 1);
`;

it('the command names what blocked the event loop, by file, line and function', async () => {
  const home = await scratch();
  const entry = await home.write('blocking.ts', ENTRY);
  const tasks = ['--held-out', join(ROOT, 'examples/triage/held-out.jsonl'), '--rows', '1-4'];
  const { code, stdout } = await trainyard('eval', entry, ...tasks, '--run', join(home.dir, 'blocked'), '--json');
  expect(code).toBe(0);
  const line = ENTRY.split('\n').findIndex((one) => one.endsWith('// here')) + 1;
  const blocked = new RegExp(`blocking\\.ts:${line} runTool blocked all rollouts for \\d\\.\\d s; use an async`);
  expect(jsonLines(stdout).filter(({ type }) => type === 'warning')).toEqual([
    { at: expect.any(Number), type: 'warning', code: 'EVENT_LOOP_BLOCKED', message: expect.stringMatching(blocked) },
  ]);
  await home.remove();
});
