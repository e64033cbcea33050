/**
 * TensorBoard files, written while a training goes and exported afterwards, as TensorBoard's own reader sees them: the same rewards, steps
 * and times as in events.jsonl.
 */
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { eventsIn } from '../../src/run/directory.ts';
import { runProgram, trainyard } from './child.ts';
import { cache } from './python-environment.ts';
import type { Report } from './report.ts';

const FOLDER = join(cache, 'tensorboard');
const RUN = join(FOLDER, 'run');
const EXPORTED = join(FOLDER, 'exported');

type Scalars = Readonly<Record<string, readonly (readonly [step: number, value: number, time: number])[]>>;

export async function checkTensorBoard(report: Report, python: string): Promise<void> {
  await rm(FOLDER, { recursive: true, force: true });
  await mkdir(FOLDER, { recursive: true });
  await trainyard('train', 'examples/shop/agent.ts', '--run', RUN, '--steps', '3', '--eval-every', '0', '--tensorboard');
  await trainyard('export', RUN, '--tensorboard', EXPORTED);
  const steps = eventsIn(RUN).filter((event) => event.type === 'step-end');
  for (const folder of [join(RUN, 'tensorboard'), EXPORTED]) {
    await report.check(`TensorBoard reads ${folder.slice(FOLDER.length + 1)}`, async () => {
      const args = [join(import.meta.dirname, 'tensorboard_check.py'), folder];
      const printed = await runProgram({ command: python, args, cwd: FOLDER, limitMs: 120_000 });
      const scalars = JSON.parse(printed.slice(printed.indexOf('{'))) as Scalars;
      const rewards = scalars['train/reward'] ?? [];
      const isSame = steps.every(({ step, reward, at = 0 }, i) => {
        const [readStep, value = Number.NaN, time = 0] = rewards[i] ?? [];
        return readStep === step && value === Math.fround(reward) && Math.abs(time - at / 1000) < 1;
      });
      if (steps.length !== 3 || rewards.length !== 3 || !isSame) throw new Error(`other rewards: ${JSON.stringify(rewards)}`);
      return `${Object.keys(scalars).length} scalars, the rewards of ${rewards.length} steps`;
    });
  }
}
