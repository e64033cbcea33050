/**
 * A model folder ⇄ flat buffers: config.json, model.safetensors and, where training goes on, optimizer.safetensors.
 *
 * The first two are those of Hugging Face's LlamaForCausalLM and load there. Nothing is written into the buffers before the
 * whole file was checked against the layout. Does not fsync and does not rename: that is the caller's commit.
 */
import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { boundary, TrainyardError } from '../core/errors.ts';
import type { Layout } from './config.ts';
import { configJson, type LlamaConfig, parseConfig } from './config.ts';
import { readSafetensors, type SafetensorsFile, type Tensor, writeSafetensors } from './safetensors.ts';
import { KERNEL_VARIANTS, type KernelVariant } from './wasm.ts';

const CONFIG = 'config.json';
const WEIGHTS = 'model.safetensors';
const OPTIMIZER = 'optimizer.safetensors';

export interface ConfigFile {
  readonly config: LlamaConfig;
  /** The file as found, for fields that are not the model's shape. */
  readonly source: Readonly<Record<string, unknown>>;
}

/** AdamW's state: both moments in the order of the layout, and the number of steps taken. */
interface OptimizerState {
  readonly firstMoments: Float32Array;
  readonly secondMoments: Float32Array;
  readonly step: number;
}

export async function readConfig(dir: string): Promise<ConfigFile> {
  const path = join(dir, CONFIG);
  const hint = 'name a folder with config.json and model.safetensors';
  const text = await boundary('MODEL_INVALID', `${path} cannot be read`, () => readFile(path, 'utf8'), hint);
  const source: unknown = await boundary('MODEL_INVALID', `${path} is not JSON`, () => JSON.parse(text));
  return { config: parseConfig(source), source: source as Record<string, unknown> };
}

interface SavedWeights {
  readonly weights: Float32Array;
  /** The kernels that computed them; undefined where the file does not say. */
  readonly variant: KernelVariant | undefined;
}

/** Reads the weights; throws CHECKPOINT_MISMATCH unless the file holds exactly this layout's tensors. */
export async function readWeights(dir: string, layout: Layout): Promise<SavedWeights> {
  const path = join(dir, WEIGHTS);
  const file = await readSafetensors(path);
  const weights = gather(file, layout, '', path);
  const known = new Set(layout.tensors.map(({ name }) => name));
  // Some writers store a tied head as a tensor of its own; it is the embedding again.
  const extra = [...file.tensors.keys()].filter((name) => !known.has(name) && name !== 'lm_head.weight');
  if (extra.length > 0) throw mismatch(path, `holds tensor ${extra[0]}, which this model does not have`);
  const bad = weights.findIndex((value) => !Number.isFinite(value));
  if (bad >= 0) {
    const { name } = layout.tensors.findLast(({ offset }) => offset <= bad)!;
    throw new TrainyardError('MODEL_INVALID', `${path}: tensor ${name} holds ${weights[bad]}, expected finite numbers`);
  }
  const variant = KERNEL_VARIANTS.find((name) => name === file.metadata['kernels']);
  return { weights, variant };
}

/** The optimizer's state, or undefined where the folder has none. */
export async function readOptimizer(dir: string, layout: Layout): Promise<OptimizerState | undefined> {
  const path = join(dir, OPTIMIZER);
  if (!existsSync(path)) return undefined;
  const file = await readSafetensors(path);
  const step = Number(file.metadata['step']);
  if (!Number.isSafeInteger(step) || step < 0) {
    throw mismatch(path, `has metadata step ${JSON.stringify(file.metadata['step'])}, expected a count`);
  }
  return {
    firstMoments: gather(file, layout, 'exp_avg.', path),
    secondMoments: gather(file, layout, 'exp_avg_sq.', path),
    step,
  };
}

interface SavableModel extends ConfigFile {
  readonly layout: Layout;
  readonly weights: Float32Array;
  readonly variant: KernelVariant;
}

export async function writeCheckpoint(dir: string, model: SavableModel, optimizer: OptimizerState): Promise<void> {
  const { layout, weights, variant } = model;
  await writeFile(join(dir, CONFIG), `${JSON.stringify(configJson(model.config, model.source), null, 2)}\n`);
  await writeSafetensors(join(dir, WEIGHTS), split(weights, layout, ''), { format: 'pt', kernels: variant });
  const moments = [
    ...split(optimizer.firstMoments, layout, 'exp_avg.'),
    ...split(optimizer.secondMoments, layout, 'exp_avg_sq.'),
  ];
  await writeSafetensors(join(dir, OPTIMIZER), moments, { step: String(optimizer.step) });
}

function gather(file: SafetensorsFile, layout: Layout, prefix: string, path: string): Float32Array {
  const flat = new Float32Array(layout.length);
  for (const { name, shape, offset } of layout.tensors) {
    const tensor = file.tensors.get(prefix + name);
    if (tensor === undefined) throw mismatch(path, `lacks tensor ${prefix}${name} of shape [${shape.join(', ')}]`);
    if (tensor.shape.join() !== shape.join()) {
      throw mismatch(path, `has ${prefix}${name} of shape [${tensor.shape.join(', ')}], expected [${shape.join(', ')}]`);
    }
    flat.set(tensor.data, offset);
  }
  return flat;
}

function split(flat: Float32Array, layout: Layout, prefix: string): Tensor[] {
  return layout.tensors.map(({ name, shape, offset, length }) => ({
    name: prefix + name,
    shape,
    data: flat.subarray(offset, offset + length),
  }));
}

function mismatch(path: string, found: string): TrainyardError {
  return new TrainyardError('CHECKPOINT_MISMATCH', `${path} ${found}`, {
    hint: 'load the checkpoint with the config.json it was saved with',
  });
}
