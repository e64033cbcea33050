/** What a run that is taken up again must still be. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { defineWorkflow } from '../core/define.ts';
import { defineGrader } from '../core/define-grader.ts';
import { planNew, planResumed } from './plan.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'trainyard-plan-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

it('is refused where the state at the server that it began from is another one', async () => {
  const tasks = join(folder, 'train.jsonl');
  const state = join(folder, 'tinker.json');
  await writeFile(tasks, '{"id":"t1","prompt":"Question?"}\n');
  await writeFile(state, '{"path":"tinker://m1/weights/a"}');
  const entry = { workflow: defineWorkflow(async () => undefined), grader: defineGrader(() => 1) };
  const begun = await planNew({ entry, model: folder, tasks, run: folder, minTasks: 1 });
  await writeFile(join(folder, 'run.json'), JSON.stringify(begun.record));
  const again = { run: folder, entry, model: folder, tasks };
  expect((await planResumed(again)).identity).toBe(begun.identity);
  await writeFile(state, '{"path":"tinker://m1/weights/b"}');
  await expect(planResumed(again)).rejects.toMatchObject({
    code: 'RESUME_IMPOSSIBLE',
    message: expect.stringMatching(/has changed since the run began/),
  });
});
