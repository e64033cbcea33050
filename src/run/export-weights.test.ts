import { existsSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { seededRandom } from '../../models/random.ts';
import { readSafetensors, type Tensor, writeSafetensors } from '../nn/safetensors.ts';
import { exportCheckpoint } from './export-weights.ts';

const BASE = {
  ...{ architectures: ['LlamaForCausalLM'], model_type: 'llama', vocab_size: 12, hidden_size: 8, intermediate_size: 12 },
  ...{ num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, tie_word_embeddings: true },
};
const RANK = 2;
const ALPHA = 6;
const CONFIG = {
  ...{ peft_type: 'LORA', r: RANK, lora_alpha: ALPHA, lora_dropout: 0.1, bias: 'none', task_type: 'CAUSAL_LM' },
  ...{ fan_in_fan_out: false, base_model_name_or_path: '/models/tiny', target_modules: null, rank_pattern: {} },
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

let home: string;
beforeEach(async () => {
  home = await mkdtemp(join(tmpdir(), 'trainyard-export-'));
});
afterEach(() => rm(home, { recursive: true }));

interface Given {
  readonly config?: object;
  readonly tensors?: readonly Tensor[];
  readonly base?: object | null;
  readonly at?: string;
}
/** A checkpoint as a LoRA run writes it. */
async function checkpoint({ config = CONFIG, tensors = loraTensors(), base = BASE, at = 'checkpoint' }: Given = {}) {
  const dir = join(home, at);
  await mkdir(dir, { recursive: true });
  await writeFile(join(dir, 'adapter_config.json'), JSON.stringify(config));
  await writeSafetensors(join(dir, 'adapter_model.safetensors'), tensors, { format: 'pt' });
  if (base !== null) await writeFile(join(dir, 'config.json'), JSON.stringify(base));
  await writeFile(join(dir, 'tokenizer.json'), '{"it":"is the tokenizer"}');
  await writeFile(join(dir, 'optimizer.safetensors'), 'moments');
  await writeFile(join(dir, 'checkpoint.json'), 'label');
  return dir;
}
const out = (name = 'out'): string => join(home, name);
const leftovers = async (): Promise<readonly string[]> => (await readdir(home)).filter((name) => name !== 'checkpoint');

describe('the adapter as a PEFT folder', () => {
  it('has the weights as they are and every module named, and neither optimizer nor label', async () => {
    const from = await checkpoint();
    const { written } = await exportCheckpoint({ from, adapter: out(), base: 'someone/tiny' });
    expect((await readdir(out())).toSorted()).toEqual([
      ...['adapter_config.json', 'adapter_model.safetensors', 'config.json', 'tokenizer.json'],
    ]);
    expect(JSON.parse(await readFile(join(out(), 'adapter_config.json'), 'utf8'))).toEqual({
      ...CONFIG,
      target_modules: ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'],
      ...{ base_model_name_or_path: 'someone/tiny', inference_mode: true, lora_dropout: 0 },
    });
    const file = 'adapter_model.safetensors';
    expect(await readSafetensors(join(out(), file))).toEqual(await readSafetensors(join(from, file)));
    expect(written).toEqual([{ kind: 'adapter', path: out(), tensors: 28, bytes: expect.any(Number) }]);
  });

  it('of a run directory is of its best checkpoint, or else of its last, and says which', async () => {
    const run = join(home, 'run');
    for (const step of ['step-000002', 'step-000004']) await checkpoint({ at: `run/checkpoints/${step}` });
    const folder = (step: number): string => join(run, `checkpoints/step-00000${step}`);
    expect(await exportCheckpoint({ from: run, adapter: out('a') })).toMatchObject({ folder: folder(4), chosen: 'last' });
    await writeFile(join(run, 'events.jsonl'), '{"type":"done","best":{"step":2}}\n');
    expect(await exportCheckpoint({ from: run, adapter: out('b') })).toMatchObject({ folder: folder(2), chosen: 'best' });
    expect(await exportCheckpoint({ from: folder(4), adapter: out('c') })).toMatchObject({ chosen: 'given' });
  });
});

/** What this test needs of the format, written from its specification. */
function parseGguf(file: Buffer) {
  let at = 4;
  const past = (bytes: number): number => {
    at += bytes;
    return at - bytes;
  };
  const u32 = (): number => file.readUInt32LE(past(4));
  const u64 = (): number => Number(file.readBigUInt64LE(past(8)));
  const text = (): string => {
    const length = u64();
    const from = past(length);
    return file.toString('utf8', from, at);
  };
  const value = (): string | number => {
    const type = u32();
    if (type === 8) return text();
    if (type === 6) return file.readFloatLE(past(4));
    throw new Error(`type ${type}`);
  };
  const magic = file.toString('latin1', 0, 4);
  const [version, tensorCount, fieldCount] = [u32(), u64(), u64()];
  const fields = Object.fromEntries(Array.from({ length: fieldCount }, () => [text(), value()]));
  const infos = Array.from({ length: tensorCount }, () => {
    const name = text();
    const dimensions = Array.from({ length: u32() }, u64);
    return { name, dimensions, type: u32(), offset: u64() };
  });
  const start = Math.ceil(at / 32) * 32;
  const tensors = new Map(
    infos.map(({ name, dimensions, type, offset }) => {
      if (type !== 0 || offset % 32 !== 0) throw new Error(`${name}: type ${type} at ${offset}`);
      const length = dimensions.reduce((product, n) => product * n, 1);
      const data = Array.from({ length }, (_, i) => file.readFloatLE(start + offset + 4 * i));
      return [name, { dimensions, data }];
    }),
  );
  return { magic, version, fields, tensors };
}

describe('the adapter as a GGUF file', () => {
  it('has llama.cpp’s names, dimensions and values', async () => {
    const tensors = loraTensors();
    const { written } = await exportCheckpoint({ from: await checkpoint({ tensors }), ggufAdapter: out('a.gguf') });
    const file = await readFile(out('a.gguf'));
    const found = parseGguf(file);
    expect(found).toMatchObject({
      ...{ magic: 'GGUF', version: 3 },
      fields: {
        ...{ 'general.type': 'adapter', 'general.architecture': 'llama', 'adapter.type': 'lora', 'adapter.lora.alpha': ALPHA },
      },
    });
    expect(written).toEqual([{ kind: 'gguf-adapter', path: out('a.gguf'), tensors: 28, bytes: file.length }]);
    const names = { v_proj: 'attn_v', o_proj: 'attn_output', gate_proj: 'ffn_gate', up_proj: 'ffn_up', down_proj: 'ffn_down' };
    for (const layer of [0, 1]) {
      for (const [module, name] of Object.entries({ q_proj: 'attn_q', k_proj: 'attn_k', ...names })) {
        for (const letter of ['A', 'B']) {
          const theirs = tensors.find((one) =>
            one.name.endsWith(`${layer}.${folderOf(module)}.${module}.lora_${letter}.weight`),
          )!;
          const ours = found.tensors.get(`blk.${layer}.${name}.weight.lora_${letter.toLowerCase()}`)!;
          expect(ours.dimensions).toEqual([...theirs.shape].reverse());
          const isPermuted = letter === 'B' && ['q_proj', 'k_proj'].includes(module);
          expect(ours.data).toEqual(isPermuted ? rotatedAsNeighbours(theirs) : [...theirs.data]);
        }
      }
    }
  });
});

const folderOf = (module: string): string => (/^[qkvo]_/.test(module) ? 'self_attn' : 'mlp');

/** By heads of 4 rows: 0, 1, 2, 3 become 0, 2, 1, 3. */
function rotatedAsNeighbours({ shape, data }: Tensor): number[] {
  const [rows, width] = shape as [number, number];
  const order = Array.from({ length: rows / 4 }, (_, head) => [0, 2, 1, 3].map((row) => 4 * head + row)).flat();
  return order.flatMap((row) => [...data.subarray(row * width, (row + 1) * width)]);
}

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
    ['biases', { config: { ...CONFIG, bias: 'all' } }, 'bias'],
    ['no rank', { config: { ...CONFIG, r: undefined } }, '→ at r'],
    ['another rank', { config: { ...CONFIG, r: 3 } }, 'expected [3, inputs] and [outputs, 3]'],
    ['half a pair', { tensors: loraTensors().slice(1) }, 'layers.0.self_attn.q_proj has only one of lora_A and lora_B'],
    [
      'an adapted head',
      { tensors: [tensor('base_model.model.lm_head.lora_A.weight', 2, 8)] },
      'it holds base_model.model.lm_head',
    ],
    ['no tensors', { tensors: [] }, 'it holds no tensors'],
    ['NaN', { tensors: loraTensors().map((one) => ({ ...one, data: one.data.fill(Number.NaN) })) }, 'NaN'],
  ])('%s', async (_, given, message) => {
    await refuses(await checkpoint(given), { code: 'MODEL_INVALID', message: expect.stringContaining(message) });
  });

  it('an adapter of another model', async () => {
    const deeper = await checkpoint({ tensors: loraTensors(3) });
    await refuses(deeper, { code: 'CHECKPOINT_MISMATCH', message: expect.stringContaining('has no such module') });
    const wider = await checkpoint({ base: { ...BASE, intermediate_size: 16 } });
    await refuses(wider, {
      code: 'CHECKPOINT_MISMATCH',
      message: expect.stringMatching(/gate_proj of \[12, 8\], but .* has \[16, 8\]/),
    });
  });

  it('a file that ends early', async () => {
    const from = await checkpoint();
    await truncate(join(from, 'adapter_model.safetensors'), 5000);
    await refuses(from, { code: 'SAFETENSORS_INVALID', message: expect.stringContaining('truncated') });
  });

  it('a whole model, weights at a server, a folder without either, and none', async () => {
    const dir = join(home, 'checkpoint');
    await mkdir(dir);
    await refuses(dir, { code: 'FILE_NOT_FOUND' });
    await writeFile(join(dir, 'config.json'), JSON.stringify(BASE));
    await refuses(dir, { code: 'MODEL_INVALID', hint: expect.stringContaining('whole model') });
    await writeFile(join(dir, 'tinker.json'), '{}');
    await refuses(dir, { code: 'MODEL_INVALID', message: expect.stringContaining('Tinker server') });
    await refuses(join(home, 'nowhere'), { code: 'FILE_NOT_FOUND' });
  });

  it('without a flag that says what to write', async () => {
    await expect(exportCheckpoint({ from: await checkpoint() })).rejects.toMatchObject({ code: 'USAGE' });
  });

  it('a GGUF file without any config.json; with the one of --base it is written', async () => {
    const from = await checkpoint({ base: null });
    await refuses(from, { code: 'FILE_NOT_FOUND', message: expect.stringContaining('/models/tiny') });
    await mkdir(out('base'));
    await writeFile(join(out('base'), 'config.json'), JSON.stringify(BASE));
    await exportCheckpoint({ from, ggufAdapter: out('a.gguf'), base: out('base') });
    expect(existsSync(out('a.gguf'))).toBe(true);
  });
});

describe('the place to write to', () => {
  it('is never written over; an empty folder and what a killed export left are no obstacle', async () => {
    const from = await checkpoint();
    const file = join(out(), 'mine.txt');
    await mkdir(out());
    await mkdir(`${out()}.unfinished`);
    await exportCheckpoint({ from, adapter: out(), ggufAdapter: out('deep/a.gguf') });
    expect(await readdir(out())).toContain('adapter_config.json');
    await copyFile(join(from, 'tokenizer.json'), file);
    const refusal = { code: 'USAGE', message: expect.stringContaining('already exists') };
    await expect(exportCheckpoint({ from, adapter: out() })).rejects.toMatchObject(refusal);
    await expect(exportCheckpoint({ from, ggufAdapter: out('deep/a.gguf'), adapter: out('b') })).rejects.toMatchObject(refusal);
    expect((await readdir(home)).toSorted()).toEqual(['checkpoint', 'deep', 'out']);
  });
});
