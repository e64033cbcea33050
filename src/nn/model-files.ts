/**
 * A model folder ⇄ flat buffers: config.json, model.safetensors and, for resuming training, optimizer.safetensors. The first two are
 * compatible with Hugging Face's LlamaForCausalLM. The buffers are written only after the whole file was checked against the layout. Does
 * not fsync or rename: callers must commit.
 */
import { existsSync } from 'node:fs';
import { readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { boundary, messageOf, TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';
import { configJson, type Layout, type LlamaConfig, parseConfig } from './config.ts';
import { KERNEL_VARIANTS, type KernelVariant } from './wasm.ts';

const CONFIG = 'config.json';
const WEIGHTS = 'model.safetensors';
const OPTIMIZER = 'optimizer.safetensors';

export interface ConfigFile {
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

export async function readConfig(dir: string): Promise<ConfigFile> {
  const path = join(dir, CONFIG);
  const hint = 'name a folder with config.json and model.safetensors';
  const text = await boundary('MODEL_INVALID', `${path} cannot be read`, async () => (await readRegular(path)).toString(), hint);
  const source: unknown = await boundary('MODEL_INVALID', `${path} is not JSON`, () => JSON.parse(text));
  return { config: parseConfig(source), source: source as Record<string, unknown> };
}

interface SavedWeights {
  readonly weights: Float32Array;
  /** The kernel build that computed them; undefined if the file does not say. */
  readonly variant: KernelVariant | undefined;
}

/** Throws CHECKPOINT_MISMATCH unless the file holds exactly this layout's tensors. */
export async function readWeights(dir: string, layout: Layout): Promise<SavedWeights> {
  const path = join(dir, WEIGHTS);
  const file = await readSafetensors(path);
  const weights = gather(file, layout, '', path);
  const known = new Set(layout.tensors.map(({ name }) => name));
  // Some writers store a tied head as a separate tensor; it is a copy of the embedding.
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

/** Undefined if the folder has no optimizer state. */
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

export async function writeCheckpoint(dir: string, model: SavableModel, optimizer: OptimizerState | undefined): Promise<void> {
  const { layout, weights, variant } = model;
  await writeFile(join(dir, CONFIG), `${JSON.stringify(configJson(model.config, model.source), null, 2)}\n`);
  await writeSafetensors(join(dir, WEIGHTS), split(weights, layout, ''), { format: 'pt', kernels: variant });
  if (optimizer === undefined) return;
  const moments = [
    ...split(optimizer.firstMoments, layout, 'exp_avg.'),
    ...split(optimizer.secondMoments, layout, 'exp_avg_sq.'),
  ];
  await writeSafetensors(join(dir, OPTIMIZER), moments, { step: String(optimizer.step) });
}

function gather(file: SafetensorsFile, layout: Layout, prefix: string, path: string): Float32Array {
  const parts = layout.tensors.map(({ name, shape, offset }) => {
    const tensor = file.tensors.get(prefix + name);
    if (tensor === undefined) throw mismatch(path, `lacks tensor ${prefix}${name} of shape [${shape.join(', ')}]`);
    if (tensor.shape.join() !== shape.join()) {
      throw mismatch(path, `has ${prefix}${name} of shape [${tensor.shape.join(', ')}], expected [${shape.join(', ')}]`);
    }
    return { data: tensor.data, offset };
  });
  // Only now: config.json may claim any size.
  const flat = new Float32Array(layout.length);
  for (const { data, offset } of parts) flat.set(data, offset);
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

// The safetensors file format: 8 bytes of header length, a JSON header, one data section. Reading checks everything before using any data:
// lengths, dtypes, and that the tensors tile the data section without gaps or overlaps, as the format demands. Reads F32, F16 and BF16;
// writes F32. Knows nothing about models.

export interface Tensor {
  readonly name: string;
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

export interface SafetensorsFile {
  readonly tensors: ReadonlyMap<string, Tensor>;
  readonly metadata: Readonly<Record<string, string>>;
}

const BYTES = { F32: 4, F16: 2, BF16: 2 } as const;
type Dtype = keyof typeof BYTES;

interface Entry {
  readonly name: string;
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  readonly begin: number;
  readonly end: number;
}

/** Model folders are downloaded: reading a link to a device, or a pipe, would not end. */
async function readRegular(path: string): Promise<Buffer> {
  if (!(await stat(path)).isFile()) throw new TrainyardError('MODEL_INVALID', 'it is not a regular file');
  return await readFile(path);
}

export async function readSafetensors(path: string): Promise<SafetensorsFile> {
  const file = await readRegular(path).catch((cause: unknown) => {
    throw new TrainyardError('SAFETENSORS_INVALID', `${path} cannot be read: ${messageOf(cause)}`, {
      ...{ cause, hint: 'the file is written by save()' },
    });
  });
  return decodeSafetensors(file, path);
}

/** `path` is used only in messages. */
export function decodeSafetensors(file: Buffer, path: string): SafetensorsFile {
  const { header, dataStart } = decodeHeader(file, path);
  const { __metadata__: metadata, ...described } = header;
  const entries = Object.entries(described).map(([name, value]) => decodeEntry(name, value, path));
  checkTiling(entries, file.length - dataStart, path);
  const data = file.subarray(dataStart);
  const tensors = new Map(entries.map((entry) => [entry.name, decodeTensor(entry, data)]));
  return { tensors, metadata: decodeMetadata(metadata, path) };
}

export async function writeSafetensors(
  path: string,
  tensors: readonly Tensor[],
  metadata: Readonly<Record<string, string>>,
): Promise<void> {
  const header: Record<string, unknown> = { __metadata__: metadata };
  let offset = 0;
  for (const { name, shape, data } of tensors) {
    header[name] = { dtype: 'F32', shape, data_offsets: [offset, offset + data.byteLength] };
    offset += data.byteLength;
  }
  const text = JSON.stringify(header);
  // The data section starts at a multiple of 8 bytes; the header is padded with spaces, as other writers do.
  const json = Buffer.from(text.padEnd(text.length + ((8 - (Buffer.byteLength(text) % 8)) % 8)));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  // Copied, because file writes do not accept views of shared memory.
  const sections = tensors.map(({ data }) => Buffer.from(new Float32Array(data).buffer));
  await writeFile(path, Buffer.concat([length, json, ...sections]));
}

function decodeHeader(file: Buffer, path: string): { header: Record<string, unknown>; dataStart: number } {
  if (file.length < 8) throw invalid(path, `is ${file.length} bytes long, expected at least 8`);
  const length = file.readBigUInt64LE(0);
  if (length > BigInt(file.length - 8)) {
    throw invalid(path, `announces a header of ${length} bytes, but only ${file.length - 8} follow: the file is truncated`);
  }
  const dataStart = 8 + Number(length);
  try {
    const header: unknown = JSON.parse(file.toString('utf8', 8, dataStart));
    if (isObject(header)) return { header, dataStart };
  } catch (cause) {
    throw invalid(path, 'has a header that is not JSON', cause);
  }
  throw invalid(path, 'has a header that is not a JSON object');
}

function decodeEntry(name: string, value: unknown, path: string): Entry {
  const fields = isObject(value) ? value : {};
  const { dtype, shape, data_offsets: offsets } = fields;
  if (typeof dtype !== 'string' || !Object.hasOwn(BYTES, dtype)) {
    throw invalid(path, `tensor ${name} has dtype ${JSON.stringify(dtype)}, expected ${Object.keys(BYTES).join(', ')}`);
  }
  if (!isCounts(shape)) throw invalid(path, `tensor ${name} has shape ${JSON.stringify(shape)}, expected sizes`);
  if (!isCounts(offsets) || offsets.length !== 2) {
    throw invalid(path, `tensor ${name} has data_offsets ${JSON.stringify(offsets)}, expected [begin, end]`);
  }
  const [begin, end] = offsets as [number, number];
  const bytes = shape.reduce((product, n) => product * n, 1) * BYTES[dtype as Dtype];
  if (end - begin !== bytes) {
    throw invalid(
      path,
      `tensor ${name} of shape [${shape.join(', ')}] needs ${bytes} bytes, its data_offsets give ${end - begin}`,
    );
  }
  return { name, dtype: dtype as Dtype, shape, begin, end };
}

function checkTiling(entries: readonly Entry[], dataLength: number, path: string): void {
  let position = 0;
  for (const { name, begin, end } of [...entries].sort((a, b) => a.begin - b.begin || a.end - b.end)) {
    if (begin !== position) {
      throw invalid(
        path,
        `tensor ${name} begins at byte ${begin} of the data, expected ${position}: tensors overlap or leave a gap`,
      );
    }
    position = end;
  }
  if (position !== dataLength) {
    throw invalid(path, `describes ${position} bytes of data, found ${dataLength}: the file is truncated or has a tail`);
  }
}

function decodeMetadata(metadata: unknown, path: string): Readonly<Record<string, string>> {
  if (metadata === undefined) return {};
  if (isObject(metadata) && Object.values(metadata).every((value) => typeof value === 'string')) {
    return metadata as Record<string, string>;
  }
  throw invalid(path, 'has __metadata__ that is not a map of strings');
}

function decodeTensor({ name, dtype, shape, begin, end }: Entry, data: Buffer): Tensor {
  // Copied: the data section need not be aligned to floats.
  const bytes = new Uint8Array(data.subarray(begin, end));
  if (dtype === 'F32') return { name, shape, data: new Float32Array(bytes.buffer) };
  const halves = new Uint16Array(bytes.buffer);
  return { name, shape, data: Float32Array.from(halves, dtype === 'BF16' ? fromBfloat16 : fromFloat16) };
}

const word = new Uint32Array(1);
const wordAsFloat = new Float32Array(word.buffer);

function fromBfloat16(bits: number): number {
  word[0] = bits << 16;
  return wordAsFloat[0]!;
}

function fromFloat16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function isCounts(value: unknown): value is readonly number[] {
  return Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0);
}

function invalid(path: string, found: string, cause?: unknown): TrainyardError {
  return new TrainyardError('SAFETENSORS_INVALID', `${path} ${found}`, {
    hint: 'the file is damaged or was not written completely: use another copy or an earlier checkpoint',
    ...(cause === undefined ? {} : { cause }),
  });
}
