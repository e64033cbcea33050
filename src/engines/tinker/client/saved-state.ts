/** tinker.json in a checkpoint: at which server the weights are, and by which path. It says nothing of whether they are still there. */
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { TrainyardError } from '../../../core/errors.ts';
import { parseWeightsPath } from '../wire/tinker-messages.ts';

const SAVED_STATE = 'tinker.json';

/** `server` is a base URL, `path` is tinker://<model>/weights/<name> (or sampler_weights), `savedAt` is ISO 8601. */
const savedState = z.object({
  server: z.string(),
  baseModel: z.string(),
  loraRank: z.int(),
  path: z.string(),
  savedAt: z.string(),
});

export async function writeSavedState(dir: string, state: z.infer<typeof savedState>): Promise<void> {
  await writeFile(join(dir, SAVED_STATE), `${JSON.stringify(state, null, 2)}\n`);
}

/** Undefined for a plain model folder (the untrained base model). Throws MODEL_INVALID or, for a damaged file, CHECKPOINT_MISMATCH. */
export async function readSavedState(dir: string): Promise<z.infer<typeof savedState> | undefined> {
  const path = join(dir, SAVED_STATE);
  const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'ENOTDIR') return undefined;
    throw error;
  });
  if (text === undefined) {
    const names: readonly string[] = await readdir(dir).catch(() => []);
    if (names.includes('config.json') || names.includes('tokenizer.json')) return undefined;
    throw new TrainyardError(
      'MODEL_INVALID',
      `${dir} has neither ${SAVED_STATE} nor config.json nor tokenizer.json`,
      'give a checkpoint folder of a run, or a model folder',
    );
  }
  try {
    const state = savedState.parse(JSON.parse(text));
    parseWeightsPath(state.path);
    return state;
  } catch (cause) {
    throw new TrainyardError('CHECKPOINT_MISMATCH', `${path} is damaged or not of this format`, {
      hint: 'go on from another checkpoint',
      cause,
    });
  }
}
