/**
 * Checkpoints: a folder that is either whole or not there.
 *
 * Written under a temporary name, every file fsynced, renamed, the parent fsynced. The model folder's tokenizer files travel
 * along, so a checkpoint is itself a model folder. `checkpoint.json` says of which run and step it is and what its files' digests
 * are: one that was damaged, or put there by somebody, is never trained on. Older ones are removed only after a newer one is
 * committed. Here are also the digests of model folders and files by which a run knows whether they are still what they were.
 */
import { hash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { constants, copyFile, mkdir, open, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { boundary, TrainyardError } from '../core/errors.ts';
import { digestOf } from '../core/json.ts';
import type { Trainer } from '../core/policy.ts';

export const TOKENIZER_FILES = ['tokenizer.json', 'tokenizer_config.json', 'chat_template.jinja'];
/** The last committed one, and the one before it in case that is the one found damaged. */
const KEPT = 2;
const FINISHED = /^step-\d+$/;
const UNFINISHED = /^step-\d+\.unfinished$/;

/**
 * A model folder that is there, or FILE_NOT_FOUND; a run directory given for one of its checkpoints is recognised. `needs`: weights, or
 * only what is about text, because the weights are at a server.
 */
export async function checkModelFolder(dir: string, needs: 'weights' | 'text' = 'weights'): Promise<void> {
  const names = await readdir(dir).catch(() => undefined);
  if (names?.includes('config.json')) {
    if (needs === 'text' || !names.includes('tinker.json') || names.includes('model.safetensors')) return;
    throw new TrainyardError(
      'MODEL_INVALID',
      `the weights of ${dir} are not in it but at a Tinker server; tinker.json says which`,
      {
        hint: 'use it with --engine tinker; of a trainyard tinker server, the weights are below its --state folder',
      },
    );
  }
  const checkpoints = join(dir, 'checkpoints');
  const newest = (await savedSteps(checkpoints).catch(() => [])).at(-1);
  const wanted = needs === 'weights' ? 'model.safetensors' : 'tokenizer_config.json';
  const found = names === undefined ? `no model folder at ${dir}` : `${dir} holds no config.json, so it is no model folder`;
  throw new TrainyardError('FILE_NOT_FOUND', found, {
    hint:
      newest === undefined
        ? `give a folder with config.json, ${wanted} and tokenizer.json`
        : `did you mean ${join(checkpoints, checkpointName(newest))}?`,
  });
}

export function checkpointName(step: number): string {
  return `step-${String(step).padStart(6, '0')}`;
}

const LABEL = 'checkpoint.json';
const labelSchema = z.strictObject({ run: z.string(), step: z.int(), files: z.record(z.string(), z.string()) });

interface CheckpointOptions {
  readonly dir: string;
  readonly step: number;
  /** What tells one run from another. */
  readonly identity: string;
  /** Where the tokenizer's files are. */
  readonly model: string;
}

/** What could not be finished is removed. */
export async function saveCheckpoint(trainer: Trainer, { dir, step, identity, model }: CheckpointOptions): Promise<void> {
  const name = checkpointName(step);
  const unfinished = join(dir, `${name}.unfinished`);
  try {
    await boundary('STORE_FAILED', `cannot write checkpoint ${name}`, async () => {
      const label = { run: identity, step, files: await savedFiles(trainer, unfinished, model) };
      await writeFile(join(unfinished, LABEL), `${JSON.stringify(label, null, 2)}\n`);
      for (const file of await readdir(unfinished)) await sync(join(unfinished, file));
      await sync(unfinished);
      await rename(unfinished, join(dir, name));
      await sync(dir);
    });
  } catch (thrown) {
    await rm(unfinished, { recursive: true, force: true });
    throw thrown;
  }
}

/** Writes a model folder; gives the digest of each of its files. */
export async function savedFiles(trainer: Trainer, folder: string, model: string): Promise<Record<string, string>> {
  await mkdir(folder);
  await trainer.save(folder);
  await copyRest(model, folder);
  return await digestsOf(folder);
}

/** Loads the checkpoint of a step, after checking that it is what was saved. Nothing is loaded when it is not. */
export async function loadCheckpoint(trainer: Trainer, { dir, step, identity }: Omit<CheckpointOptions, 'model'>): Promise<void> {
  const folder = join(dir, checkpointName(step));
  const label = await labelIn(folder);
  if (label.run !== identity || label.step !== step) {
    throw new TrainyardError('CHECKPOINT_MISMATCH', 'it is of another run or another step');
  }
  const found = await digestsOf(folder);
  const changed = Object.entries(label.files).filter(([name, digest]) => found[name] !== digest);
  if (changed.length > 0) {
    throw new TrainyardError('CHECKPOINT_MISMATCH', `${changed.map(([name]) => name).join(', ')} changed since it was saved`);
  }
  await trainer.load(folder);
}

/** The policy that a run begins with. It begins with a fresh optimizer too, also where the model is a checkpoint of an earlier run. */
export function loadFirst(trainer: Trainer, model: string): Promise<void> {
  return trainer.load(model, { optimizer: false });
}

/** What the checkpoint in this folder says of itself. Throws CHECKPOINT_MISMATCH. */
export async function labelIn(folder: string): Promise<z.infer<typeof labelSchema>> {
  const text = await readFile(join(folder, LABEL), 'utf8').catch(() => '{}');
  const label = labelSchema.safeParse(await boundary('CHECKPOINT_MISMATCH', `${LABEL} is not JSON`, () => JSON.parse(text)));
  if (label.success) return label.data;
  throw new TrainyardError('CHECKPOINT_MISMATCH', `it has no readable ${LABEL}`);
}

/** Out of the way, but not removed: somebody may want to look at it. */
export async function setAside(dir: string, step: number): Promise<void> {
  const folder = join(dir, checkpointName(step));
  await rm(`${folder}.unreadable`, { recursive: true, force: true });
  await rename(folder, `${folder}.unreadable`);
}

/** Of each file but the label. */
export async function digestsOf(folder: string): Promise<Record<string, string>> {
  const digests: Record<string, string> = {};
  for (const name of (await readdir(folder)).toSorted()) {
    if (name !== LABEL) digests[name] = hash('sha256', await readFile(join(folder, name)), 'hex');
  }
  return digests;
}

/** What makes a model folder of it, and is not there already: a policy on a server leaves no config.json. */
async function copyRest(from: string, to: string): Promise<void> {
  for (const file of ['config.json', ...TOKENIZER_FILES]) {
    await copyFile(join(from, file), join(to, file), constants.COPYFILE_EXCL).catch((thrown: NodeJS.ErrnoException) => {
      if (thrown.code !== 'ENOENT' && thrown.code !== 'EEXIST') throw thrown;
    });
  }
}

/** Steps with a whole checkpoint, ascending. */
export async function savedSteps(dir: string): Promise<readonly number[]> {
  const names = (await readdir(dir)).filter((name) => FINISHED.test(name));
  return names.map((name) => Number(name.slice('step-'.length))).toSorted((a, b) => a - b);
}

/** Removes all but the newest checkpoints and the one that is to be kept. */
export async function pruneCheckpoints(trainer: Trainer, dir: string, best: number | undefined): Promise<void> {
  for (const step of (await savedSteps(dir)).slice(0, -KEPT)) {
    if (step !== best) await remove(trainer, join(dir, checkpointName(step)));
  }
}

/**
 * Removes what a killed run left behind: unfinished folders, and the checkpoint of the step it was about to commit. Throws
 * RESUME_IMPOSSIBLE where checkpoints are further than the store: then it is the store that was lost.
 */
export async function discardUncommitted(trainer: Trainer, dir: string, lastStep: number): Promise<void> {
  const newest = (await savedSteps(dir)).at(-1) ?? 0;
  if (newest > lastStep + 1) {
    const message = `there is a checkpoint of step ${newest}, but the store knows ${lastStep} steps: it was lost or replaced`;
    const hint = `put the store back, or begin a new run with --model ${join(dir, checkpointName(newest))}`;
    throw new TrainyardError('RESUME_IMPOSSIBLE', message, { hint });
  }
  for (const name of await readdir(dir)) {
    const left = UNFINISHED.test(name) || name === checkpointName(lastStep + 1);
    if (left) await remove(trainer, join(dir, name));
  }
}

async function remove(trainer: Trainer, folder: string): Promise<void> {
  await trainer.forget(folder);
  await rm(folder, { recursive: true, force: true });
}

async function sync(path: string): Promise<void> {
  await using handle = await open(path, 'r');
  await handle.sync();
}

/** Digest of a model folder, without what else may lie in it. */
export async function modelDigest(folder: string): Promise<string> {
  // Where the weights are on a server, tinker.json says which.
  const weights = existsSync(join(folder, 'tinker.json')) ? ['model.safetensors', 'tinker.json'] : ['model.safetensors'];
  return await digestOfFiles(folder, ['config.json', ...weights, ...TOKENIZER_FILES]);
}

/** A file that is not there counts as empty. */
export async function digestOfFiles(folder: string, names: readonly string[]): Promise<string> {
  return digestOf(await Promise.all(names.map((name) => readFile(join(folder, name)).catch(() => ''))));
}

/** Digest of a checkpoint by the digests of its files. */
export function filesDigest(files: Readonly<Record<string, string>>): string {
  return digestOf([JSON.stringify(Object.entries(files).toSorted())]);
}
