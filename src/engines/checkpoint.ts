/**
 * Checkpoints, which are either complete or absent, and the digests by which a run recognizes changed models and files. A checkpoint is
 * written under a temporary name, synced, then renamed. It includes the tokenizer files, so it is itself a model folder. `checkpoint.json`
 * records its run, step and file digests, so a damaged or foreign checkpoint is never trained on. Old checkpoints are removed only after a
 * newer one is committed.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { constants, copyFile, mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { boundary, TrainyardError } from '../core/errors.ts';
import { digestOf } from '../core/json.ts';
import type { Trainer } from '../core/policy.ts';
import { sync } from '../store/files.ts';
import { modelTextFiles } from '../tokens/tokenizer-files.ts';
import { isFile, sourceDigest } from './embedded/model/model-source.ts';

export const TOKENIZER_FILES = ['tokenizer.json', 'tokenizer_config.json', 'chat_template.jinja'];
/** The last committed one, and its predecessor in case the last is damaged. */
const KEPT = 2;
const FINISHED = /^step-\d+$/;
const UNFINISHED = /^step-\d+\.unfinished$/;

/** Throws FILE_NOT_FOUND unless `dir` is a model folder or a PEFT folder. `needs`: `text` if the weights are at a server. */
export async function checkModelFolder(dir: string, needs: 'weights' | 'text' = 'weights'): Promise<void> {
  if (isFile(dir)) return;
  const names = await readdir(dir).catch(() => undefined);
  if (names?.includes('config.json') || names?.includes('adapter_config.json')) {
    if (needs === 'text' || !names.includes('tinker.json') || names.includes('model.safetensors')) return;
    throw new TrainyardError(
      'MODEL_INVALID',
      `the weights of ${dir} are not in it but at a Tinker server; tinker.json says which`,
      'use it with --engine tinker; of a trainyard tinker server, the weights are below its --state folder',
    );
  }
  const checkpoints = join(dir, 'checkpoints');
  const newest = (await savedSteps(checkpoints).catch(() => [])).at(-1);
  const wanted = needs === 'weights' ? 'model.safetensors' : 'tokenizer_config.json';
  const found = names === undefined ? `no model folder at ${dir}` : `${dir} holds no config.json, so it is no model folder`;
  throw new TrainyardError(
    'FILE_NOT_FOUND',
    found,
    newest === undefined
      ? `give a folder with config.json, ${wanted} and tokenizer.json`
      : `did you mean ${join(checkpoints, checkpointName(newest))}?`,
  );
}

export function checkpointName(step: number): string {
  return `step-${String(step).padStart(6, '0')}`;
}

const LABEL = 'checkpoint.json';
const labelSchema = z.strictObject({ run: z.string(), step: z.int(), files: z.record(z.string(), z.string()) });

interface CheckpointOptions {
  readonly dir: string;
  readonly step: number;
  readonly identity: string;
  readonly model: string;
}

/** Removes the unfinished folder on failure. */
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

/** Writes a model folder and returns the digest of each file. `optimizer: false`: to sample from. */
export async function savedFiles(
  trainer: Trainer,
  folder: string,
  model: string,
  options?: { readonly optimizer: boolean },
): Promise<Record<string, string>> {
  await mkdir(folder);
  await trainer.save(folder, options);
  await copyRest(model, folder);
  return await digestsOf(folder);
}

/** Verifies the checkpoint before it loads anything. */
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

/** Loads the run's first policy with a fresh optimizer, even if the model is a checkpoint of an earlier run. */
export function loadFirst(trainer: Trainer, model: string): Promise<void> {
  return trainer.load(model, { optimizer: false });
}

/** Throws CHECKPOINT_MISMATCH. */
export async function labelIn(folder: string): Promise<z.infer<typeof labelSchema>> {
  const text = await readFile(join(folder, LABEL), 'utf8').catch(() => '{}');
  const label = labelSchema.safeParse(await boundary('CHECKPOINT_MISMATCH', `${LABEL} is not JSON`, () => JSON.parse(text)));
  if (label.success) return label.data;
  throw new TrainyardError('CHECKPOINT_MISMATCH', `it has no readable ${LABEL}`);
}

