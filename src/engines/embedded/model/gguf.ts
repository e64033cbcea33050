/**
 * A GGUF file as a source of weights: tensors under Hugging Face's names, metadata under the names of config.json, rows as float32. Refuses
 * by name what the embedded engine does not compute: other architectures, other block types, tensors and settings that it does not know.
 */
import { type FileHandle, open } from 'node:fs/promises';
import { boundary } from '../../../core/errors.ts';
import { type GgufHeader, type GgufTensor, invalidGguf, readGgufHeader } from '../../../core/gguf-header.ts';
import type { ByName } from '../../../core/types.ts';
import { FAMILIES } from './config.ts';
import { BLOCK_TYPES } from './gguf-blocks.ts';
import type { ModelSource } from './model-source.ts';

const ELSEWHERE = 'serve the model through an inference server, or use a file of another model';
const OTHER_TYPE = `use a file of the model in one of these types: ${Object.keys(BLOCK_TYPES).join(', ')}`;

export async function openGguf(path: string): Promise<ModelSource> {
  const file = await boundary('MODEL_INVALID', `${path} cannot be read`, () => open(path), 'name a .gguf file');
  try {
    return await sourceOf(file, await readGgufHeader(file, path), path);
  } catch (thrown) {
    await file.close();
    throw thrown;
  }
}

async function sourceOf(file: FileHandle, { metadata, tensors, fileBytes }: GgufHeader, path: string): Promise<ModelSource> {
  const architecture = String(metadata.get('general.architecture'));
  if (!Object.hasOwn(FAMILIES, architecture)) {
    const expected = Object.keys(FAMILIES).join(', ');
    throw invalidGguf(path, `is of the architecture ${architecture}, expected one of ${expected}`, ELSEWHERE);
  }
  const parts = Number(metadata.get('split.count') ?? 1);
  if (parts > 1)
    throw invalidGguf(path, `is one of ${parts} parts, expected a whole model`, 'join them: llama-gguf-split --merge');
  const placed = new Map(tensors.map((tensor) => [nameOf(tensor, path), place(tensor, fileBytes, path)]));
  if (placed.size < tensors.length) throw invalidGguf(path, 'has two tensors of one name');
  checkOrder(placed, Number(metadata.get('general.alignment') ?? 32), path);
  const read = rowReader(file, path);
  const factors = placed.get(ROPE_FACTORS);
  placed.delete(ROPE_FACTORS);
  const shapes = new Map([...placed].map(([name, { shape }]) => [name, shape]));
  const fields: Record<string, unknown> = {
    ...fieldsOf(metadata, architecture, shapes, path),
    ...ropeScaling(metadata, architecture, factors && (await read(factors, 0, factors.rows)), path),
  };
  const headsOf = { q: Number(fields['num_attention_heads']), k: Number(fields['num_key_value_heads']) };

  async function rows(name: string, first: number, count: number): Promise<Float32Array> {
    const tensor = placed.get(name);
    if (tensor === undefined) throw invalidGguf(path, `has no tensor ${name}`, ELSEWHERE);
    const [, rotated] = (architecture === 'llama' && /\.([qk])_proj\./.exec(name)) || [];
    if (rotated === undefined) return read(tensor, first, count);
    const heads = headsOf[rotated as 'q' | 'k'];
    if (tensor.rows % (2 * heads) === 0) return readRotated(read, tensor, first, count, heads);
    throw invalidGguf(path, `has ${tensor.rows} rows in ${name}, expected two halves for each of ${heads} heads`);
  }
  const close = () => file.close();
  return { path, fields, shapes, files: [path], rows, [Symbol.asyncDispose]: close };
}

// ── tensors ───────────────────────────────────────────────────────────────────────────────────────────────────────────

const ROPE_FACTORS = 'rope_freqs.weight';

const NAMES: ByName<string> = {
  'token_embd.weight': 'model.embed_tokens.weight',
  'output_norm.weight': 'model.norm.weight',
  'output.weight': 'lm_head.weight',
  [ROPE_FACTORS]: ROPE_FACTORS,
};
const NAMES_IN_LAYER: ByName<string> = {
  attn_norm: 'input_layernorm',
  ffn_norm: 'post_attention_layernorm',
  attn_q: 'self_attn.q_proj',
  attn_k: 'self_attn.k_proj',
  attn_v: 'self_attn.v_proj',
  attn_output: 'self_attn.o_proj',
  attn_q_norm: 'self_attn.q_norm',
  attn_k_norm: 'self_attn.k_norm',
  ffn_gate: 'mlp.gate_proj',
  ffn_up: 'mlp.up_proj',
  ffn_down: 'mlp.down_proj',
};

