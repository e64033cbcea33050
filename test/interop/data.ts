/**
 * Exported rollouts in the programs that they are for: `datasets` loads the files, TRL's SFTTrainer batches and trains on them, verl reads
 * prompts and makes its own batch of them, and the messages fit the OpenAI SDK's types. Tokens, masks, log-probabilities and rewards are
 * compared, exactly, with the turns in the store of a short training run. What is checked stands in data_check.py.
 */
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { openStoreOf } from '../../src/run/run-store.ts';
import { trainyard } from './child.ts';
import { cache, root } from './python-environment.ts';
import type { Report } from './report.ts';

const FOLDER = join(cache, 'data');
const RUN = join(FOLDER, 'run');
const MODEL = join(root, 'models/base');
const FILES = ['jsonl.jsonl', 'parquet.parquet', 'trl.parquet', 'verl.parquet', 'openai.jsonl'];

export async function checkData(report: Report, python: string): Promise<void> {
  await rm(FOLDER, { recursive: true, force: true });
  await mkdir(FOLDER, { recursive: true });
  await trainyard('train', 'examples/shop/agent.ts', '--run', RUN, '--steps', '4', '--groups-per-step', '4', '--eval-every', '0');
  for (const file of FILES) {
    const said = await trainyard('export', RUN, '--format', file.split('.')[0]!, '--to', join(FOLDER, file));
    report.note(said.trim().replaceAll(`${FOLDER}/`, ''));
  }
  await writeFile(join(FOLDER, 'store.json'), JSON.stringify(await keptRollouts()));
  const env = { HF_HUB_OFFLINE: '1', HF_DATASETS_CACHE: join(FOLDER, 'cache'), WANDB_MODE: 'disabled', CUDA_VISIBLE_DEVICES: '' };
  const args = [join(import.meta.dirname, 'data_check.py'), FOLDER, MODEL];
  const program = { command: python, args, env, cwd: FOLDER, limitMs: 600_000 };
  await report.checkBy('other trainers load what was exported', program);
}

/** The turns as the store has them, without the code that makes rows. */
async function keptRollouts(): Promise<object> {
  await using store = await openStoreOf(RUN);
  const kept = await store.query({ purpose: 'train' });
  const rollouts = kept.map(({ rolloutId, groupId, grade, turns }) => ({
    ...{ rolloutId, groupId, reward: grade.kind === 'graded' ? grade.reward.value : null },
    turns: turns.map(({ promptIds, sampledIds, logprobs, response }) => ({
      ...{ prompt: [...promptIds], sampled: [...sampledIds], logprobs: [...logprobs], response },
    })),
  }));
  return Object.fromEntries(rollouts.map((rollout) => [rollout.rolloutId, rollout]));
}