/** Renames it instead of deleting it, so that it can be examined. */
export async function setAside(dir: string, step: number): Promise<void> {
  const folder = join(dir, checkpointName(step));
  await rm(`${folder}.unreadable`, { recursive: true, force: true });
  await rename(folder, `${folder}.unreadable`);
}

/** For each file except the label. */
export async function digestsOf(folder: string): Promise<Record<string, string>> {
  const digests: Record<string, string> = {};
  for (const name of (await readdir(folder)).toSorted()) {
    if (name !== LABEL) digests[name] = await sourceDigest({ files: [join(folder, name)] });
  }
  return digests;
}

/** Adds missing files of a model folder: a policy at a server saves no config.json, an adapter no tokenizer. */
async function copyRest(from: string, to: string): Promise<void> {
  if (isFile(from)) {
    for (const [name, text] of Object.entries(await modelTextFiles(from))) await writeFile(join(to, name), text);
    return;
  }
  for (const file of ['config.json', ...TOKENIZER_FILES]) {
    await copyFile(join(from, file), join(to, file), constants.COPYFILE_EXCL).catch((thrown: NodeJS.ErrnoException) => {
      if (thrown.code !== 'ENOENT' && thrown.code !== 'EEXIST') throw thrown;
    });
  }
}

/** Steps with a complete checkpoint, ascending. */
export async function savedSteps(dir: string): Promise<readonly number[]> {
  const names = (await readdir(dir)).filter((name) => FINISHED.test(name));
  return names.map((name) => Number(name.slice('step-'.length))).toSorted((a, b) => a - b);
}

/** Keeps the newest checkpoints and the best one. */
export async function pruneCheckpoints(trainer: Trainer, dir: string, best: number | undefined): Promise<void> {
  for (const step of (await savedSteps(dir)).slice(0, -KEPT)) {
    if (step !== best) await removeCheckpoint(trainer, join(dir, checkpointName(step)));
  }
}

/**
 * Removes unfinished folders and the checkpoint of an uncommitted step, which a killed run may leave. Throws RESUME_IMPOSSIBLE if
 * checkpoints are further ahead, because then the store was lost.
 */
export async function discardUncommitted(trainer: Trainer, dir: string, lastStep: number): Promise<void> {
  const newest = (await savedSteps(dir)).at(-1) ?? 0;
  if (newest > lastStep + 1) {
    const message = `there is a checkpoint of step ${newest}, but the store knows ${lastStep} steps: it was lost or replaced`;
    const hint = `put the store back, or begin a new run with --model ${join(dir, checkpointName(newest))}`;
    throw new TrainyardError('RESUME_IMPOSSIBLE', message, hint);
  }
  for (const name of await readdir(dir)) {
    const left = UNFINISHED.test(name) || name === checkpointName(lastStep + 1);
    if (left) await removeCheckpoint(trainer, join(dir, name));
  }
}

export async function removeCheckpoint(trainer: Trainer, folder: string): Promise<void> {
  await trainer.forget(folder);
  await rm(folder, { recursive: true, force: true });
}

/** Of a .gguf file, or of a model folder, whose unrelated files are ignored. */
export async function modelDigest(model: string): Promise<string> {
  if (isFile(model)) return await sourceDigest({ files: [model] });
  const names = await readdir(model).catch(() => []);
  // If the weights are at a server, tinker.json identifies them.
  const weights = names.filter(
    (name) => /^(tinker\.json|adapter_config\.json|.+\.safetensors)$/.test(name) && !PRIVATE.test(name),
  );
  const listed = new Set(['config.json', 'model.safetensors', ...weights.toSorted(), ...TOKENIZER_FILES]);
  return await digestOfFiles(model, [...listed]);
}
/** Not part of what a model computes. */
const PRIVATE = /^optimizer\.safetensors$/;

/** Missing files count as empty. */
async function digestOfFiles(folder: string, names: readonly string[]): Promise<string> {
  const digest = createHash('sha256');
  for (const name of names) {
    const path = join(folder, name);
    const size = await stat(path).then(
      (found) => found.size,
      () => 0,
    );
    // As `digestOf` does it, but without holding a large file.
    digest.update(`${size}:`);
    if (size > 0) for await (const chunk of createReadStream(path)) digest.update(chunk);
  }
  return digest.digest('hex');
}

export function filesDigest(files: Readonly<Record<string, string>>): string {
  return digestOf([JSON.stringify(Object.entries(files).toSorted())]);
}
