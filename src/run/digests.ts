/** Digests of what decides a run, for run.json: whether a model, the tasks or the code are still what they were. */
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { digestOf } from '../core/json.ts';
import type { Sample } from '../core/types.ts';
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

/** Of everything that a step is computed from: tokens, masks, log-probabilities, advantages, versions, temperatures and weights. */
export function samplesDigest(samples: readonly Sample[]): string {
  const bytes = (array: Int32Array | Float32Array | Uint8Array): Uint8Array =>
    new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  const pieces = samples.flatMap(({ tokens, mask, logprobs, advantages, versions, rolloutId, temperature, weight }) => [
    JSON.stringify([rolloutId, temperature, weight]),
    ...[tokens, mask, logprobs, advantages, versions].map(bytes),
  ]);
  return digestOf(pieces);
}

/** Of a checkpoint, by the digests of its files. */
export function filesDigest(files: Readonly<Record<string, string>>): string {
  return digestOf([JSON.stringify(Object.entries(files).toSorted())]);
}
