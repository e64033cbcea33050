import { hash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, open, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../models/random.ts';
import { folderOfEach } from '../../test/fixtures/folder.ts';
import { refusal } from '../../test/fixtures/refusal.ts';
import { toollessTemplate } from '../../test/fixtures/tokens/templates.ts';
import { readGgufHeader } from '../core/gguf-header.ts';
import type { Sample } from '../core/types.ts';
import { checkModelFolder } from '../engines/checkpoint.ts';
import { EmbeddedModel } from '../engines/embedded/embedded-model.ts';
import { LORA_TARGETS } from '../engines/embedded/lora.ts';
import type { ModelSource } from '../engines/embedded/model/model-source.ts';
import { readSafetensors, type Tensor, writeSafetensors } from '../engines/embedded/model/safetensors.ts';
import { crossEntropy } from '../training/losses.ts';
import { exportCheckpoint } from './export-weights.ts';
import { type Dtype, writeMerged } from './merged-weights.ts';

const BASE = {
  ...{ architectures: ['LlamaForCausalLM'], model_type: 'llama', vocab_size: 12, hidden_size: 8, intermediate_size: 12 },
  ...{ num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, tie_word_embeddings: true },
};
const RANK = 2;
const ALPHA = 6;
const CONFIG = {
  ...{ peft_type: 'LORA', r: RANK, lora_alpha: ALPHA, lora_dropout: 0.1, bias: 'none', task_type: 'CAUSAL_LM' },
  ...{ fan_in_fan_out: false, base_model_name_or_path: '/models/tiny', target_modules: 'all-linear', rank_pattern: {} },
};
/** [outputs, inputs] of a layer's modules. */
const MODULES: Readonly<Record<string, readonly [number, number]>> = {
  ...{ 'self_attn.q_proj': [8, 8], 'self_attn.k_proj': [4, 8], 'self_attn.v_proj': [4, 8], 'self_attn.o_proj': [8, 8] },
  ...{ 'mlp.gate_proj': [12, 8], 'mlp.up_proj': [12, 8], 'mlp.down_proj': [8, 12] },
};

const random = seededRandom(5);
function tensor(name: string, ...shape: number[]): Tensor {
  const length = shape.reduce((product, n) => product * n, 1);
  return { name, shape, data: Float32Array.from({ length }, () => random() - 0.5) };
}
const loraTensors = (layers = 2): Tensor[] =>
  Array.from({ length: layers }, (_, layer) =>
    Object.entries(MODULES).flatMap(([module, [outputs, inputs]]) => {
      const name = `base_model.model.model.layers.${layer}.${module}`;
      return [tensor(`${name}.lora_A.weight`, RANK, inputs), tensor(`${name}.lora_B.weight`, outputs, RANK)];
    }),
  ).flat();

const at = folderOfEach();

interface Given {
  readonly config?: object;
  readonly tensors?: readonly Tensor[];
  readonly base?: object | null;
  readonly name?: string;
  /** Of the base. */
  readonly digest?: string;
}
/** A checkpoint as a LoRA run writes it. */
async function checkpoint(given: Given = {}): Promise<string> {
  const { config = CONFIG, tensors = loraTensors(), base = BASE, name = 'checkpoint', digest } = given;
  const dir = at(name);
  await mkdir(dir, { recursive: true });
  await writeFile(join(dir, 'adapter_config.json'), JSON.stringify(config));
  await writeSafetensors(join(dir, 'adapter_model.safetensors'), tensors, { format: 'pt', ...(digest && { base: digest }) });
  if (base !== null) await writeFile(join(dir, 'config.json'), JSON.stringify(base));
  await writeFile(join(dir, 'tokenizer.json'), '{"it":"is the tokenizer"}');
  await writeFile(join(dir, 'optimizer.safetensors'), 'moments');
  await writeFile(join(dir, 'checkpoint.json'), 'label');
  return dir;
}
const WHOLE = ['config.json', 'generation_config.json', 'model.safetensors', 'tokenizer.json'];
const out = (name = 'out'): string => at(name);
const leftovers = async (): Promise<readonly string[]> => (await readdir(at())).filter((name) => name !== 'checkpoint');

describe('the adapter as a PEFT folder', () => {
  it('has the weights as they are and every module named, and neither optimizer nor label nor a whole model’s config.json', async () => {
    const from = await checkpoint();
    const { written } = await exportCheckpoint({ from, adapter: out(), base: 'someone/tiny' });
    const files = ['adapter_config.json', 'adapter_model.safetensors', 'tokenizer.json'];
    expect((await readdir(out())).toSorted()).toEqual(files);
    expect(JSON.parse(await readFile(join(out(), 'adapter_config.json'), 'utf8'))).toEqual({
      ...CONFIG,
      target_modules: ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'],
      ...{ base_model_name_or_path: 'someone/tiny', inference_mode: true, lora_dropout: 0 },
    });
    const file = 'adapter_model.safetensors';
    expect(await readSafetensors(join(out(), file))).toEqual(await readSafetensors(join(from, file)));
    await checkModelFolder(out());
    expect(written).toEqual([{ kind: 'adapter', path: out(), tensors: 28, bytes: expect.any(Number) }]);
  });

  it('of a run directory is of its best checkpoint, or else of its last, and says which', async () => {
    const run = at('run');
    for (const step of ['step-000002', 'step-000004']) await checkpoint({ name: `run/checkpoints/${step}` });
    const folder = (step: number): string => join(run, `checkpoints/step-00000${step}`);
    expect(await exportCheckpoint({ from: run, adapter: out('a') })).toMatchObject({ folder: folder(4), chosen: 'last' });
    await writeFile(join(run, 'events.jsonl'), '{"type":"done","best":{"step":2}}\n');
    expect(await exportCheckpoint({ from: run, adapter: out('b') })).toMatchObject({ folder: folder(2), chosen: 'best' });
    expect(await exportCheckpoint({ from: folder(4), adapter: out('c') })).toMatchObject({ chosen: 'given' });
  });
});

/** As the library has it that others read such files with. */
async function readGguf(path: string) {
  await using file = await open(path);
  const { metadata, tensors } = await readGgufHeader(file, path);
  const bytes = await readFile(path);
  const numbers = tensors.map(({ name, dimensions, type, start }) => {
    expect([type, start % 32], name).toEqual(['F32', 0]);
    const length = dimensions.reduce((product, n) => product * n, 1);
    return [name, { dimensions, data: Array.from({ length }, (_, i) => bytes.readFloatLE(start + 4 * i)) }] as const;
  });
  return { fields: Object.fromEntries(metadata), tensors: new Map(numbers), bytes: bytes.length };
}

it('the adapter as a GGUF file has llama.cpp’s names, dimensions and values', async () => {
  const tensors = loraTensors();
  const { written } = await exportCheckpoint({ from: await checkpoint({ tensors }), ggufAdapter: out('a.gguf') });
  const found = await readGguf(out('a.gguf'));
  const kind = { 'general.type': 'adapter', 'general.architecture': 'llama', 'adapter.type': 'lora' };
  expect(found.fields).toMatchObject({ version: 3, ...kind, 'adapter.lora.alpha': ALPHA });
  expect(written).toEqual([{ kind: 'gguf-adapter', path: out('a.gguf'), tensors: 28, bytes: found.bytes }]);
  const names = { v_proj: 'attn_v', o_proj: 'attn_output', gate_proj: 'ffn_gate', up_proj: 'ffn_up', down_proj: 'ffn_down' };
  for (const layer of [0, 1]) {
    for (const [module, name] of Object.entries({ q_proj: 'attn_q', k_proj: 'attn_k', ...names })) {
      for (const letter of ['A', 'B']) {
        const theirs = tensors.find((one) => one.name.endsWith(`${layer}.${folderOf(module)}.${module}.lora_${letter}.weight`))!;
        const ours = found.tensors.get(`blk.${layer}.${name}.weight.lora_${letter.toLowerCase()}`)!;
        expect(ours.dimensions).toEqual([...theirs.shape].reverse());
        const isPermuted = letter === 'B' && ['q_proj', 'k_proj'].includes(module);
        expect(ours.data).toEqual(isPermuted ? rotatedAsNeighbours(theirs) : [...theirs.data]);
      }
    }
  }
});

it.each(['qwen2', 'qwen3'])('a GGUF file of %s keeps the rows of query and key', async (model_type) => {
  const tensors = loraTensors();
  await exportCheckpoint({ from: await checkpoint({ tensors, base: { ...BASE, model_type } }), ggufAdapter: out('a.gguf') });
  const found = await readGguf(out('a.gguf'));
  expect(found.fields['general.architecture']).toBe(model_type);
  const theirs = tensors.find(({ name }) => name.endsWith('0.self_attn.q_proj.lora_B.weight'))!;
  expect(found.tensors.get('blk.0.attn_q.weight.lora_b')!.data).toEqual([...theirs.data]);
});

const folderOf = (module: string): string => (/^[qkvo]_/.test(module) ? 'self_attn' : 'mlp');

/** By heads of 4 rows: 0, 1, 2, 3 become 0, 2, 1, 3. */
function rotatedAsNeighbours({ shape, data }: Tensor): number[] {
  const [rows, width] = shape as [number, number];
  const order = Array.from({ length: rows / 4 }, (_, head) => [0, 2, 1, 3].map((row) => 4 * head + row)).flat();
  return order.flatMap((row) => [...data.subarray(row * width, (row + 1) * width)]);
}

/** A base model as Hugging Face keeps it. */
const baseTensors = [
  ...[tensor('model.embed_tokens.weight', 12, 8), tensor('model.norm.weight', 8)],
  ...[0, 1].flatMap((layer) => [
    ...['input_layernorm', 'post_attention_layernorm'].map((name) => tensor(`model.layers.${layer}.${name}.weight`, 8)),
    ...Object.entries(MODULES).map(([module, shape]) => tensor(`model.layers.${layer}.${module}.weight`, ...shape)),
  ]),
];
async function baseFolder(name = 'base', config: object = BASE): Promise<string> {
  const dir = at(name);
  await mkdir(dir);
  await writeFile(join(dir, 'config.json'), JSON.stringify(config));
  await writeSafetensors(join(dir, 'model.safetensors'), baseTensors, { format: 'pt' });
  for (const name of ['tokenizer.json', 'generation_config.json']) await writeFile(join(dir, name), `{"${name}":"of the base"}`);
  return dir;
}

describe('a base whose chat template leaves tools out', () => {
  const models = fileURLToPath(new URL('../../models/base', import.meta.url));

  it('gets one that writes them: in the folders, and beside the GGUF file', async () => {
    const base = await baseFolder();
    const from = await checkpoint({ config: { ...CONFIG, base_model_name_or_path: base } });
    for (const name of ['tokenizer.json', 'tokenizer_config.json']) await copyFile(join(models, name), join(from, name));
    await writeFile(join(from, 'chat_template.jinja'), toollessTemplate);
    const request = { from, adapter: out('a'), merged: out('m'), ggufAdapter: out('shop.gguf') };
    const { written } = await exportCheckpoint(request);
    expect(written.at(-1)).toMatchObject({ kind: 'chat-template', path: out('shop.jinja') });
    const texts = ['shop.jinja', 'a/chat_template.jinja', 'm/chat_template.jinja'].map((name) => readFile(out(name), 'utf8'));
    const [beside, ...inside] = await Promise.all(texts);
    expect(beside).toMatch(/<tool_response>[\s\S]*<tools>/);
    expect(beside!.endsWith(toollessTemplate)).toBe(true);
    expect(inside).toEqual([beside, beside]);
    await rm(out('shop.gguf'));
    await expect(exportCheckpoint({ from, ggufAdapter: out('shop.gguf') })).rejects.toThrow('shop.jinja already exists');
    expect(existsSync(out('shop.gguf'))).toBe(false);
  });

  it('and one that writes them stays as it is', async () => {
    const from = await checkpoint();
    for (const name of ['tokenizer.json', 'tokenizer_config.json']) await copyFile(join(models, name), join(from, name));
    await exportCheckpoint({ from, ggufAdapter: out('shop.gguf') });
    expect(await leftovers()).toEqual(['shop.gguf']);
  });
});

describe('the whole model as a Hugging Face folder', () => {
  /** W + (alpha / rank) · B A, entry by entry. */
  function expected({ name, shape, data }: Tensor, lora: readonly Tensor[]): number[] {
    const of = (letter: string) =>
      lora.find((one) => one.name === `base_model.model.${name.replace('weight', `lora_${letter}.weight`)}`);
    const [a, b] = [of('A'), of('B')];
    if (a === undefined || b === undefined) return [...data];
    return [...data].map((value, i) => {
      const [row, column] = [Math.floor(i / shape[1]!), i % shape[1]!];
      const products = Array.from({ length: RANK }, (_, r) => b.data[row * RANK + r]! * a.data[r * shape[1]! + column]!);
      return value + (ALPHA / RANK) * products.reduce((sum, one) => sum + one, 0);
    });
  }

  it.each<[Dtype | undefined, number, string]>([
    [undefined, 2 ** -24, 'float32'],
    ['f16', 2 ** -11, 'float16'],
    ['bf16', 2 ** -8, 'bfloat16'],
  ])('of dtype %s is the base plus the adapter, each weight rounded once', async (dtype, unit, named) => {
    const tensors = loraTensors();
    const base = await baseFolder('base', { ...BASE, torch_dtype: 'float32' });
    const from = await checkpoint({ tensors, config: { ...CONFIG, base_model_name_or_path: base } });
    const { written } = await exportCheckpoint({ from, merged: out(), ...(dtype && { dtype }) });
    expect(written).toMatchObject([{ kind: 'merged', path: out(), tensors: baseTensors.length, dtype: dtype ?? 'f32' }]);
    const found = await readSafetensors(join(out(), 'model.safetensors'));
    expect([...found.tensors.keys()].toSorted()).toEqual(baseTensors.map(({ name }) => name).toSorted());
    for (const one of baseTensors) {
      const { shape, data } = found.tensors.get(one.name)!;
      expect(shape).toEqual(one.shape);
      const exact = expected(one, tensors);
      const apart = [...data].map((value, i) => Math.abs(value - exact[i]!) / Math.abs(exact[i]!));
      expect(Math.max(...apart)).toBeLessThanOrEqual(unit);
    }
    expect(JSON.parse(await readFile(join(out(), 'config.json'), 'utf8'))).toEqual({ ...BASE, dtype: named });
    expect((await readdir(out())).toSorted()).toEqual(WHOLE);
    expect(await readFile(join(out(), 'tokenizer.json'), 'utf8'), 'the checkpoint’s own').toContain('is the tokenizer');
  });

  it('of a checkpoint of all parameters is what it holds, without optimizer and label', async () => {
    const from = await baseFolder('checkpoint');
    for (const name of ['optimizer.safetensors', 'checkpoint.json']) await writeFile(join(from, name), 'more');
    await exportCheckpoint({ from, merged: out() });
    const [ours, theirs] = await Promise.all([out(), from].map((dir) => readSafetensors(join(dir, 'model.safetensors'))));
    expect(ours!.tensors).toEqual(theirs!.tensors);
    expect((await readdir(out())).toSorted()).toEqual(WHOLE);
  });

  const inMemory = (tensors: readonly Tensor[]): ModelSource => ({
    ...{ path: 'memory', fields: {}, metadata: {}, files: [], [Symbol.asyncDispose]: async () => {} },
    shapes: new Map(tensors.map(({ name, shape }) => [name, shape])),
    rows: async (name, first, count) => {
      const { shape, data } = tensors.find((one) => one.name === name)!;
      const width = shape[1] ?? 1;
      return data.slice(first * width, (first + count) * width);
    },
  });
  const plain = { pairs: new Map(), scale: 0, dtype: 'f32' } as const;

  it('has several files and their index where one would be too large', async () => {
    await mkdir(out());
    await writeMerged(out(), { ...plain, source: inMemory(baseTensors) }, 2000);
    const names = (await readdir(out())).filter((name) => name.endsWith('.safetensors'));
    expect(names).toEqual([1, 2, 3].map((i) => `model-0000${i}-of-00003.safetensors`));
    const index = JSON.parse(await readFile(join(out(), 'model.safetensors.index.json'), 'utf8'));
    const bytes = baseTensors.reduce((sum, { data }) => sum + data.byteLength, 0);
    expect(index.metadata.total_size).toBe(bytes);
    for (const { name, data } of baseTensors) {
      const { tensors } = await readSafetensors(join(out(), index.weight_map[name]));
      expect(tensors.get(name)!.data).toEqual(data);
    }
  });

  it('holds every f16 and bf16 exactly, and rounds to nearest, ties to even', async () => {
    const values = [0, -0, 1, -1.5, 65504, -65519, 2 ** -14, 2 ** -24, 2 ** -25, 3 * 2 ** -25, 2 ** -26, 1023.5 * 2 ** -24];
    const ties = [1 + 2 ** -11, 1 + 3 * 2 ** -11, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -8 + 2 ** -20, Math.E];
    const all = { name: 'x', shape: [values.length + ties.length], data: Float32Array.from([...values, ...ties]) };
    await mkdir(out());
    await writeMerged(out(), { ...plain, dtype: 'f16', source: inMemory([all]) });
    const file = await readFile(join(out(), 'model.safetensors'));
    const bits = Array.from({ length: all.data.length }, (_, i) => file.readUInt16LE(file.length - 2 * (all.data.length - i)));
    const f16 = [0, 0x8000, 0x3c00, 0xbe00, 0x7bff, 0xfbff, 0x0400, 1, 0, 2, 0, 0x0400];
    expect(bits).toEqual([...f16, 0x3c00, 0x3c02, 0x3c04, 0x3c0c, 0x3c04, 0x4170]);
    await mkdir(out('b'));
    await writeMerged(out('b'), { ...plain, dtype: 'bf16', source: inMemory([all]) });
    const { data } = (await readSafetensors(join(out('b'), 'model.safetensors'))).tensors.get('x')!;
    expect([...data.slice(-4)]).toEqual([1, 1 + 4 * 2 ** -8, 1 + 2 ** -7, 2.71875]);
  });

  it('refuses a value that the format cannot hold, and what is NaN', async () => {
    await mkdir(out());
    const one = (value: number): ModelSource => inMemory([{ name: 'x', shape: [1], data: Float32Array.of(value) }]);
    const writing = (value: number, to: string) => writeMerged(at(to), { ...plain, dtype: 'f16', source: one(value) });
    for (const to of ['a', 'b']) await mkdir(at(to));
    await expect(writing(65520, 'a')).rejects.toMatchObject({ code: 'MODEL_INVALID', hint: 'give --dtype f32' });
    await expect(writing(Number.NaN, 'b')).rejects.toMatchObject(refusal('MODEL_INVALID', 'NaN'));
  });

  it('is not there at all if it is interrupted, or if the base is cut off', async () => {
    const base = await baseFolder();
    const from = await checkpoint({ config: { ...CONFIG, base_model_name_or_path: base } });
    const stopped = exportCheckpoint({ from, merged: out() }, AbortSignal.abort(new Error('stopped')));
    await expect(stopped).rejects.toThrow('stopped');
    await truncate(join(base, 'model.safetensors'), 3000);
    await expect(exportCheckpoint({ from, merged: out() })).rejects.toMatchObject({ code: 'SAFETENSORS_INVALID' });
    expect((await readdir(at())).toSorted()).toEqual(['base', 'checkpoint']);
  });

  it('is refused if the base changed since, unless the base is named', async () => {
    const base = await baseFolder();
    const digest = hash('sha256', await readFile(join(base, 'model.safetensors')), 'hex');
    const from = await checkpoint({ config: { ...CONFIG, base_model_name_or_path: base }, digest });
    expect(await exportCheckpoint({ from, merged: out('a') })).toMatchObject({ base, isTrainedBase: true });
    await writeSafetensors(join(base, 'model.safetensors'), baseTensors, { changed: 'since' });
    const changed = refusal('CHECKPOINT_MISMATCH', 'changed since');
    await expect(exportCheckpoint({ from, merged: out('b') })).rejects.toMatchObject(changed);
    expect(await exportCheckpoint({ from, merged: out('b'), base })).toMatchObject({ base, isTrainedBase: false });
  });

  it('is refused with another base than the adapter’s', async () => {
    const other = at('other');
    await mkdir(other);
    const fewer = baseTensors.filter(({ name }) => !name.includes('layers.1'));
    await writeSafetensors(join(other, 'model.safetensors'), fewer, {});
    await writeFile(join(other, 'config.json'), JSON.stringify({ ...BASE, num_hidden_layers: 1 }));
    const wrong = exportCheckpoint({ from: await checkpoint(), merged: out(), base: other });
    await expect(wrong).rejects.toMatchObject(refusal('CHECKPOINT_MISMATCH', 'no such module'));
  });
});

describe('what cannot be exported is refused by name, and nothing is written', () => {
  const all = { adapter: 'out', ggufAdapter: 'out.gguf' };
  const refuses = async (from: string, expected: object): Promise<void> => {
    const request = { from, adapter: out(all.adapter), ggufAdapter: out(all.ggufAdapter) };
    await expect(exportCheckpoint(request)).rejects.toMatchObject(expected);
    expect(await leftovers()).toEqual([]);
  };

  it.each<[string, Given, string]>([
    ['another kind of adapter', { config: { ...CONFIG, peft_type: 'IA3' } }, 'peft_type'],
    ['another scale', { config: { ...CONFIG, use_rslora: true } }, 'use_rslora'],
    ['ranks by module', { config: { ...CONFIG, rank_pattern: { q_proj: 4 } } }, 'rank_pattern'],
    ['an adapter that PEFT computes otherwise', { config: { ...CONFIG, use_qalora: true } }, 'use_qalora'],
    ['biases', { config: { ...CONFIG, bias: 'all' } }, 'bias'],
    ['no rank', { config: { ...CONFIG, r: undefined } }, 'r is missing'],
    ['another rank', { config: { ...CONFIG, r: 3 } }, 'expected [3, inputs] and [outputs, 3]'],
    ['half a pair', { tensors: loraTensors().slice(1) }, 'layers.0.self_attn.q_proj has only one of lora_A and lora_B'],
    ['an adapted head', { tensors: [tensor('base_model.model.lm_head.lora_A.weight', 2, 8)] }, 'holds base_model.model.lm_head'],
    ['no tensors', { tensors: [] }, 'it holds no tensors'],
    ['NaN', { tensors: loraTensors().map((one) => ({ ...one, data: one.data.fill(Number.NaN) })) }, 'NaN'],
  ])('%s', async (_, given, message) => {
    await refuses(await checkpoint(given), refusal('MODEL_INVALID', message));
  });

  it('an adapter of another model', async () => {
    const deeper = await checkpoint({ tensors: loraTensors(3) });
    await refuses(deeper, refusal('CHECKPOINT_MISMATCH', 'has no such module'));
    const wider = await checkpoint({ base: { ...BASE, intermediate_size: 16 } });
    await refuses(wider, refusal('CHECKPOINT_MISMATCH', /gate_proj of \[12, 8\], but .* has \[16, 8\]/));
  });

  it('a file that ends early', async () => {
    const from = await checkpoint();
    await truncate(join(from, 'adapter_model.safetensors'), 5000);
    await refuses(from, refusal('SAFETENSORS_INVALID', 'truncated'));
  });

  it('a whole model, weights at a server, a folder without either, and none', async () => {
    const dir = at('checkpoint');
    await mkdir(dir);
    await refuses(dir, { code: 'FILE_NOT_FOUND' });
    await writeFile(join(dir, 'config.json'), JSON.stringify(BASE));
    await refuses(dir, { code: 'MODEL_INVALID', hint: expect.stringContaining('--merged <dir> only') });
    await writeFile(join(dir, 'tinker.json'), '{}');
    await refuses(dir, refusal('CHECKPOINT_MISMATCH', 'tinker.json'));
    await refuses(at('nowhere'), { code: 'FILE_NOT_FOUND' });
  });

  it('without a flag that says what to write', async () => {
    await expect(exportCheckpoint({ from: await checkpoint() })).rejects.toMatchObject({ code: 'USAGE' });
  });

  it('an adapter whose base is not here; --base says where it is', async () => {
    const from = await checkpoint({ base: null });
    await refuses(from, refusal('FILE_NOT_FOUND', '/models/tiny'));
    await exportCheckpoint({ from, ggufAdapter: out('a.gguf'), base: await baseFolder() });
    expect(existsSync(out('a.gguf'))).toBe(true);
  });
});

it('the place to write to is never written over; an empty folder and what a killed export left are no obstacle', async () => {
  const from = await checkpoint();
  const file = join(out(), 'mine.txt');
  await mkdir(out());
  await mkdir(`${out()}.unfinished`);
  await exportCheckpoint({ from, adapter: out(), ggufAdapter: out('deep/a.gguf') });
  expect(await readdir(out())).toContain('adapter_config.json');
  await copyFile(join(from, 'tokenizer.json'), file);
  const taken = refusal('USAGE', 'already exists');
  await expect(exportCheckpoint({ from, adapter: out() })).rejects.toMatchObject(taken);
  await expect(exportCheckpoint({ from, ggufAdapter: out('deep/a.gguf'), adapter: out('b') })).rejects.toMatchObject(taken);
  expect((await readdir(at())).toSorted()).toEqual(['checkpoint', 'deep', 'out', 'out.unfinished']);
});

it('an adapter that was trained here gives the same log-probabilities when it is merged', async () => {
  const dir = fileURLToPath(new URL('../../models/base', import.meta.url));
  const [folder, row] = [at('trained'), Int32Array.from({ length: 40 }, (_, i) => (i * 37) % 300)];
  await mkdir(folder);
  const sample: Sample = {
    ...{ tokens: row, temperature: 1, weight: 1, rolloutId: 'r', groupId: 'g', logprobs: new Float32Array(row.length) },
    ...{ mask: new Uint8Array(row.length).fill(1, 1), versions: new Int32Array(row.length) },
    advantages: new Float32Array(row.length).fill(1 / row.length, 1),
  };
  const trained = await (async () => {
    await using model = await EmbeddedModel.open({ dir, threads: 1, lora: { rank: 4, alpha: 8, targets: LORA_TARGETS } });
    const [before] = await model.forward([sample]);
    for (let step = 0; step < 3; step++) {
      await model.forwardBackward([sample], crossEntropy());
      await model.optimStep({ learningRate: 1e-2, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 });
    }
    await model.save(folder);
    const [after] = await model.forward([sample]);
    expect(Math.max(...after!.map((value, i) => Math.abs(value - before![i]!)))).toBeGreaterThan(0.5);
    return after!;
  })();
  const exported = await exportCheckpoint({ from: folder, merged: out(), ggufAdapter: out('a.gguf'), adapter: out('peft') });
  expect(exported).toMatchObject({ base: dir.replace(/\/$/, ''), isTrainedBase: true });
  await using merged = await EmbeddedModel.open({ dir: out(), threads: 1 });
  const [found] = await merged.forward([sample]);
  expect(Math.max(...found!.map((value, i) => Math.abs(value - trained[i]!)))).toBeLessThan(1e-4);
});
