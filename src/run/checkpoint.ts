/**
 * Checkpoints: a folder that is either whole or not there.
 *
 * Written under a temporary name, every file fsynced, renamed, the parent fsynced. The model folder's tokenizer files travel
 * along, so a checkpoint is itself a model folder. Older ones are removed only after a newer one is committed.
 */
import { copyFile, mkdir, open, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Trainer } from '../core/contracts.ts';
import { boundary, TrainyardError } from '../core/errors.ts';

const TOKENIZER_FILES = ['tokenizer.json', 'tokenizer_config.json', 'chat_template.jinja'];
/** The last committed one, and the one before it in case that is the one found damaged. */
const KEPT = 2;
const FINISHED = /^step-\d+$/;

/** A model folder that is there, or FILE_NOT_FOUND; a run directory given for one of its checkpoints is recognised. */
export async function checkModelFolder(dir: string): Promise<void> {
  const names = await readdir(dir).catch(() => undefined);
  if (names?.includes('config.json')) return;
  const checkpoints = await readdir(join(dir, 'checkpoints')).catch(() => []);
  const newest = checkpoints
    .filter((name) => FINISHED.test(name))
    .toSorted()
    .at(-1);
  throw new TrainyardError(
    'FILE_NOT_FOUND',
    names === undefined ? `no model folder at ${dir}` : `${dir} holds no config.json, so it is no model folder`,
    {
      hint:
        newest === undefined
          ? 'give a folder with config.json, model.safetensors and tokenizer.json'
          : `did you mean ${join(dir, 'checkpoints', newest)}?`,
    },
  );
}

export function checkpointName(step: number): string {
  return `step-${String(step).padStart(6, '0')}`;
}

/** Returns the name of the finished folder inside `dir`. What could not be finished is removed. */
export async function saveCheckpoint(trainer: Trainer, dir: string, step: number, modelDir: string): Promise<string> {
  const name = checkpointName(step);
  const unfinished = join(dir, `${name}.unfinished`);
  try {
    await boundary('STORE_FAILED', `cannot write checkpoint ${name}`, async () => {
      await mkdir(unfinished);
      await trainer.save(unfinished);
      await copyTokenizer(modelDir, unfinished);
      for (const file of await readdir(unfinished)) await sync(join(unfinished, file));
      await sync(unfinished);
      await rename(unfinished, join(dir, name));
      await sync(dir);
    });
  } catch (thrown) {
    await rm(unfinished, { recursive: true, force: true });
    throw thrown;
  }
  return name;
}

async function copyTokenizer(from: string, to: string): Promise<void> {
  for (const file of TOKENIZER_FILES) {
    await copyFile(join(from, file), join(to, file)).catch((thrown: NodeJS.ErrnoException) => {
      if (thrown.code !== 'ENOENT') throw thrown;
    });
  }
}

/** Steps with a whole checkpoint, ascending. */
export async function savedSteps(dir: string): Promise<readonly number[]> {
  const names = (await readdir(dir)).filter((name) => FINISHED.test(name));
  return names.map((name) => Number(name.slice('step-'.length))).toSorted((a, b) => a - b);
}

/** Removes all but the newest checkpoints and the one that is to be kept. */
export async function pruneCheckpoints(dir: string, best: number | undefined): Promise<void> {
  for (const step of (await savedSteps(dir)).slice(0, -KEPT)) {
    if (step !== best) await rm(join(dir, checkpointName(step)), { recursive: true, force: true });
  }
}

/** Removes what a killed run left behind: unfinished folders, and a checkpoint whose step was never committed. */
export async function discardUncommitted(dir: string, lastStep: number): Promise<void> {
  for (const name of await readdir(dir)) {
    const committed = FINISHED.test(name) && Number(name.slice('step-'.length)) <= lastStep;
    if (!committed) await rm(join(dir, name), { recursive: true, force: true });
  }
}

async function sync(path: string): Promise<void> {
  await using handle = await open(path, 'r');
  await handle.sync();
}
