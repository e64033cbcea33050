/**
 * Takes trained weights out of Trainyard, for other people's programs: an adapter as a PEFT folder, the base with the adapter merged as a
 * Hugging Face folder, or the adapter as a GGUF file for llama.cpp and Ollama. Everything is checked before the first byte is written. A
 * folder or file has its name only once it is complete, and never replaces one that is there.
 */
import { existsSync } from 'node:fs';
import { copyFile, mkdir, stat, writeFile } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { checkModelFolder, TOKENIZER_FILES } from '../engines/checkpoint.ts';
import type { LoraSettings } from '../engines/embedded/lora.ts';
import { type LlamaConfig, parseConfig, planLayout } from '../engines/embedded/model/config.ts';
import { readAdapterConfig, readConfig } from '../engines/embedded/model/model-files.ts';
import { type ModelSource, openSource, readRegular, sourceDigest } from '../engines/embedded/model/model-source.ts';
import { readSafetensors, type Tensor } from '../engines/embedded/model/safetensors.ts';
import { IS_GGUF, resolveModel } from '../engines/model-path.ts';
import { type ChosenCheckpoint, chooseCheckpoint } from '../run/directory.ts';
import { checkFree, completed } from '../store/whole-output.ts';
import { createChatTemplate } from '../tokens/chat-template.ts';
import { loadTokenizer } from '../tokens/tokenizer.ts';
import { modelTextFiles } from '../tokens/tokenizer-files.ts';
import { DTYPES, type Dtype, type Pair, writeMerged } from './merged-weights.ts';

const CONFIG = 'config.json';
const TEMPLATE = 'chat_template.jinja';
const ADAPTER_CONFIG = 'adapter_config.json';
const ADAPTER_WEIGHTS = 'adapter_model.safetensors';
/** Beside TOKENIZER_FILES. */
const OTHER_FILES = [
  'generation_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
  'vocab.json',
  'merges.txt',
  'tokenizer.model',
];

export interface ExportRequest {
  /** A run directory, a checkpoint or a PEFT folder. */
  readonly from: string;
  /** Where to write the adapter as a PEFT folder, the whole model, and the adapter as a GGUF file. */
  readonly adapter?: string;
  readonly merged?: string;
  readonly ggufAdapter?: string;
  /** The base model; otherwise the one that the adapter names. */
  readonly base?: string;
  /** Of the whole model; otherwise that of the base. */
  readonly dtype?: Dtype;
}

export interface Written {
  readonly kind: 'adapter' | 'merged' | 'gguf-adapter' | 'chat-template';
  readonly path: string;
  /** Of weights. */
  readonly tensors?: number;
  readonly bytes: number;
  /** Of the whole model. */
  readonly dtype?: Dtype;
}

export interface Exported extends ChosenCheckpoint {
  /** Path of the base, if it was read. */
  readonly base?: string;
  /** False if the base is another than the adapter was trained on, which only `request.base` can ask for. */
  readonly isTrainedBase?: boolean;
  readonly written: readonly Written[];
}

interface Write extends Omit<Written, 'bytes'> {
  /** Writes to a path that is free. */
  write(path: string): Promise<void>;
}

