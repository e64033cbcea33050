import { readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { temporaryFolder } from '../../../../test/fixtures/folder.ts';
import { ggufBytes, type WrittenTensor } from '../../../../test/fixtures/nn/gguf-writer.ts';
import { knowsItself } from '../../../../test/fixtures/system.ts';
import { parseConfig } from './config.ts';
import { openGguf } from './gguf.ts';
import { BLOCK_TYPES } from './gguf-blocks.ts';
import type { ModelSource } from './model-source.ts';

const TYPE = { F32: 0, F16: 1, Q4_0: 2, Q8_0: 8, IQ4_XS: 23 };

/** A Llama with two layers' worth of metadata and one layer's query and key: 4 query heads and 2 key heads of size 4. */
const METADATA = {
  'general.architecture': 'llama',
  'general.name': 'tiny',
  'llama.block_count': 1,
  'llama.context_length': 64,
  'llama.embedding_length': 16,
  'llama.feed_forward_length': 32,
  'llama.attention.head_count': 4,
  'llama.attention.head_count_kv': 2,
  'llama.attention.layer_norm_rms_epsilon': 1e-5,
  'llama.rope.freq_base': 100000,
  'llama.rope.dimension_count': 4,
  'tokenizer.ggml.eos_token_id': 2,
};
type Metadata = Parameters<typeof ggufBytes>[0];

function floats(name: string, dimensions: readonly number[], value = (i: number) => i): WrittenTensor {
  const length = dimensions.reduce((product, n) => product * n, 1);
  const data = new Uint8Array(Float32Array.from({ length }, (_, i) => value(i)).buffer);
  return { name, dimensions, type: TYPE.F32, data };
}

const TENSORS = [
  floats('token_embd.weight', [16, 5]),
  floats('blk.0.attn_q.weight', [16, 16]),
  floats('blk.0.attn_k.weight', [16, 8]),
  floats('blk.0.attn_v.weight', [16, 8]),
  floats('output_norm.weight', [16], () => 1),
];

function write(bytes: Uint8Array): string {
  const path = join(temporaryFolder(), 'tiny.gguf');
  writeFileSync(path, bytes);
  return path;
}

async function openBytes(bytes: Uint8Array): Promise<ModelSource> {
  const source = await openGguf(write(bytes));
  onTestFinished(() => source[Symbol.asyncDispose]());
  return source;
}

const openWith = (metadata: Metadata = METADATA, tensors: readonly WrittenTensor[] = TENSORS) =>
  openBytes(ggufBytes(metadata, tensors));

/** The first number of each row: the files above count upwards, so it says which stored row it is. */
async function storedRows(source: ModelSource, name: string, first: number, count: number): Promise<number[]> {
  const rows = await source.rows(name, first, count);
  return Array.from({ length: count }, (_, row) => rows[row * 16]! / 16);
}

describe('the blocks of a GGUF file', () => {
  const fixture = new URL('../../../../test/fixtures/nn/gguf-blocks.json', import.meta.url);
  const computed = JSON.parse(readFileSync(fixture, 'utf8')) as Record<string, { blocks: string; values: string }>;

  it.each(Object.keys(BLOCK_TYPES))('of type %s hold the numbers that Python’s gguf reads, to the bit', (type) => {
    const expected = Buffer.from(computed[type]!.values, 'base64');
    const found = BLOCK_TYPES[type]!.decode(Buffer.from(computed[type]!.blocks, 'base64'));
    expect(found.length).toBe(512);
    expect(Buffer.compare(Buffer.from(found.buffer), expected)).toBe(0);
  });

  it('are read a few rows at a time', async () => {
    const { blocks, values } = computed['Q4_0']!;
    const data = Buffer.from(blocks, 'base64');
    const tensor = { name: 'token_embd.weight', dimensions: [64, 8], type: TYPE.Q4_0, data };
    const source = await openWith(METADATA, [tensor]);
    const all = new Float32Array(new Uint8Array(Buffer.from(values, 'base64')).buffer);
    expect(source.shapes.get('model.embed_tokens.weight')).toEqual([8, 64]);
    expect(await source.rows('model.embed_tokens.weight', 3, 2)).toEqual(all.slice(3 * 64, 5 * 64));
    expect(await source.rows('model.embed_tokens.weight', 8, 0)).toEqual(new Float32Array(0));
    await expect(source.rows('model.embed_tokens.weight', 7, 2)).rejects.toMatchObject({ code: 'MODEL_INVALID' });
  });
});

describe('the metadata of a GGUF file', () => {
  it('is that of a config.json', async () => {
    const { fields, shapes } = await openWith();
    expect(parseConfig(fields)).toMatchObject({
      ...{ vocabSize: 5, hiddenSize: 16, intermediateSize: 32, layers: 1, heads: 4, kvHeads: 2, headDim: 4 },
      ...{ contextLength: 64, rmsNormEps: 1e-5, ropeTheta: 100000, tied: true },
    });
    expect(fields).toMatchObject({ model_type: 'llama', eos_token_id: 2, attention_bias: false, mlp_bias: false });
    expect([...shapes.keys()]).toEqual([
      'model.embed_tokens.weight',
      ...['q', 'k', 'v'].map((one) => `model.layers.0.self_attn.${one}_proj.weight`),
      'model.norm.weight',
    ]);
    expect((await openWith(METADATA, [...TENSORS, floats('output.weight', [16, 5])])).fields['tie_word_embeddings']).toBe(false);
  });

  it('names the size of a head where the file does', async () => {
    const { 'llama.rope.dimension_count': _, ...rest } = METADATA;
    const source = await openWith({ ...rest, 'llama.attention.key_length': 8, 'llama.attention.value_length': 8 });
    expect(source.fields['head_dim']).toBe(8);
  });

  it('says that an attention has biases, unless all models of the architecture have them', async () => {
    const bias = floats('blk.0.attn_q.bias', [16]);
    expect((await openWith(METADATA, [...TENSORS, bias])).fields['attention_bias']).toBe(true);
    const { fields, shapes } = await openWith(qwen('qwen2'), [...TENSORS, bias]);
    expect(fields).toMatchObject({ model_type: 'qwen2', attention_bias: false, num_key_value_heads: 2 });
    expect(shapes.get('model.layers.0.self_attn.q_proj.bias')).toEqual([16]);
  });

  it.each([8, 32])('gives Llama 3 its scaled rotary positions (factor %d)', async (factor) => {
    const { fields } = await openWith(METADATA, [...TENSORS, llama3Factors(factor, 100000)]);
    const rest = { low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 8192 };
    expect(fields['rope_scaling']).toEqual({ rope_type: 'llama3', factor, ...rest });
    const plain = await openWith(METADATA, [...TENSORS, floats('rope_freqs.weight', [2], () => 1)]);
    expect(plain.fields['rope_scaling']).toBeUndefined();
  });

  it('keeps other scaled rotary positions under their names, so that the config refuses them', async () => {
    const source = await openWith({ ...METADATA, 'llama.rope.scaling.type': 'yarn', 'llama.rope.scaling.factor': 4 });
    expect(source.fields['rope_scaling']).toEqual({ rope_type: 'yarn', factor: 4 });
    expect(() => parseConfig(source.fields)).toThrow(/yarn/);
  });
});

/** As llama.cpp's converter computes them. */
function llama3Factors(factor: number, theta: number): WrittenTensor {
  const factorOf = (i: number): number => {
    const wavelength = 2 * Math.PI * theta ** (i / 32);
    if (wavelength < 8192 / 4) return 1;
    if (wavelength > 8192 / 1) return factor;
    const smooth = (8192 / wavelength - 1) / (4 - 1);
    return 1 / ((1 - smooth) / factor + smooth);
  };
  return floats('rope_freqs.weight', [32], factorOf);
}

function qwen(architecture: string): Metadata {
  const renamed = Object.entries(METADATA).map(([key, value]) => [key.replace(/^llama\./, `${architecture}.`), value]);
  return { ...Object.fromEntries(renamed), 'general.architecture': architecture };
}

describe('the query and key rows of a Llama’s file', () => {
  const [q, k, v] = ['q', 'k', 'v'].map((one) => `model.layers.0.self_attn.${one}_proj.weight`);

  it('are put back in the order of Hugging Face', async () => {
    const source = await openWith();
    // Stored rows 0, 2 are the first half of head 0, rows 1, 3 its second half.
    expect(await storedRows(source, q!, 0, 16)).toEqual([0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15]);
    expect(await storedRows(source, k!, 0, 8)).toEqual([0, 2, 1, 3, 4, 6, 5, 7]);
    expect(await storedRows(source, v!, 0, 8)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  });

  it('can be read in any ranges', async () => {
    const source = await openWith();
    const all = await storedRows(source, q!, 0, 16);
    for (let first = 0; first < 16; first++) {
      for (let count = 0; first + count <= 16; count++) {
        expect(await storedRows(source, q!, first, count)).toEqual(all.slice(first, first + count));
      }
    }
  });

  it('stay as they are in the files of other architectures', async () => {
    expect(await storedRows(await openWith(qwen('qwen3')), q!, 0, 8)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  });

  it('are refused if they do not fit the heads', async () => {
    const source = await openWith({ ...METADATA, 'llama.attention.head_count': 16, 'llama.rope.dimension_count': 1 });
    await expect(source.rows(q!, 0, 1)).rejects.toThrow(/16 rows in .*expected two halves for each of 16 heads/);
  });
});

describe('a GGUF file that cannot be used', () => {
  const whole = ggufBytes(METADATA, TENSORS);
  const broken = (metadata: Metadata, tensors: readonly WrittenTensor[] = TENSORS) => ggufBytes(metadata, tensors);

  it.each([
    ['of no bytes', Buffer.alloc(0), /cannot be read as a GGUF file: .*magic/],
    ['of another format', Buffer.from('PK\x03\x04 and more than that'), /magic/],
    ['that ends in its metadata', whole.subarray(0, 300), /cannot be read|expected a header/],
    ['without its end', whole.subarray(0, whole.length - 40), /expected at least \d+, where the tensor output_norm\.weight ends/],
    ['with an offset outside of it', broken(METADATA, [{ ...TENSORS[0]!, offset: 2 ** 50 }]), /expected at least 1125899906\d+/],
    ['with a shape that lies', broken(METADATA, [{ ...TENSORS[0]!, dimensions: [2 ** 31, 2 ** 31] }]), /expected at least/],
    ['with an empty shape', broken(METADATA, [{ ...TENSORS[0]!, dimensions: [16, 0] }]), /shape \[0, 16\], expected a vector/],
    ['with three dimensions', broken(METADATA, [{ ...TENSORS[0]!, dimensions: [4, 4, 5] }]), /shape \[5, 4, 4\]/],
    ['with half a block', broken(METADATA, [{ ...TENSORS[0]!, type: TYPE.Q8_0 }]), /rows of a multiple of 32/],
    ['in IQ4_XS', broken(METADATA, [{ ...TENSORS[0]!, type: TYPE.IQ4_XS }]), /token_embd\.weight in IQ4_XS, which is not read/],
    ['in a type of nobody', broken(METADATA, [{ ...TENSORS[0]!, type: 99 }]), /in type 99/],
    ['of another kind', broken({ ...METADATA, 'general.architecture': 'mamba' }), /mamba, expected one of llama, qwen2, qwen3/],
    ['with experts', broken({ ...METADATA, 'llama.expert_count': 8 }), /llama\.expert_count = 8/],
    ['with heads of two sizes', broken({ ...METADATA, 'llama.attention.value_length': 8 }), /value_length = 8, expected 4/],
    ['that rotates half of a head', broken({ ...METADATA, 'llama.rope.dimension_count': 2 }), /dimension_count = 2, expected 4/],
    ['with unknown tensors', broken(METADATA, [floats('blk.0.ssm_in.weight', [4])]), /tensor blk\.0\.ssm_in\.weight/],
    ['with a tensor twice', broken(METADATA, [TENSORS[0]!, TENSORS[0]!]), /two tensors of one name/],
    ['in parts', broken({ ...METADATA, 'split.count': 3 }), /one of 3 parts/],
    ['with odd rotary factors', broken(METADATA, [floats('rope_freqs.weight', [2], (i) => i + 2)]), /not those of Llama 3/],
  ] as const)('%s is refused', async (_, bytes, message) => {
    const refused = await openBytes(bytes).catch((thrown: unknown) => thrown);
    expect(refused).toMatchObject({ code: 'MODEL_INVALID', message: expect.stringMatching(message), hint: expect.any(String) });
  });

  it.skipIf(!knowsItself)('is refused at once, however much its counts promise', async () => {
    const lying = Buffer.from(whole);
    lying.writeBigUInt64LE(9_999_999n, 8);
    const before = process.memoryUsage.rss();
    await expect(openBytes(lying)).rejects.toMatchObject({ code: 'MODEL_INVALID' });
    expect(process.memoryUsage.rss() - before).toBeLessThan(150e6);
  });

  it('is refused if the library read a text only in part', async () => {
    // Two million bytes end within the last text of this list, where the library cuts it off.
    const filler = ['x'.repeat(1_999_000), 'y'.repeat(5_000)];
    const bytes = ggufBytes({ ...METADATA, 'tokenizer.ggml.tokens': filler }, TENSORS);
    await expect(openBytes(bytes)).rejects.toThrow(/bytes of metadata, of which/);
  });

  it('is refused if it is a folder, or is not there', async () => {
    for (const by of [8, 32]) {
      const moved = ggufBytes(METADATA, TENSORS);
      const name = Buffer.from('blk.0.attn_k.weight');
      // After the name: the number of dimensions, two of them, and the type.
      const at = Buffer.from(moved.buffer, moved.byteOffset, moved.byteLength).indexOf(name) + name.length + 4 + 16 + 4;
      const view = new DataView(moved.buffer, moved.byteOffset);
      view.setBigUint64(at, view.getBigUint64(at, true) + BigInt(by), true);
      await expect(openBytes(moved)).rejects.toThrow(/k_proj.weight at byte \d+, expected \d+/);
    }
    await expect(openGguf(tmpdir())).rejects.toMatchObject({ code: 'MODEL_INVALID' });
    await expect(openGguf('/nowhere/model.gguf')).rejects.toMatchObject({ code: 'MODEL_INVALID', hint: 'name a .gguf file' });
  });
});
