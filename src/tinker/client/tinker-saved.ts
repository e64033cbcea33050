/**
 * What a checkpoint folder holds when the weights are at a Tinker server: `tinker.json`, which says where. A folder without it is an
 * ordinary model folder: the base model, untrained.
 */
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { TrainyardError } from '../../core/errors.ts';
import { parseWeightsPath } from '../wire/verbs.ts';

const FILE = 'tinker.json';

const savedState = z.object({
  /** Base URL. */
  server: z.string(),
  baseModel: z.string(),
  loraRank: z.int(),
  /** tinker://<model>/weights/<name> */
  path: z.string(),
  /** ISO 8601. */
  savedAt: z.string(),
});
export type SavedState = z.infer<typeof savedState>;

export async function writeSavedState(dir: string, state: SavedState): Promise<void> {
  await writeFile(join(dir, FILE), `${JSON.stringify(state, null, 2)}\n`);
}

/**
 * Undefined for an ordinary model folder. Throws MODEL_INVALID for a folder that is none, CHECKPOINT_MISMATCH for a file that cannot be
 * understood.
 */
export async function readSavedState(dir: string): Promise<SavedState | undefined> {
  const text = await readFile(join(dir, FILE), 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'ENOTDIR') return undefined;
    throw error;
  });
  if (text === undefined) {
    await checkModelFolder(dir);
    return undefined;
  }
  try {
    const state = savedState.parse(JSON.parse(text));
    parseWeightsPath(state.path);
    return state;
  } catch (cause) {
    throw new TrainyardError('CHECKPOINT_MISMATCH', `${join(dir, FILE)} is damaged or not of this format`, {
      hint: 'go on from another checkpoint',
      cause,
    });
  }
}

async function checkModelFolder(dir: string): Promise<void> {
  const names: readonly string[] = await readdir(dir).catch(() => []);
  if (names.includes('config.json') || names.includes('tokenizer.json')) return;
  throw new TrainyardError('MODEL_INVALID', `${dir} has neither ${FILE} nor config.json nor tokenizer.json`, {
    hint: 'give a checkpoint folder of a run, or a model folder',
  });
}

/** Where the server keeps it, among what can be removed. */
export function removalPath({ path }: SavedState): string {
  const { modelId, kind, name } = parseWeightsPath(path);
  return `training_runs/${modelId}/checkpoints/${kind}/${name}`;
}