/** An aborted `stop` leaves nothing unfinished behind. */
export async function exportCheckpoint(request: ExportRequest, stop?: AbortSignal): Promise<Exported> {
  const { adapter: adapterPath, merged, ggufAdapter } = request;
  const paths = [adapterPath, merged, ggufAdapter].filter((path) => path !== undefined);
  if (paths.length === 0) {
    const hint = 'add --adapter <dir>, --merged <dir> or --gguf-adapter <file>';
    throw new TrainyardError('USAGE', 'expected what to write, found none of the flags that say it', hint);
  }
  for (const path of paths) await checkFree(path);
  const chosen = await chooseCheckpoint(request.from);
  await using fetched = existsSync(join(chosen.folder, 'tinker.json')) ? await fetchAdapter(chosen.folder, stop) : undefined;
  const folder = fetched?.folder ?? chosen.folder;
  const adapter = await readAdapter(folder);
  if (adapter === undefined && paths.some((path) => path !== merged)) throw noAdapter(folder);
  // Checkpoints hold the base's config.json, PEFT's own folders do not.
  const config = existsSync(join(folder, CONFIG)) ? (await readConfig(folder)).config : undefined;
  const needsModel = merged !== undefined || (ggufAdapter !== undefined && config === undefined);
  const base = adapter && needsModel ? await resolveModel(request.base ?? adapter.base) : undefined;
  await using model = needsModel ? await openSource(base ?? folder) : undefined;
  if (adapter && config) checkShapes(adapter, shapesOf(config), join(folder, CONFIG));
  if (adapter && model) checkShapes(adapter, model.shapes, model.path);
  const isTrainedBase = adapter && model ? await checkBase(adapter, model, request.base) : undefined;
  // Prepared first, so that nothing is written if any of them is impossible.
  const writes: Write[] = [];
  const template = await templateWithTools([folder, ...(base === undefined ? [] : [base])]);
  if (adapterPath !== undefined) writes.push(adapterWrite(adapter!, adapterPath, request.base, template));
  if (merged !== undefined) {
    const merging = { model: model!, adapter, from: [base ?? folder, folder], template, stop };
    writes.push(await mergedWrite(merging, merged, request.dtype));
  }
  if (ggufAdapter !== undefined) {
    writes.push(ggufWrite(adapter!, config ?? parseConfig(model!.fields), ggufAdapter));
    if (template !== undefined) writes.push(await templateWrite(ggufAdapter, template));
  }
  const written: Written[] = [];
  for (const { write, ...one } of writes) written.push({ ...one, bytes: await completed(one.path, write) });
  return { ...chosen, ...defined({ base, isTrainedBase }), written };
}

/** From the Tinker server that has it. */
async function fetchAdapter(
  checkpoint: string,
  stop: AbortSignal | undefined,
): Promise<AsyncDisposable & { readonly folder: string }> {
  const { fetchSavedAdapter } = await import('../engines/tinker/client/saved-adapter.ts');
  return await fetchSavedAdapter(checkpoint, stop);
}

/**
 * What the model saw in training, if its own chat template leaves out tools or calls: other programs would leave them out too. A tokenizer
 * that cannot be read here is none that was trained with.
 */
async function templateWithTools(models: readonly string[]): Promise<string | undefined> {
  for (const model of models) {
    const template = await loadTokenizer(model)
      .then(createChatTemplate)
      .catch(() => undefined);
    if (template !== undefined) return template.withOwnForm;
  }
  return undefined;
}

/** Beside a GGUF adapter, which cannot hold it. */
async function templateWrite(ggufAdapter: string, template: string): Promise<Write> {
  const path = ggufAdapter.replace(/(\.gguf)?$/i, '.jinja');
  await checkFree(path);
  return { kind: 'chat-template', path, write: (to) => writeFile(to, template) };
}

// The adapter of a PEFT folder.

interface Adapter {
  readonly folder: string;
  readonly settings: LoraSettings;
  /** adapter_config.json. */
  readonly fields: Readonly<Record<string, unknown>>;
  /** Path or name of the base, and the digest of its weights if the adapter says it. */
  readonly base: string;
  readonly digest: string | undefined;
  /** By the name of the module in the base, such as model.layers.0.self_attn.q_proj. */
  readonly pairs: ReadonlyMap<string, Pair>;
}

const TENSOR =
  /^base_model\.model\.(model\.layers\.(\d+)\.(?:self_attn\.(?=[qkvo]_)|mlp\.(?=[gud]))((?:[qkvo]|gate|up|down)_proj))\.lora_[AB]\.weight$/;

/** Undefined if the folder holds a whole model. */
async function readAdapter(folder: string): Promise<Adapter | undefined> {
  const config = await readAdapterConfig(folder);
  if (config === undefined) {
    await checkModelFolder(folder);
    return undefined;
  }
  const fields = JSON.parse(await readRegular(join(folder, ADAPTER_CONFIG))) as Adapter['fields'];
  const path = join(folder, ADAPTER_WEIGHTS);
  const { tensors, metadata } = await readSafetensors(path);
  const pairs = pairsOf(tensors, config.settings.rank, path);
  return { folder, settings: config.settings, fields, base: config.base, digest: metadata['base'], pairs };
}

