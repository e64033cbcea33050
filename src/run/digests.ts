/** Digests of what decides a run, for run.json: whether a model, the tasks or the code are still what they were. */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { TOKENIZER_FILES } from './checkpoint.ts';

/** Of what is in a model folder, and nothing else that may lie beside it. */
export async function modelDigest(folder: string): Promise<string> {
  return await digestOfFiles(folder, modelFiles(folder));
}

/** Of a checkpoint whose weights are on a server, also what says where they are. */
function modelFiles(folder: string): readonly string[] {
  const weights = existsSync(join(folder, 'tinker.json')) ? ['model.safetensors', 'tinker.json'] : ['model.safetensors'];
  return ['config.json', ...weights, ...TOKENIZER_FILES];
}

/** A file that is not there counts as empty. */
export async function digestOfFiles(folder: string, names: readonly string[]): Promise<string> {
  return digestOf(await Promise.all(names.map((name) => readFile(join(folder, name)).catch(() => ''))));
}

export function digestOf(pieces: readonly (string | Uint8Array)[]): string {
  const hash = createHash('sha256');
  for (const piece of pieces) hash.update(`${piece.length}:`).update(piece);
  return hash.digest('hex');
}