function nameOf({ name }: GgufTensor, path: string): string {
  if (Object.hasOwn(NAMES, name)) return NAMES[name]!;
  const [, layer, module = '', kind] = /^blk\.(\d+)\.(\w+)\.(weight|bias)$/.exec(name) ?? [];
  if (Object.hasOwn(NAMES_IN_LAYER, module)) return `model.layers.${layer}.${NAMES_IN_LAYER[module]}.${kind}`;
  throw invalidGguf(path, `has the tensor ${name}, which the embedded engine does not compute`, ELSEWHERE);
}

interface PlacedTensor {
  readonly shape: readonly number[];
  /** Of a matrix; the entries of a vector. */
  readonly rows: number;
  readonly rowBytes: number;
  /** In bytes, from the beginning of the file. */
  readonly start: number;
  readonly type: string;
}

function place({ name, type, dimensions, start }: GgufTensor, fileBytes: number, path: string): PlacedTensor {
  if (!Object.hasOwn(BLOCK_TYPES, type)) {
    throw invalidGguf(path, `has the tensor ${name} in ${type}, which is not read here`, OTHER_TYPE);
  }
  const block = BLOCK_TYPES[type]!;
  const shape = dimensions.toReversed();
  const [rows = 0, length = 1] = shape;
  if (shape.length > 2 || shape.includes(0) || rows === 0 || length % block.values !== 0) {
    const expected = block.values === 1 ? 'a vector or a matrix' : `a matrix with rows of a multiple of ${block.values}`;
    throw invalidGguf(path, `has the ${type} tensor ${name} of shape [${shape.join(', ')}], expected ${expected}`);
  }
  const rowBytes = (length / block.values) * block.bytes;
  const end = start + rows * rowBytes;
  if (end <= fileBytes) return { shape, rows, rowBytes, start, type };
  throw invalidGguf(path, `has ${fileBytes} bytes, expected at least ${end}, where the tensor ${name} ends`);
}

/** Tensors follow each other, aligned, as the format demands: a wrong offset would be read as other numbers. */
function checkOrder(placed: ReadonlyMap<string, PlacedTensor>, alignment: number, path: string): void {
  let expected: number | undefined;
  for (const [name, { start, rows, rowBytes }] of [...placed].toSorted(([, a], [, b]) => a.start - b.start)) {
    if (start % alignment !== 0 || (expected !== undefined && start !== expected)) {
      throw invalidGguf(path, `has the tensor ${name} at byte ${start}, expected ${expected ?? `a multiple of ${alignment}`}`);
    }
    expected = Math.ceil((start + rows * rowBytes) / alignment) * alignment;
  }
}

type ReadRows = (tensor: PlacedTensor, first: number, count: number) => Promise<Float32Array>;

function rowReader(file: FileHandle, path: string): ReadRows {
  return async ({ rows, rowBytes, start, type }, first, count) => {
    if (first < 0 || count < 0 || first + count > rows) {
      throw invalidGguf(path, `was asked for rows ${first} to ${first + count} of a tensor with ${rows}`, ELSEWHERE);
    }
    const bytes = Buffer.allocUnsafe(count * rowBytes);
    for (let done = 0; done < bytes.length; ) {
      const { bytesRead } = await file.read(bytes, done, bytes.length - done, start + first * rowBytes + done);
      if (bytesRead === 0) throw invalidGguf(path, 'became shorter while it was read');
      done += bytesRead;
    }
    return BLOCK_TYPES[type]!.decode(bytes);
  };
}

/** A Llama's file interleaves the two halves of each query and key head: stored row 2i + h is row i + h · size / 2 of that head. */
async function readRotated(read: ReadRows, tensor: PlacedTensor, first: number, count: number, heads: number) {
  const size = tensor.rows / heads;
  const from = first - (first % size);
  const last = Math.ceil((first + count) / size) * size;
  const stored = await read(tensor, from, last - from);
  const length = tensor.shape[1] ?? 1;
  const out = new Float32Array(count * length);
  for (let i = 0; i < count; i++) {
    const row = first - from + i;
    const inHead = row % size;
    const at = row - inHead + 2 * (inHead % (size / 2)) + Math.floor(inHead / (size / 2));
    out.set(stored.subarray(at * length, (at + 1) * length), i * length);
  }
  return out;
}

// ── metadata ──────────────────────────────────────────────────────────────────────────────────────────────────────────

type Metadata = ReadonlyMap<string, unknown>;

