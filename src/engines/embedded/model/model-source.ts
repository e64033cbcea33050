/**
 * Where a model's weights come from: a folder of safetensors files or a GGUF file. Tensors have Hugging Face's names and orientation
 * ([outputs, inputs], row-major), whatever the file calls them, and are read a few rows at a time as float32: no model is ever held twice.
 */
import { createHash } from 'node:crypto';
import { createReadStream, existsSync, statSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { boundary, TrainyardError } from '../../../core/errors.ts';
import type { Flat } from './config.ts';
import { SafetensorsFile } from './safetensors.ts';

export interface ModelSource extends AsyncDisposable {
  /** For messages. */
  readonly path: string;
  /** The fields of config.json; a GGUF's metadata in the same names. */
  readonly fields: Readonly<Record<string, unknown>>;
  /** The shape of every tensor, by name. */
  readonly shapes: ReadonlyMap<string, readonly number[]>;
  /** Files that hold the weights. */
  readonly files: readonly string[];
  /** Rows `first` to `first + count` of a matrix, or entries of a vector. Throws MODEL_INVALID if the file does not hold them. */
  rows(name: string, first: number, count: number): Promise<Float32Array>;
}

const WEIGHTS = 'model.safetensors';
const INDEX = 'model.safetensors.index.json';

/** Opens a folder or a GGUF file, whatever its name: some programs keep theirs under a digest. */
export async function openSource(path: string): Promise<ModelSource> {
  if (!isFile(path)) return await openFolder(path);
  const { openGguf } = await import('./gguf.ts');
  return await openGguf(path);
}

export function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() === true;
}

async function openFolder(dir: string): Promise<ModelSource> {
  const fields = await readConfigFields(dir);
  const files: SafetensorsFile[] = [];
  const close = async () => {
    for (const file of files) await file[Symbol.asyncDispose]();
  };
  try {
    for (const path of await weightFiles(dir)) files.push(await SafetensorsFile.open(path));
  } catch (thrown) {
    await close();
    throw thrown;
  }
  const holder = new Map(files.flatMap((file) => [...file.entries.keys()].map((name) => [name, file] as const)));
  return {
    path: files.length === 1 ? files[0]!.path : join(dir, INDEX),
    fields,
    shapes: new Map([...holder].map(([name, file]) => [name, file.entries.get(name)!.shape])),
    files: files.map(({ path }) => path),
    rows: (name, first, count) => holder.get(name)!.rows(name, first, count),
    [Symbol.asyncDispose]: close,
  };
}

export async function readConfigFields(dir: string): Promise<Readonly<Record<string, unknown>>> {
  const path = join(dir, 'config.json');
  const hint = 'name a folder with config.json and model.safetensors, or a .gguf file';
  const text = await boundary('MODEL_INVALID', `${path} cannot be read`, () => readRegular(path), hint);
  return (await boundary('MODEL_INVALID', `${path} is not JSON`, () => JSON.parse(text))) as Record<string, unknown>;
}

/** Model folders are downloaded: reading a link to a device, or a pipe, would not end. */
export async function readRegular(path: string): Promise<string> {
  if (!(await stat(path)).isFile()) throw new TrainyardError('MODEL_INVALID', 'it is not a regular file');
  return await readFile(path, 'utf8');
}

const indexSchema = z.object({ weight_map: z.record(z.string(), z.string().regex(/^[^/\\]+$/)) });

async function weightFiles(dir: string): Promise<readonly string[]> {
  const path = join(dir, INDEX);
  if (existsSync(join(dir, WEIGHTS)) || !existsSync(path)) return [join(dir, WEIGHTS)];
  const hint = 'the file lists which model-….safetensors holds each tensor; download the model again';
  const index = await boundary(
    'MODEL_INVALID',
    `${path} is not an index`,
    async () => indexSchema.parse(JSON.parse(await readRegular(path))),
    hint,
  );
  return [...new Set(Object.values(index.weight_map))].toSorted().map((name) => join(dir, name));
}

/** A source of weights that are in memory already. */
export function memorySource(fields: ModelSource['fields'], flat: Flat, weights: Float32Array): ModelSource {
  const places = new Map(flat.tensors.map((tensor) => [tensor.name, tensor]));
  return {
    path: 'memory',
    fields,
    files: [],
    shapes: new Map(flat.tensors.map(({ name, shape }) => [name, shape])),
    rows: async (name, first, count) => {
      const { shape, offset, length } = places.get(name)!;
      const width = length / shape[0]!;
      return weights.subarray(offset + first * width, offset + (first + count) * width);
    },
    [Symbol.asyncDispose]: async () => {},
  };
}

/** Recognises the base of an adapter. */
export async function sourceDigest({ files }: Pick<ModelSource, 'files'>): Promise<string> {
  const digest = createHash('sha256');
  for (const path of files) for await (const chunk of createReadStream(path, { highWaterMark: 2 ** 20 })) digest.update(chunk);
  return digest.digest('hex');
}

/** Names that some writers add: a copy of a tied embedding, and tables that every program computes for itself. */
const ADDED = /^lm_head\.weight$|\.rotary_emb\.inv_freq$/;

/** Throws CHECKPOINT_MISMATCH unless the source holds exactly these tensors. */
export function checkTensors({ path, shapes }: Pick<ModelSource, 'path' | 'shapes'>, { tensors }: Flat, prefix = ''): void {
  const known = new Set(tensors.map(({ name }) => prefix + name));
  for (const { name, shape } of tensors) {
    const found = shapes.get(prefix + name);
    if (found === undefined) throw mismatch(path, `lacks tensor ${prefix}${name} of shape [${shape.join(', ')}]`);
    if (found.join() !== shape.join()) {
      throw mismatch(path, `has ${prefix}${name} of shape [${found.join(', ')}], expected [${shape.join(', ')}]`);
    }
  }
  if (prefix !== '') return;
  const extra = [...shapes.keys()].find((name) => !known.has(name) && !ADDED.test(name));
  if (extra !== undefined) throw mismatch(path, `holds tensor ${extra}, which this model does not have`);
}

export function mismatch(path: string, found: string): TrainyardError {
  return new TrainyardError(
    'CHECKPOINT_MISMATCH',
    `${path} ${found}`,
    'load the checkpoint with the config.json it was saved with',
  );
}

/** Throws MODEL_INVALID if one of the tensor's values is not finite. */
export function checkFinite(path: string, name: string, values: Float32Array): void {
  let flaw = 0;
  for (let i = 0; i < values.length; i++) flaw += values[i]! - values[i]!;
  if (flaw === 0) return;
  const bad = values.find((value) => !Number.isFinite(value));
  throw new TrainyardError(
    'MODEL_INVALID',
    `${path}: tensor ${name} holds ${bad}, expected finite numbers`,
    'the file is damaged: use another copy',
  );
}