function pairsOf(tensors: ReadonlyMap<string, Tensor>, rank: number, path: string): Adapter['pairs'] {
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
  const found = `${folder} holds no ${ADAPTER_CONFIG}, so there is no adapter to export`;
  return new TrainyardError('MODEL_INVALID', found, 'all its parameters were trained: give --merged <dir> only');
}

function unusable(path: string, found: string): TrainyardError {
  const hint = 'export writes plain LoRA adapters of linear modules; PEFT itself may be able to merge this one';
  return new TrainyardError('MODEL_INVALID', `${path}: ${found}`, hint);
}

/** Says whether the adapter was trained on this model, as far as is known. Throws CHECKPOINT_MISMATCH unless the caller named the model. */
async function checkBase(
  { folder, digest }: Adapter,
  model: ModelSource,
  given: string | undefined,
): Promise<boolean | undefined> {
  if (digest === undefined) return undefined;
  const isSame = (await sourceDigest(model)) === digest;
  if (isSame || given !== undefined) return isSame;
  throw new TrainyardError(
    'CHECKPOINT_MISMATCH',
    `${model.path} changed since ${folder} was trained on it`,
    'put the base model back as it was, or merge into it all the same: --base <model>',
  );
}

/** The matrices of a model, by name: [outputs, inputs]. */
function shapesOf(config: LlamaConfig): ModelSource['shapes'] {
  return new Map(planLayout(config).tensors.map(({ name, shape }) => [name, shape]));
}

function checkShapes({ folder, pairs }: Adapter, shapes: ModelSource['shapes'], base: string): void {
  for (const [module, { a, b }] of pairs) {
    const expected = shapes.get(`${module}.weight`);
    const found = [b.shape[0], a.shape[1]];
    if (expected?.join() === found.join()) continue;
    const has = expected === undefined ? 'has no such module' : `has [${expected.join(', ')}]`;
    throw new TrainyardError(
      'CHECKPOINT_MISMATCH',
      `${folder} adapts ${module} of [${found.join(', ')}], but ${base} ${has}`,
      'give the model that the adapter was trained on: --base <model>',
    );
  }
}

function adapterWrite({ folder, fields, pairs }: Adapter, path: string, base?: string, template?: string): Write {
  // All are named, because PEFT adapts only some by default.
  const modules = new Set([...pairs.values()].map(({ part }) => part));
  const ours = { target_modules: [...modules], inference_mode: true, lora_dropout: 0 };
  const config = { ...fields, ...ours, ...(base !== undefined && { base_model_name_or_path: base }) };
  const write = async (to: string): Promise<void> => {
    await mkdir(to);
    await writeJson(join(to, ADAPTER_CONFIG), config);
    // No config.json: transformers would look for a whole model here.
    await copyFiles(folder, to, [ADAPTER_WEIGHTS, ...TOKENIZER_FILES, ...OTHER_FILES]);
    if (template !== undefined) await writeFile(join(to, TEMPLATE), template);
  };
  return { kind: 'adapter', path, tensors: 2 * pairs.size, write };
}

// The whole model as a Hugging Face folder.

interface Merging {
  readonly model: ModelSource;
  /** Undefined if all parameters were trained. */
  readonly adapter: Adapter | undefined;
  /** Models whose files beside the weights are taken; later ones win. */
  readonly from: readonly string[];
  /** Instead of theirs. */
  readonly template: string | undefined;
  readonly stop: AbortSignal | undefined;
}

