/**
 * Takes trained weights out of Trainyard, for other people's programs: an adapter as a PEFT folder, the base with the adapter merged as a
 * Hugging Face folder, or the adapter as a GGUF file for llama.cpp and Ollama. Everything is checked before the first byte is written. A
 * folder or file has its name only once it is complete, and never replaces one that is there.
 */
import { existsSync } from 'node:fs';
import { copyFile, mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { z } from 'zod';
import { boundary, TrainyardError } from '../core/errors.ts';
import { type LlamaConfig, planLayout } from '../nn/config.ts';
import { type ConfigFile, readConfig } from '../nn/model-files.ts';
import { readSafetensors, type Tensor } from '../nn/safetensors.ts';
import { sync, TOKENIZER_FILES } from './checkpoint.ts';
import { type ChosenCheckpoint, chooseCheckpoint, makeFolder } from './directory.ts';

const ADAPTER_CONFIG = 'adapter_config.json';
const ADAPTER_WEIGHTS = 'adapter_model.safetensors';

export interface ExportRequest {
  /** A run directory, a checkpoint or a PEFT folder. */
  readonly from: string;
  /** Folder to write the adapter to. */
  readonly adapter?: string;
  /** File to write the adapter to, for llama.cpp. */
  readonly ggufAdapter?: string;
  /** The base model; otherwise the one that the adapter names. */
  readonly base?: string;
}

export interface Written {
  readonly kind: 'adapter' | 'gguf-adapter';
  readonly path: string;
  readonly tensors: number;
  readonly bytes: number;
}

export interface Exported extends ChosenCheckpoint {
  readonly written: readonly Written[];
}

export async function exportCheckpoint(request: ExportRequest): Promise<Exported> {
  const { adapter: adapterTarget, ggufAdapter } = request;
  const targets = [adapterTarget, ggufAdapter].filter((path) => path !== undefined);
  if (targets.length === 0) {
    const hint = 'add --adapter <dir> or --gguf-adapter <file>';
    throw new TrainyardError('USAGE', 'expected what to write, found none of the flags that say it', { hint });
  }
  for (const path of targets) await checkFree(path);
  const chosen = await chooseCheckpoint(request.from);
  const adapter = await readAdapter(chosen.folder);
  const model = await configFor(adapter, request.base);
  if (model !== undefined) checkShapes(adapter, shapesOf(model.config), model.path);
  // Prepared first, so that nothing is written if any of them is impossible.
  const writes = [
    ...(adapterTarget === undefined ? [] : [adapterWrite(adapter, adapterTarget, request.base)]),
    ...(ggufAdapter === undefined ? [] : [ggufAdapterWrite(adapter, model, ggufAdapter)]),
  ];
  const written: Written[] = [];
  for (const { write, ...one } of writes) written.push({ ...one, bytes: await completed(one.path, write) });
  return { ...chosen, written };
}

interface Write extends Omit<Written, 'bytes'> {
  /** Writes to a path that is free. */
  write(path: string): Promise<void>;
}

// The adapter of a PEFT folder.

/** One module's matrices: A is [rank, inputs], B is [outputs, rank]. */
interface Pair {
  readonly layer: number;
  /** Such as q_proj. */
  readonly part: string;
  readonly a: Tensor;
  readonly b: Tensor;
}

interface Adapter {
  readonly folder: string;
  readonly config: z.infer<typeof adapterConfig>;
  /** By the name of the module in the base, such as model.layers.0.self_attn.q_proj. */
  readonly pairs: ReadonlyMap<string, Pair>;
}

const adapterConfig = z.looseObject({
  peft_type: z.literal('LORA'),
  r: z.int().positive(),
  lora_alpha: z.number().positive(),
  bias: z.literal('none').nullish(),
  base_model_name_or_path: z.string().nullish(),
});

/** Settings of PEFT that change what is computed. */
const UNSUPPORTED = [
  ...['use_rslora', 'use_dora', 'lora_bias', 'fan_in_fan_out', 'rank_pattern', 'alpha_pattern'],
  ...['modules_to_save', 'layer_replication', 'trainable_token_indices', 'alora_invocation_tokens', 'target_parameters'],
];

const TENSOR =
  /^base_model\.model\.(model\.layers\.(\d+)\.(?:self_attn\.(?=[qkvo]_)|mlp\.(?=[gud]))((?:[qkvo]|gate|up|down)_proj))\.lora_[AB]\.weight$/;

async function readAdapter(folder: string): Promise<Adapter> {
  const path = join(folder, ADAPTER_CONFIG);
  if (!existsSync(path)) throw noAdapter(folder);
  const json: unknown = await boundary('MODEL_INVALID', `${path} cannot be read`, async () =>
    JSON.parse(await readFile(path, 'utf8')),
  );
  const config = adapterConfig.safeParse(json);
  if (!config.success) throw unusable(path, z.prettifyError(config.error).replaceAll('\n', ' '));
  const set = UNSUPPORTED.filter((name) => !isUnset(config.data[name]));
  if (set.length > 0) throw unusable(path, `it sets ${set.join(', ')}`);
  const { tensors } = await readSafetensors(join(folder, ADAPTER_WEIGHTS));
  return { folder, config: config.data, pairs: pairsOf(tensors, config.data.r, join(folder, ADAPTER_WEIGHTS)) };
}

function isUnset(value: unknown): boolean {
  return !value || (typeof value === 'object' && Object.keys(value).length === 0);
}

function pairsOf(tensors: ReadonlyMap<string, Tensor>, rank: number, path: string): ReadonlyMap<string, Pair> {
  const pairs = new Map<string, Pair>();
  for (const name of tensors.keys()) {
    const [, module, layer, part] = TENSOR.exec(name) ?? [];
    if (module === undefined) throw unusable(path, `it holds ${name}, which is of none of the seven linear modules of a layer`);
    const [a, b] = ['A', 'B'].map((letter) => tensors.get(`base_model.model.${module}.lora_${letter}.weight`));
    if (a === undefined || b === undefined) throw unusable(path, `${module} has only one of lora_A and lora_B`);
    if (a.shape.length !== 2 || b.shape.length !== 2 || a.shape[0] !== rank || b.shape[1] !== rank) {
      const found = `A [${a.shape.join(', ')}] and B [${b.shape.join(', ')}]`;
      throw unusable(path, `${module} has ${found}, expected [${rank}, inputs] and [outputs, ${rank}] for r ${rank}`);
    }
    if (![a, b].every(({ data }) => data.every(Number.isFinite))) throw unusable(path, `${module} holds NaN or infinity`);
    pairs.set(module, { layer: Number(layer), part: part!, a, b });
  }
  if (pairs.size === 0) throw unusable(path, 'it holds no tensors');
  return pairs;
}

function noAdapter(folder: string): TrainyardError {
  const holds = (name: string): boolean => existsSync(join(folder, name));
  if (holds('tinker.json')) {
    return new TrainyardError('MODEL_INVALID', `the weights of ${folder} are not in it but at a Tinker server`, {
      hint: 'download them from that server; tinker.json has their name there',
    });
  }
  return new TrainyardError('MODEL_INVALID', `${folder} holds no ${ADAPTER_CONFIG}, so there is no adapter to export`, {
    hint: holds('config.json')
      ? 'it is a whole model, which other programs load as it is'
      : 'give a run directory, one of its checkpoints, or a PEFT folder',
  });
}

function unusable(path: string, found: string): TrainyardError {
  return new TrainyardError('MODEL_INVALID', `${path}: ${found}`, {
    hint: 'export writes plain LoRA adapters of linear modules; PEFT itself may be able to merge this one',
  });
}

interface BaseConfig extends ConfigFile {
  readonly path: string;
}

/** The config.json of the base. Checkpoints hold a copy of it, PEFT's own folders do not. Undefined if it is nowhere. */
async function configFor({ folder, config }: Adapter, base: string | undefined): Promise<BaseConfig | undefined> {
  const holds = (dir: string | null | undefined): boolean => !!dir && existsSync(join(dir, 'config.json'));
  const dir = [base, folder, config.base_model_name_or_path].find(holds);
  return dir ? { ...(await readConfig(dir)), path: join(dir, 'config.json') } : undefined;
}

/** The matrices of a model, by name: [outputs, inputs]. */
function shapesOf(config: LlamaConfig): ReadonlyMap<string, readonly number[]> {
  return new Map(planLayout(config).tensors.map(({ name, shape }) => [name, shape]));
}

function checkShapes({ folder, pairs }: Adapter, shapes: ReadonlyMap<string, readonly number[]>, base: string): void {
  for (const [module, { a, b }] of pairs) {
    const expected = shapes.get(`${module}.weight`);
    const found = [b.shape[0], a.shape[1]];
    if (expected?.join() === found.join()) continue;
    const has = expected === undefined ? 'has no such module' : `has [${expected.join(', ')}]`;
    throw new TrainyardError('CHECKPOINT_MISMATCH', `${folder} adapts ${module} of [${found.join(', ')}], but ${base} ${has}`, {
      hint: 'give the model that the adapter was trained on: --base <model>',
    });
  }
}

/** PEFT adapts only some modules by default, so all of them are named. */
function adapterWrite({ folder, config, pairs }: Adapter, path: string, base: string | undefined): Write {
  const modules = new Set([...pairs.values()].map(({ part }) => part));
  const kept = { ...config, target_modules: [...modules], inference_mode: true, lora_dropout: 0 };
  const named = base === undefined ? kept : { ...kept, base_model_name_or_path: base };
  const write = async (to: string): Promise<void> => {
    await mkdir(to);
    await writeFile(join(to, ADAPTER_CONFIG), `${JSON.stringify(named, null, 2)}\n`);
    for (const file of [ADAPTER_WEIGHTS, 'config.json', ...TOKENIZER_FILES])
      await copyIfThere(join(folder, file), join(to, file));
  };
  return { kind: 'adapter', path, tensors: 2 * pairs.size, write };
}

// The adapter as a GGUF file, version 3, little-endian: names, order of dimensions and rows are llama.cpp's.

const GGUF_NAMES: Readonly<Record<string, string>> = {
  ...{ q_proj: 'attn_q', k_proj: 'attn_k', v_proj: 'attn_v', o_proj: 'attn_output' },
  ...{ gate_proj: 'ffn_gate', up_proj: 'ffn_up', down_proj: 'ffn_down' },
};
const GGUF_STRING = 8;
const GGUF_FLOAT32 = 6;
/** Tensor type. */
const GGML_F32 = 0;
/** Bytes; the default of the format. */
const GGUF_ALIGNMENT = 32;

function ggufAdapterWrite(adapter: Adapter, base: BaseConfig | undefined, path: string): Write {
  if (base === undefined) {
    const found = `the base model of ${adapter.folder}, ${JSON.stringify(adapter.config.base_model_name_or_path)}, is not here`;
    throw new TrainyardError('FILE_NOT_FOUND', found, { hint: 'give its folder: --base <dir>' });
  }
  const { config, source } = base;
  const architecture = String(source['model_type']);
  const tensors = [...adapter.pairs.values()].flatMap(({ layer, part, a, b }) => {
    const heads = architecture === 'llama' ? { q_proj: config.heads, k_proj: config.kvHeads }[part] : undefined;
    const name = `blk.${layer}.${GGUF_NAMES[part]}.weight`;
    return [
      { ...a, name: `${name}.lora_a` },
      { ...b, name: `${name}.lora_b`, data: heads === undefined ? b.data : interleaveHalves(b, heads) },
    ];
  });
  const fields = [
    ggufText('general.type', 'adapter'),
    ggufText('general.architecture', architecture),
    ggufText('general.name', basename(resolve(adapter.folder))),
    ggufText('adapter.type', 'lora'),
    Buffer.concat([ggufString('adapter.lora.alpha'), u32(GGUF_FLOAT32), f32(adapter.config.lora_alpha)]),
  ];
  return { kind: 'gguf-adapter', path, tensors: tensors.length, write: (to) => writeFile(to, ggufFile(fields, tensors)) };
}

/**
 * llama.cpp rotates neighbouring entries of a Llama's query and key heads, Hugging Face entries half a head apart: row i of a head's first
 * half becomes row 2i, row i of its second half row 2i + 1.
 */
function interleaveHalves({ shape, data }: Tensor, heads: number): Float32Array {
  const [rows, width] = shape as [number, number];
  const half = rows / heads / 2;
  const moved = new Float32Array(data.length);
  for (let row = 0; row < rows; row++) {
    const inHead = row % (2 * half);
    const to = row - inHead + 2 * (inHead % half) + Math.floor(inHead / half);
    moved.set(data.subarray(row * width, (row + 1) * width), to * width);
  }
  return moved;
}

function ggufFile(fields: readonly Buffer[], tensors: readonly Tensor[]): Buffer {
  let offset = 0;
  const described = tensors.map(({ name, shape, data }) => {
    const dimensions = shape.toReversed().map((size) => u64(size));
    const entry = Buffer.concat([ggufString(name), u32(shape.length), ...dimensions, u32(GGML_F32), u64(offset)]);
    offset += aligned(data.byteLength);
    return entry;
  });
  const head = Buffer.concat([Buffer.from('GGUF'), u32(3), u64(tensors.length), u64(fields.length), ...fields, ...described]);
  const sections = tensors.map(({ data }) => padded(Buffer.from(data.buffer, data.byteOffset, data.byteLength)));
  return Buffer.concat([padded(head), ...sections]);
}

function aligned(bytes: number): number {
  return Math.ceil(bytes / GGUF_ALIGNMENT) * GGUF_ALIGNMENT;
}

function padded(bytes: Buffer): Buffer {
  return Buffer.concat([bytes], aligned(bytes.length));
}

function ggufText(key: string, value: string): Buffer {
  return Buffer.concat([ggufString(key), u32(GGUF_STRING), ggufString(value)]);
}

function ggufString(text: string): Buffer {
  return Buffer.concat([u64(Buffer.byteLength(text)), Buffer.from(text)]);
}

function u32(value: number): Buffer {
  return Buffer.from(Uint32Array.of(value).buffer);
}

function u64(value: number): Buffer {
  return Buffer.from(BigUint64Array.of(BigInt(value)).buffer);
}

function f32(value: number): Buffer {
  return Buffer.from(Float32Array.of(value).buffer);
}

// Files that are complete or absent.

async function checkFree(path: string): Promise<void> {
  const found = await readdir(path).catch((thrown: NodeJS.ErrnoException) => (thrown.code === 'ENOENT' ? [] : [basename(path)]));
  if (found.length === 0) return;
  throw new TrainyardError('USAGE', `${path} already exists`, { hint: 'give another path, or remove it' });
}

/** Gives the number of bytes written. */
async function completed(path: string, write: (unfinished: string) => Promise<void>): Promise<number> {
  const unfinished = `${resolve(path)}.unfinished`;
  try {
    return await boundary('STORE_FAILED', `cannot write ${path}`, async () => {
      await makeFolder(dirname(unfinished));
      await rm(unfinished, { recursive: true, force: true });
      await write(unfinished);
      const bytes = await synced(unfinished);
      await rename(unfinished, resolve(path));
      await sync(dirname(unfinished));
      return bytes;
    });
  } catch (thrown) {
    await rm(unfinished, { recursive: true, force: true });
    throw thrown;
  }
}

async function synced(path: string): Promise<number> {
  await sync(path);
  const found = await stat(path);
  if (!found.isDirectory()) return found.size;
  const sizes = await Promise.all((await readdir(path)).map((name) => synced(join(path, name))));
  return sizes.reduce((sum, size) => sum + size, 0);
}

async function copyIfThere(from: string, to: string): Promise<void> {
  // A downloaded folder may hold a link to a device, which has no end.
  if ((await stat(from).catch(() => undefined))?.isFile()) await copyFile(from, to);
}
