import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { scratch, start, trainyard } from './command.ts';

const ENTRY = (reward: string) => `
import { defineWorkflow } from 'trainyard';
export default defineWorkflow({
  name: 'untidy',
  teardown: () => { throw new Error('the drawer is stuck'); },
  async run(ctx) {
    await ctx.model().generate({ messages: ctx.prompt, maxTokens: 4 });
    return { reward: ${reward} };
  },
});
`;

it('a teardown that fails is told by its name, and hides neither why the run failed nor that it was interrupted', async () => {
  const home = await scratch();
  const tasks = await home.write('tasks.jsonl', '{"id":"t","prompt":"Q?"}\n');
  const begin = async (name: string, reward: string, ...more: string[]) => {
    const entry = await home.write(`${name}.ts`, ENTRY(reward));
    const flags = ['--steps', '1', '--groups-per-step', '1', '--group', '2', '--min-tasks', '1', ...more];
    return ['train', entry, '--tasks', tasks, '--run', join(home.dir, name), ...flags];
  };
  const fine = await trainyard(...(await begin('fine', 'ctx.seed % 1000')));
  expect(fine.code).toBe(1);
  expect(fine.stderr).toContain('WORKFLOW_FAILED: the teardown of workflow untidy failed: the drawer is stuck');
  expect((await readFile(join(home.dir, 'fine', 'checkpoints', 'step-000001', 'model.safetensors'))).length).toBeGreaterThan(0);

  const failed = await trainyard(...(await begin('same', '0.5')));
  expect(failed.code).toBe(1);
  expect(failed.stderr).toContain('error NO_SIGNAL');
  expect(failed.stdout + failed.stderr).toContain('the drawer is stuck');

  const waiting = `await new Promise((resolve) => { process.getBuiltinModule('node:fs').writeSync(1, 'waiting\\n'); setTimeout(resolve, 60_000); })`;
  const { child, ended, prints } = start(await begin('cut', waiting));
  await prints('waiting');
  child.kill('SIGINT');
  await new Promise((resolve) => setTimeout(resolve, 200));
  child.kill('SIGINT');
  expect((await ended).code).toBe(130);
  await home.remove();
}, 60_000);