async function mergedWrite(merging: Merging, path: string, given: Dtype | undefined): Promise<Write> {
  const { model, adapter, from, template, stop } = merging;
  const { torch_dtype, ...fields } = model.fields;
  const said = Object.entries(DTYPES).find(([, { config }]) => config === (fields['dtype'] ?? torch_dtype));
  // A GGUF file says none: f16 loses least of what its blocks hold.
  const dtype = given ?? (said?.[0] as Dtype | undefined) ?? (IS_GGUF.test(model.path) ? 'f16' : 'f32');
  const scale = adapter === undefined ? 0 : adapter.settings.alpha / adapter.settings.rank;
  const texts: Record<string, string> = {};
  for (const one of from) Object.assign(texts, await modelTextFiles(one));
  if (template !== undefined) texts[TEMPLATE] = template;
  const write = async (to: string): Promise<void> => {
    await mkdir(to);
    for (const [name, text] of Object.entries(texts)) await writeFile(join(to, name), text);
    await writeJson(join(to, CONFIG), { ...fields, dtype: DTYPES[dtype].config });
    for (const one of from) await copyFiles(one, to, OTHER_FILES);
    await writeMerged(to, { source: model, pairs: adapter?.pairs ?? new Map(), scale, dtype, stop });
  };
  return { kind: 'merged', path, tensors: model.shapes.size, dtype, write };
}

// The adapter as a GGUF file, version 3, little-endian: names, order of dimensions and rows are llama.cpp's.

const GGUF_NAMES: Readonly<Record<string, string>> = {
  q_proj: 'attn_q',
  k_proj: 'attn_k',
  v_proj: 'attn_v',
  o_proj: 'attn_output',
  gate_proj: 'ffn_gate',
  up_proj: 'ffn_up',
  down_proj: 'ffn_down',
};
/** Types of fields and tensors, and the alignment of tensors in bytes, which is the format's default. */
const GGUF = { string: 8, float: 6, f32Tensor: 0, alignment: 32 };

function ggufWrite({ folder, settings, pairs }: Adapter, { family, heads, kvHeads }: LlamaConfig, path: string): Write {
  const tensors = [...pairs.values()].flatMap(({ layer, part, a, b }) => {
    const name = `blk.${layer}.${GGUF_NAMES[part]}.weight`;
    const rotated = family === 'llama' ? { q_proj: heads, k_proj: kvHeads }[part] : undefined;
    const data = rotated === undefined ? b.data : interleaveHalves(b, rotated);
    return [
      { ...a, name: `${name}.lora_a` },
      { ...b, name: `${name}.lora_b`, data },
    ];
  });
  const fields = {
    'general.type': 'adapter',
    'general.architecture': family,
    'general.name': basename(resolve(folder)),
    'adapter.type': 'lora',
    'adapter.lora.alpha': settings.alpha,
  };
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

function ggufFile(fields: Readonly<Record<string, string | number>>, tensors: readonly Tensor[]): Buffer {
  const u32 = (value: number): Buffer => Buffer.from(Uint32Array.of(value).buffer);
  const u64 = (value: number): Buffer => Buffer.from(BigUint64Array.of(BigInt(value)).buffer);
  const text = (value: string): Buffer => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);
  const aligned = (bytes: number): number => Math.ceil(bytes / GGUF.alignment) * GGUF.alignment;
  const padded = (bytes: Buffer): Buffer => Buffer.concat([bytes], aligned(bytes.length));
  const described = Object.entries(fields).flatMap(([key, value]) =>
    typeof value === 'string'
      ? [text(key), u32(GGUF.string), text(value)]
      : [text(key), u32(GGUF.float), Buffer.from(Float32Array.of(value).buffer)],
  );
  let offset = 0;
  for (const { name, shape, data } of tensors) {
    described.push(text(name), u32(shape.length), ...shape.toReversed().map(u64), u32(GGUF.f32Tensor), u64(offset));
    offset += aligned(data.byteLength);
  }
  const head = [Buffer.from('GGUF'), u32(3), u64(tensors.length), u64(Object.keys(fields).length), ...described];
  const sections = tensors.map(({ data }) => padded(Buffer.from(data.buffer, data.byteOffset, data.byteLength)));
  return Buffer.concat([padded(Buffer.concat(head)), ...sections]);
}

async function writeJson(path: string, value: object): Promise<void> {
  await writeFile(path, `${JSON.stringify(value, null, 2)}\n`);
}

/** Those that are there. A downloaded folder may hold a link to a device, which has no end. */
async function copyFiles(from: string, to: string, names: readonly string[]): Promise<void> {
  for (const name of names) {
    const found = await stat(join(from, name)).catch(() => undefined);
    if (found?.isFile()) await copyFile(join(from, name), join(to, name));
  }
}
