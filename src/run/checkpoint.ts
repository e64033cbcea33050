/**
 * Checkpoints: a folder that is either whole or not there.
 *
 * Written under a temporary name, every file fsynced, renamed, the parent fsynced. The model folder's tokenizer files travel
 * along, so a checkpoint is itself a model folder. Older ones are removed only after a newer one is committed.
 */
import { copyFile, mkdir, open, readdir, rename, rm } from 'node:fs/promises';
import { basename, join } from 'node:path';
import type { Trainer } from '../core/contracts.ts';

const TOKENIZER_FILES = ['tokenizer.json', 'tokenizer_config.json', 'chat_template.jinja'];
/** The last committed one, and the one before it in case that is the one found damaged. */
const KEPT = 2;

export function checkpointName(step: number): string {
  return `step-${String(step).padStart(6, '0')}`;
}

/** Returns the name of the finished folder inside `dir`. */
export async function saveCheckpoint(trainer: Trainer, dir: string, step: number, modelDir: string): Promise<string> {
  const name = checkpointName(step);
  const unfinished = join(dir, `${name}.unfinished`);
  await rm(unfinished, { recursive: true, force: true });
  await mkdir(unfinished);
  await trainer.save(unfinished);
  for (const file of TOKENIZER_FILES) {
    await copyFile(join(modelDir, file), join(unfinished, file)).catch((thrown: NodeJS.ErrnoException) => {
      if (thrown.code !== 'ENOENT') throw thrown;
    });
  }
  for (const file of await readdir(unfinished)) await sync(join(unfinished, file));
  await sync(unfinished);
  await rename(unfinished, join(dir, name));
  await sync(dir);
  return name;
}

/** Removes all but the newest checkpoints. */
export async function pruneCheckpoints(dir: string): Promise<void> {
  const finished = (await readdir(dir)).filter((name) => /^step-\d+$/.test(name)).toSorted();
  for (const name of finished.slice(0, -KEPT)) await rm(join(dir, basename(name)), { recursive: true, force: true });
}

async function sync(path: string): Promise<void> {
  await using handle = await open(path, 'r');
  await handle.sync();
}
