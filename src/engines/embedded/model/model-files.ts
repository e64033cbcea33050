/**
 * A model folder ⇄ flat buffers. A checkpoint of all parameters is config.json, model.safetensors and, for resuming training,
 * optimizer.safetensors; one of adapters is a PEFT folder: adapter_config.json, adapter_model.safetensors and the optimizer's state. Buffers
 * are written only after the whole file was checked. Does not fsync or rename: callers must commit.
 */
import { existsSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { z } from 'zod';
import { boundary, TrainyardError } from '../../../core/errors.ts';
import { isObject } from '../../../core/json.ts';
import { LORA_TARGETS, type LoraLayout, type LoraSettings } from '../lora.ts';
import type { KernelVariant } from '../wasm.ts';
import { configJson, type Flat, type Layout, type LlamaConfig, parseConfig } from './config.ts';
import {
  checkFinite,
  checkTensors,
  type ModelSource,
  mismatch,
  openSource,
  readConfigFields,
  readRegular,
} from './model-source.ts';
import { readSafetensors, type SafetensorsContent, type Tensor, writeSafetensors } from './safetensors.ts';

const OPTIMIZER = 'optimizer.safetensors';
const ADAPTER_CONFIG = 'adapter_config.json';
const ADAPTER = 'adapter_model.safetensors';

interface ConfigFile {
  readonly config: LlamaConfig;
  /** The file as found, for fields that do not describe the model's shape. */
  readonly source: Readonly<Record<string, unknown>>;
}

/** AdamW's state: both moments in layout order, and the number of steps taken. */
interface OptimizerState {
  readonly firstMoments: Float32Array;
  readonly secondMoments: Float32Array;
  readonly step: number;
}

/** All parameters. Throws CHECKPOINT_MISMATCH unless the source holds exactly this layout's tensors. */
export async function readWeights(source: ModelSource, layout: Layout): Promise<Float32Array> {
  checkTensors(source, layout);
  // Only now: config.json may claim any size.
  const flat = new Float32Array(layout.length);
  for (const { name, shape, offset } of layout.tensors) {
    const values = await source.rows(name, 0, shape[0]!);
    checkFinite(source.path, name, values);
    flat.set(values, offset);
  }
  return flat;
}

/** Undefined if the folder has no optimizer state. */
export async function readOptimizer(dir: string, flat: Flat): Promise<OptimizerState | undefined> {
  const path = join(dir, OPTIMIZER);
  if (!existsSync(path)) return undefined;
  const file = await readSafetensors(path);
  const step = Number(file.metadata['step']);
  if (!Number.isSafeInteger(step) || step < 0) {
    throw mismatch(path, `has metadata step ${JSON.stringify(file.metadata['step'])}, expected a count`);
  }
  return { firstMoments: gather(file, flat, 'exp_avg.', path), secondMoments: gather(file, flat, 'exp_avg_sq.', path), step };
}

interface SavableModel extends ConfigFile {
  readonly layout: Layout;
  readonly weights: Float32Array;
  readonly variant: KernelVariant;
}

export async function writeCheckpoint(dir: string, model: SavableModel, optimizer: OptimizerState | undefined): Promise<void> {
  const { layout, weights, variant } = model;
  await writeFile(join(dir, 'config.json'), `${JSON.stringify(configJson(model.config, model.source), null, 2)}\n`);
  await writeSafetensors(join(dir, 'model.safetensors'), split(weights, layout, ''), { format: 'pt', kernels: variant });
  await writeOptimizer(dir, layout, optimizer);
}

async function writeOptimizer(dir: string, flat: Flat, optimizer: OptimizerState | undefined): Promise<void> {
  if (optimizer === undefined) return;
  const moments = [...split(optimizer.firstMoments, flat, 'exp_avg.'), ...split(optimizer.secondMoments, flat, 'exp_avg_sq.')];
  await writeSafetensors(join(dir, OPTIMIZER), moments, { step: String(optimizer.step) });
}

/** The base of an adapter, and the digest of its weights. */
export interface AdapterBase {
  readonly path: string;
  readonly digest: string;
  readonly source: ConfigFile['source'];
}

interface SavableAdapter {
  readonly settings: LoraSettings;
  readonly base: AdapterBase;
  readonly layout: LoraLayout;
  readonly weights: Float32Array;
  readonly variant: KernelVariant;
}

export async function writeAdapter(dir: string, adapter: SavableAdapter, optimizer: OptimizerState | undefined): Promise<void> {
  const { settings, base, layout, weights, variant } = adapter;
  const config = {
    peft_type: 'LORA',
    task_type: 'CAUSAL_LM',
    base_model_name_or_path: base.path,
    r: settings.rank,
    lora_alpha: settings.alpha,
    target_modules: settings.targets,
    lora_dropout: 0,
    bias: 'none',
    fan_in_fan_out: false,
    inference_mode: true,
  };
  await writeFile(join(dir, ADAPTER_CONFIG), `${JSON.stringify(config, null, 2)}\n`);
  await writeFile(join(dir, 'config.json'), `${JSON.stringify(base.source, null, 2)}\n`);
  const metadata = { format: 'pt', kernels: variant, base: base.digest };
  await writeSafetensors(join(dir, ADAPTER), split(weights, layout, ''), metadata);
  await writeOptimizer(dir, layout, optimizer);
}

/** Settings that change what an adapter computes, and that we do not compute. */
const adapterSchema = z.object({
  peft_type: z.literal('LORA'),
  base_model_name_or_path: z.string(),
  r: z.int().min(1),
  lora_alpha: z.number().positive(),
  target_modules: z.union([z.array(z.enum(LORA_TARGETS)).min(1), z.literal('all-linear')]),
  bias: z.literal('none').optional(),
  use_dora: z.literal(false).optional(),
  use_rslora: z.literal(false).optional(),
  use_qalora: z.literal(false).optional(),
  use_bdlora: z.null().optional(),
  lora_bias: z.literal(false).optional(),
  layer_replication: z.null().optional(),
  trainable_token_indices: z.null().optional(),
  fan_in_fan_out: z.literal(false).optional(),
  modules_to_save: z.null().optional(),
  rank_pattern: z.strictObject({}).nullish(),
  alpha_pattern: z.strictObject({}).nullish(),
  layers_to_transform: z.null().optional(),
  alora_invocation_tokens: z.null().optional(),
});

/** The path of a base that is not beside its adapter, by what adapter_config.json calls it: a path, or a name at the hub. */
export type FindBase = (name: string) => Promise<string>;

/** `base` is the path of the base model. Undefined if the folder holds no adapter. Without `findBase`, a base that is not beside it keeps its name. */
export async function readAdapterConfig(dir: string, findBase?: FindBase) {
  const path = join(dir, ADAPTER_CONFIG);
  if (!existsSync(path)) return undefined;
  const json: unknown = await boundary('MODEL_INVALID', `${path} is not JSON`, async () => JSON.parse(await readRegular(path)));
  const parsed = adapterSchema.safeParse(json);
  if (!parsed.success) {
    const fields = isObject(json) ? json : {};
    const shown = (name: unknown) => (JSON.stringify(fields[String(name)]) ?? 'missing').slice(0, 100);
    const found = parsed.error.issues.map(({ path, message }) => `${path.join('.')} is ${shown(path[0])}: ${message}`).join('; ');
    throw new TrainyardError(
      'MODEL_INVALID',
      `${path}: ${found}`,
      `the embedded engine computes plain LoRA adapters of ${LORA_TARGETS.join(', ')}`,
    );
  }
  const { r: rank, lora_alpha: alpha, target_modules: named, base_model_name_or_path: base } = parsed.data;
  const targets = named === 'all-linear' ? LORA_TARGETS : LORA_TARGETS.filter((name) => named.includes(name));
  const beside = resolve(dir, base);
  const settings: LoraSettings = { rank, alpha, targets };
  return { settings, base: existsSync(beside) ? beside : ((await findBase?.(base)) ?? base) };
}

/** Throws CHECKPOINT_MISMATCH unless the folder holds exactly this layout's adapters, of this base. */
async function readAdapter(dir: string, layout: LoraLayout, base: string): Promise<Float32Array> {
  const path = join(dir, ADAPTER);
  const file = await readSafetensors(path);
  const shapes = new Map([...file.tensors].map(([name, { shape }]) => [name, shape]));
  checkTensors({ path, shapes }, layout);
  const of = file.metadata['base'];
  if (of !== undefined && base !== '' && of !== base) {
    throw new TrainyardError(
      'CHECKPOINT_MISMATCH',
      `${path} was trained on another base model than the one opened`,
      'put the base model back as it was, or correct base_model_name_or_path in adapter_config.json',
    );
  }
  const weights = gather(file, layout, '', path);
  for (const { name, offset, length } of layout.tensors) checkFinite(path, name, weights.subarray(offset, offset + length));
  return weights;
}

interface Adapted {
  readonly layout: LoraLayout;
  readonly settings: LoraSettings;
  readonly base: AdapterBase;
  readonly fresh: () => Float32Array;
}

/** What `save` wrote into a folder: adapters, or else all parameters. Of the base of adapters, fresh ones. */
export async function readTrained(dir: string, whole: Layout | undefined, adapted: Adapted | undefined): Promise<Float32Array> {
  const adapter = await readAdapterConfig(dir);
  if (adapted !== undefined && adapter !== undefined) {
    checkSameLora(dir, adapter.settings, adapted.settings);
    return await readAdapter(dir, adapted.layout, adapted.base.digest);
  }
  if (adapted !== undefined && resolve(dir) === adapted.base.path) return adapted.fresh();
  if (adapted !== undefined || adapter !== undefined || whole === undefined) {
    const trained =
      adapted !== undefined ? `adapters of ${adapted.base.path}` : whole === undefined ? 'nothing' : 'all parameters';
    throw new TrainyardError(
      'CHECKPOINT_MISMATCH',
      `${dir} cannot be loaded into a model that trains ${trained}`,
      'open it as a model of its own',
    );
  }
  await using source = await openSource(dir);
  return await readWeights(source, whole);
}

/** A saved adapter has the shape it was trained with. */
export function checkSameLora(dir: string, saved: LoraSettings | undefined, wanted: LoraSettings | undefined): void {
  if (saved === undefined || wanted === undefined) return;
  const shape = ({ rank, alpha, targets }: LoraSettings) => `rank ${rank}, alpha ${alpha}, ${targets.toSorted().join(' ')}`;
  if (shape(saved) === shape(wanted)) return;
  throw new TrainyardError(
    'CHECKPOINT_MISMATCH',
    `the adapter in ${dir} has ${shape(saved)}, expected ${shape(wanted)}`,
    'leave --lora-rank and --lora-alpha out to go on with the adapter as it is',
  );
}

function gather(file: SafetensorsContent, flat: Flat, prefix: string, path: string): Float32Array {
  checkTensors({ path, shapes: new Map([...file.tensors].map(([name, { shape }]) => [name, shape])) }, flat, prefix);
  const values = new Float32Array(flat.length);
  for (const { name, offset } of flat.tensors) values.set(file.tensors.get(prefix + name)!.data, offset);
  return values;
}

function split(values: Float32Array, flat: Flat, prefix: string): Tensor[] {
  return flat.tensors.map(({ name, shape, offset, length }) => ({
    name: prefix + name,
    shape,
    data: values.subarray(offset, offset + length),
  }));
}

export async function readConfig(dir: string): Promise<ConfigFile> {
  const source = await readConfigFields(dir);
  return { config: parseConfig(source), source };
}
