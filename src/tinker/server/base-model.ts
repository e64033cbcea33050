/**
 * The one base model of a server: a model folder, known by its name or its path. Every model in training begins as a copy of it.
 */
import { createHash } from 'node:crypto';
import { readFile, realpath } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { TrainyardError } from '../../core/errors.ts';
import { EmbeddedModel } from '../../nn/policy.ts';
import { loadTokenizer, type Tokenizer } from '../../tokens/tokenizer.ts';
import { ApiError } from './api-error.ts';
import type { Weights } from './sampler-pool.ts';
import type { Shape } from './training-data.ts';

export interface BaseModel {
  readonly name: string;
  /** Absolute. */
  readonly folder: string;
  readonly shape: Shape;
  /** What base weights are known as among the samplers. */
  readonly weights: Weights;
  /** Where the folder has one. */
  readonly tokenizer: Tokenizer | undefined;
  /** SHA-256 of tokenizer.json, by which a client knows that it has the same one. */
  readonly tokenizerDigest: string | undefined;
  open(): Promise<EmbeddedModel>;
}

export async function openBaseModel(dir: string, threads: number | undefined): Promise<BaseModel> {
  const folder = resolve(dir);
  const name = basename(await realpath(folder)).replaceAll(/[^\w.-]/g, '_');
  const open = (): Promise<EmbeddedModel> => EmbeddedModel.open({ dir: folder, threads });
  await using model = await open();
  return {
    name,
    folder,
    shape: { vocabSize: model.vocabSize, contextLength: model.contextLength },
    weights: { id: 'base', folder, check: async () => {} },
    tokenizer: await tokenizerOf(folder),
    tokenizerDigest: await readFile(join(folder, 'tokenizer.json')).then(
      (file) => createHash('sha256').update(file).digest('hex'),
      () => undefined,
    ),
    open,
  };
}

/** Undefined where there are no such files, or none that can be used: ids are spoken here, texts only where somebody stops at one. */
async function tokenizerOf(folder: string): Promise<Tokenizer | undefined> {
  try {
    return await loadTokenizer(folder);
  } catch (thrown) {
    if (thrown instanceof TrainyardError && thrown.code === 'TOKENIZER_INVALID') return undefined;
    throw thrown;
  }
}

/** Throws unless this is the base model. */
export function checkBaseModel(base: BaseModel, asked: string): void {
  if (asked === base.name || asked === base.folder) return;
  throw new ApiError(
    'invalid_request',
    `base_model is ${JSON.stringify(asked.slice(0, 200))}, expected ${JSON.stringify(base.name)}`,
    {
      hint: 'this server has one base model; another one needs another server, started with --model',
      param: 'base_model',
    },
  );
}