const SETTINGS: ByName<string> = {
  embedding_length: 'hidden_size',
  feed_forward_length: 'intermediate_size',
  block_count: 'num_hidden_layers',
  'attention.head_count': 'num_attention_heads',
  'attention.head_count_kv': 'num_key_value_heads',
  'attention.key_length': 'head_dim',
  'attention.layer_norm_rms_epsilon': 'rms_norm_eps',
  'attention.sliding_window': 'sliding_window',
  context_length: 'max_position_embeddings',
  'rope.freq_base': 'rope_theta',
};
/** Settings that are read in another way, or say nothing that the tensors do not say. */
const OTHER_SETTINGS = /^(vocab_size|tensor_data_layout|attention\.value_length|rope\.dimension_count|rope\.scal.*)$/;

function fieldsOf(metadata: Metadata, architecture: string, shapes: ModelSource['shapes'], path: string) {
  const hasBias = (module: string) => [...shapes.keys()].some((name) => name.includes(module) && name.endsWith('.bias'));
  const fields: Record<string, unknown> = {
    architectures: [FAMILIES[architecture as keyof typeof FAMILIES]],
    model_type: architecture,
    hidden_act: 'silu',
    vocab_size: shapes.get('model.embed_tokens.weight')?.[0],
    tie_word_embeddings: !shapes.has('lm_head.weight'),
    mlp_bias: hasBias('.mlp.'),
    attention_bias: architecture !== 'qwen2' && hasBias('.self_attn.'),
    bos_token_id: metadata.get('tokenizer.ggml.bos_token_id'),
    eos_token_id: metadata.get('tokenizer.ggml.eos_token_id'),
  };
  for (const [key, value] of metadata) {
    const setting = key.startsWith(`${architecture}.`) ? key.slice(architecture.length + 1) : 'vocab_size';
    if (Object.hasOwn(SETTINGS, setting)) fields[SETTINGS[setting]!] = shortest(value);
    else if (!OTHER_SETTINGS.test(setting) && value !== 0 && value !== false) {
      throw invalidGguf(path, `says ${key} = ${JSON.stringify(value)}, which the embedded engine does not compute`, ELSEWHERE);
    }
  }
  fields['num_key_value_heads'] ??= fields['num_attention_heads'];
  fields['head_dim'] ??= Number(fields['hidden_size']) / Number(fields['num_attention_heads']);
  for (const name of [`${architecture}.attention.value_length`, `${architecture}.rope.dimension_count`]) {
    const found = metadata.get(name) ?? fields['head_dim'];
    if (found === fields['head_dim']) continue;
    throw invalidGguf(path, `says ${name} = ${found}, expected ${fields['head_dim']}, the size of a head`, ELSEWHERE);
  }
  return fields;
}

/** A float32 as people write it: 1e-5 instead of 0.000009999999747378752. */
function shortest(value: unknown): unknown {
  if (typeof value !== 'number') return value;
  const rounded = [6, 7, 8].map((digits) => Number(value.toPrecision(digits)));
  return rounded.find((short) => Math.fround(short) === value) ?? value;
}

/**
 * Llama 3's scaled rotary positions are kept as a divisor of each frequency. Its models differ in the largest divisor only, so the divisors
 * are computed from that one and compared.
 */
function ropeScaling(metadata: Metadata, architecture: string, divisors: Float32Array | undefined, path: string) {
  const setting = (name: string) => metadata.get(`${architecture}.rope.${name}`);
  const rope_type = setting('scaling.type') ?? (setting('scale_linear') === undefined ? 'none' : 'linear');
  // config.ts refuses these by name.
  if (rope_type !== 'none') return { rope_scaling: { rope_type, factor: setting('scaling.factor') ?? setting('scale_linear') } };
  const factor = divisors?.at(-1) ?? 1;
  if (divisors === undefined || divisors.every((divisor) => divisor === 1)) return {};
  const theta = Number(setting('freq_base') ?? 10_000);
  const isLlama3 = divisors.every((divisor, i) => {
    const turns = 8192 / (2 * Math.PI * theta ** (i / divisors.length));
    const kept = Math.min(1, Math.max(0, (turns - 1) / 3));
    return Math.abs(((1 - kept) / factor + kept) * divisor - 1) < 1e-4;
  });
  if (!isLlama3) throw invalidGguf(path, `has ${ROPE_FACTORS} that are not those of Llama 3`, ELSEWHERE);
  const known = { low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 8192 };
  return { rope_scaling: { rope_type: 'llama3', factor, ...known } };
}
