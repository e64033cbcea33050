import { readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { readSafetensors, writeSafetensors } from '../../src/engines/embedded/model/safetensors.ts';
import { temporaryFolder } from '../fixtures/folder.ts';
import { REGULAR, request, SHAPES, steps } from '../fixtures/nn/models.ts';
import { refusal } from '../fixtures/refusal.ts';

let dir: string;
beforeEach(async () => {
  dir = temporaryFolder();
});

const create = (config = REGULAR) => EmbeddedModel.create({ config, seed: 1, threads: 1 });

describe('a checkpoint', () => {
  it('without optimizer state, if that is not wanted, is one to sample from', async () => {
    await using model = await create();
    await model.save(dir, { optimizer: false });
    expect((await readdir(dir)).toSorted()).toEqual(['config.json', 'model.safetensors']);
    await using again = await EmbeddedModel.open({ dir, threads: 1 });
    expect(again.weights()).toEqual(model.weights());
  });

  it('that is a device, or claims more than it holds, is refused before anything is read or allocated', async () => {
    await using model = await create();
    await model.save(dir);
    const config = JSON.parse(await readFile(join(dir, 'config.json'), 'utf8')) as object;
    await writeFile(join(dir, 'config.json'), JSON.stringify({ ...config, vocab_size: 2 ** 24, intermediate_size: 2 ** 24 }));
    await expect(EmbeddedModel.open({ dir, threads: 1 })).rejects.toMatchObject({ code: 'CHECKPOINT_MISMATCH' });
    await rm(join(dir, 'model.safetensors'));
    await symlink('/dev/zero', join(dir, 'model.safetensors'));
    const message = expect.stringContaining('model.safetensors cannot be read: it is not a regular file');
    await expect(EmbeddedModel.open({ dir, threads: 1 })).rejects.toMatchObject({ code: 'SAFETENSORS_INVALID', message });
  });

  it.each(Object.entries(SHAPES))(
    'brings back weights and optimizer byte by byte: the next step is the same (%s)',
    async (_, config) => {
      await using model = await create(config);
      await steps(model, 2);
      await model.save(dir);
      const saved = model.weights().slice();
      await steps(model, 2);

      await using again = await EmbeddedModel.open({ dir, threads: 1 });
      expect(again.config).toEqual(config);
      expect(again.weights()).toEqual(saved);
      await again.load(dir);
      await steps(again, 2);
      expect(again.weights()).toEqual(model.weights());
    },
  );

  it('starts the optimizer fresh where the folder has no state', async () => {
    await using model = await create();
    await model.save(dir);
    await rm(join(dir, 'optimizer.safetensors'));
    await steps(model, 1);
    const once = model.weights().slice();
    await model.load(dir);
    await steps(model, 1);
    expect(model.weights()).toEqual(once);
  });

  it('changes what is served only when it is published', async () => {
    await using model = await create();
    const asked = request(Int32Array.of(1, 2, 3), { maxTokens: 30 });
    const original = await model.sample(asked);
    await model.save(dir);
    await steps(model, 3);
    await model.publish(1);
    const trained = await model.sample(asked);
    await model.load(dir);
    expect(await model.sample(asked)).toEqual(trained);
    await model.publish(2);
    expect(await model.sample(asked)).toEqual({ ...original, policyVersion: 2 });
  });

  it('keeps fields of config.json that are not the model’s shape', async () => {
    await using model = await create();
    await model.save(dir);
    const path = join(dir, 'config.json');
    const json = JSON.parse(await readFile(path, 'utf8')) as object;
    await writeFile(path, JSON.stringify({ ...json, eos_token_id: 2, torch_dtype: 'bfloat16' }));
    await using again = await EmbeddedModel.open({ dir, threads: 1 });
    await again.save(dir);
    expect(JSON.parse(await readFile(path, 'utf8'))).toEqual({ ...json, eos_token_id: 2, dtype: 'float32' });
  });

  it.each(['relaxed', 'plain'] as const)('says which kernels computed it: %s', async (variant) => {
    await using model = await EmbeddedModel.create({ config: REGULAR, seed: 1, threads: 1, variant });
    const savedBy = async (): Promise<unknown> => (await readSafetensors(join(dir, 'model.safetensors'))).metadata['kernels'];
    await model.save(dir);
    expect([model.variant, await savedBy()]).toEqual([variant, variant]);
    const other = variant === 'plain' ? 'relaxed' : 'plain';
    await using again = await EmbeddedModel.open({ dir, threads: 1, variant: other });
    await again.save(dir);
    expect(await savedBy()).toBe(other);
  });

  it('is refused by a model of another shape, which stays as it was', async () => {
    await using model = await create();
    await using other = await create({ ...REGULAR, intermediateSize: 41 });
    await using deeper = await create({ ...REGULAR, layers: 3 });
    await using shallower = await create({ ...REGULAR, layers: 1 });
    await model.save(dir);
    const before = other.weights().slice();
    await expect(other.load(dir)).rejects.toThrow(
      refusal('CHECKPOINT_MISMATCH', /layers\.0\.mlp\.gate_proj\.weight of shape \[40, 32\], expected \[41, 32\]/),
    );
    expect(other.weights()).toEqual(before);
    await expect(deeper.load(dir)).rejects.toThrow(/lacks tensor model\.layers\.2/);
    await expect(shallower.load(dir)).rejects.toThrow(/holds tensor model\.layers\.1/);
  });

  it('is refused when it holds numbers that are not finite', async () => {
    await using model = await create();
    model.weights()[48 * 32 + 5] = Number.NaN;
    await model.save(dir);
    await expect(EmbeddedModel.open({ dir })).rejects.toThrow(refusal('MODEL_INVALID', 'model.layers.0.input_layernorm.weight'));
  });

  it('is refused when config.json or the weights are missing', async () => {
    await expect(EmbeddedModel.open({ dir })).rejects.toMatchObject({ code: 'MODEL_INVALID' });
    await using model = await create();
    await model.save(dir);
    await rm(join(dir, 'model.safetensors'));
    await expect(EmbeddedModel.open({ dir })).rejects.toMatchObject({ code: 'SAFETENSORS_INVALID' });
  });
});

describe('a model in several files', () => {
  /** Tensors in turn to each of three files, and the index that says so. */
  async function writeShards(model: EmbeddedModel): Promise<Record<string, string>> {
    await model.save(dir, { optimizer: false });
    const whole = join(dir, 'model.safetensors');
    const { tensors } = await readSafetensors(whole);
    await rm(whole);
    const parts = [1, 2, 3].map((n) => `model-0000${n}-of-00003.safetensors`);
    const map = Object.fromEntries([...tensors.keys()].map((name, i) => [name, parts[i % 3]!]));
    for (const part of parts) {
      const own = [...tensors.values()].filter(({ name }) => map[name] === part);
      await writeSafetensors(join(dir, part), own, { format: 'pt' });
    }
    await writeIndex(map);
    return map;
  }
  const writeIndex = (weight_map: unknown) =>
    writeFile(join(dir, 'model.safetensors.index.json'), JSON.stringify({ weight_map }));

  it('opens as if it were in one, for training, adapters and sampling', async () => {
    await using model = await create();
    await writeShards(model);
    const asked = request(Int32Array.of(1, 2, 3), { maxTokens: 20 });
    const wanted = await model.sample(asked);
    await using again = await EmbeddedModel.open({ dir, threads: 1 });
    expect(again.weights()).toEqual(model.weights());
    await using sampled = await EmbeddedModel.open({ dir, threads: 1, use: 'sampling' });
    await using adapted = await EmbeddedModel.open({ dir, threads: 1, lora: { rank: 2, alpha: 4, targets: ['v_proj'] } });
    for (const one of [again, sampled, adapted]) expect(await one.sample(asked)).toEqual(wanted);
  });

  it('is refused when a file is missing or cut off, or the index names none or one elsewhere', async () => {
    await using model = await create();
    const map = await writeShards(model);
    const [first, part] = Object.entries(map)[1]!;
    const open = () => EmbeddedModel.open({ dir, threads: 1, use: 'sampling' });
    const bytes = await readFile(join(dir, part));
    await writeFile(join(dir, part), bytes.subarray(0, -4));
    await expect(open()).rejects.toMatchObject({ code: 'SAFETENSORS_INVALID', message: expect.stringContaining(part) as string });
    await rm(join(dir, part));
    await expect(open()).rejects.toMatchObject({ code: 'SAFETENSORS_INVALID', message: expect.stringContaining(part) as string });
    await writeIndex(Object.fromEntries(Object.entries(map).filter(([, file]) => file !== part)));
    await expect(open()).rejects.toThrow(refusal('CHECKPOINT_MISMATCH', 'lacks tensor'));
    for (const elsewhere of ['../model.safetensors', '/etc/passwd', 'a\\b', '', '..']) {
      await writeIndex({ ...map, [first]: elsewhere });
      await expect(open(), elsewhere).rejects.toHaveProperty('code', expect.stringMatching(/MODEL_INVALID|SAFETENSORS_INVALID/));
    }
    for (const broken of [undefined, [], { a: 1 }]) {
      await writeIndex(broken);
      await expect(open()).rejects.toMatchObject({ code: 'MODEL_INVALID' });
    }
  });
});

/** A file of the format, with any header and data. */
function fileOf(header: unknown, data: Uint8Array): Buffer {
  const json = Buffer.from(typeof header === 'string' ? header : JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  return Buffer.concat([length, json, data]);
}

describe('a safetensors file', () => {
  const f32 = (begin: number, end: number, shape = [(end - begin) / 4]) => ({ dtype: 'F32', shape, data_offsets: [begin, end] });

  it('is read back as it was written, metadata included', async () => {
    const path = join(dir, 'x.safetensors');
    const tensors = [
      { name: 'ä', shape: [2, 2], data: Float32Array.of(1, 2, 3, 4) },
      { name: 'none', shape: [0, 7], data: new Float32Array(0) },
      { name: 'b', shape: [3], data: Float32Array.of(-0, Number.MIN_VALUE, 3e38) },
    ];
    await writeSafetensors(path, tensors, { step: '7' });
    const { tensors: read, metadata } = await readSafetensors(path);
    expect([...read.values()]).toEqual(tensors);
    expect(metadata).toEqual({ step: '7' });
  });

  it('may hold half precision', async () => {
    const bf16 = { dtype: 'BF16', shape: [3], data_offsets: [0, 6] };
    const f16 = { dtype: 'F16', shape: [5], data_offsets: [6, 16] };
    const data = new Uint16Array([0x3f80, 0xc020, 0x0000, 0x3c00, 0xc100, 0x0001, 0x7bff, 0x7c00]);
    const path = join(dir, 'x.safetensors');
    await writeFile(path, fileOf({ bf16, f16 }, new Uint8Array(data.buffer)));
    const { tensors } = await readSafetensors(path);
    expect(Array.from(tensors.get('bf16')!.data)).toEqual([1, -2.5, 0]);
    expect(Array.from(tensors.get('f16')!.data)).toEqual([1, -2.5, 2 ** -24, 65504, Number.POSITIVE_INFINITY]);
  });

  const bytes = new Uint8Array(16);
  it.each([
    ['is empty', Buffer.alloc(0), /0 bytes long/],
    ['ends in its header', fileOf({ a: f32(0, 16) }, bytes).subarray(0, 20), /truncated/],
    ['announces an absurd header', Buffer.alloc(16, 0xff), /truncated/],
    ['has a header that is not JSON', fileOf('{', bytes), /not JSON/],
    ['has a header that is a list', fileOf('[]', bytes), /not a JSON object/],
    ['ends in its data', fileOf({ a: f32(0, 16) }, bytes.subarray(3)), /describes 16 bytes of data, found 13/],
    ['has a tail', fileOf({ a: f32(0, 12) }, bytes), /describes 12 bytes of data, found 16/],
    ['has overlapping tensors', fileOf({ a: f32(0, 12), b: f32(8, 16) }, bytes), /b begins at byte 8 .* expected 12/],
    ['has a gap', fileOf({ a: f32(0, 4), b: f32(8, 16) }, bytes), /b begins at byte 8 .* expected 4/],
    ['has offsets that go backwards', fileOf({ a: f32(16, 0, [4]) }, bytes), /needs 16 bytes/],
    ['has offsets of another length than its shape', fileOf({ a: f32(0, 16, [3]) }, bytes), /needs 12 bytes/],
    ['has negative offsets', fileOf({ a: f32(-16, 0, [4]) }, bytes), /data_offsets \[-16,0\]/],
    ['has a fractional shape', fileOf({ a: f32(0, 16, [1.5]) }, bytes), /shape \[1\.5\]/],
    ['has another dtype', fileOf({ a: { ...f32(0, 16), dtype: 'I64' } }, bytes), /dtype "I64", expected F32/],
    ['has a dtype of every object', fileOf({ a: { ...f32(0, 16), dtype: 'toString' } }, bytes), /dtype "toString"/],
    ['has metadata that is not text', fileOf({ __metadata__: { a: 1 }, a: f32(0, 16) }, bytes), /__metadata__/],
  ])('is refused when it %s', async (_, file, message) => {
    const path = join(dir, 'x.safetensors');
    await writeFile(path, file);
    await expect(readSafetensors(path)).rejects.toThrow(message);
    await expect(readSafetensors(path)).rejects.toThrow(expect.objectContaining({ code: 'SAFETENSORS_INVALID' }));
  });
});
