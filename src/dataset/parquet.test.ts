import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { brotliCompressSync, gzipSync, zstdCompressSync } from 'node:zlib';
import fc from 'fast-check';
import { type ColumnSource, type ParquetWriteOptions, parquetWriteBuffer } from 'hyparquet-writer';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { readTasks } from './tasks.ts';

let dir = '';
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'parquet-'));
});
afterEach(() => rm(dir, { recursive: true }));

const text = (name: string, data: readonly (string | null)[]): ColumnSource => ({ name, data: [...data], type: 'STRING' });

function bytesOf(columnData: ColumnSource[], options: Partial<ParquetWriteOptions> = {}): Uint8Array {
  return new Uint8Array(parquetWriteBuffer({ columnData, ...options }));
}

async function read(bytes: Uint8Array) {
  const file = join(dir, 'tasks.parquet');
  await writeFile(file, bytes);
  return await readTasks(file);
}

const refused = (message: string) => ({ code: 'DATASET_INVALID', message: expect.stringContaining(message) });

it.each(['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'BROTLI', 'ZSTD'] as const)(
  'is read when compressed by %s, group by group',
  async (codec) => {
    const compressors = { GZIP: gzipSync, BROTLI: brotliCompressSync, ZSTD: zstdCompressSync };
    const prompts = Array.from({ length: 500 }, (_, i) => `What is ${i}, and what is ${i} again?`);
    const bytes = bytesOf([text('prompt', prompts), { name: 'answer', data: prompts.map((_, i) => BigInt(i)), type: 'INT64' }], {
      codec,
      compressors,
      rowGroupSize: 100,
    });
    const tasks = await read(bytes);
    expect(tasks.map(({ prompt }) => prompt[0]?.content)).toEqual(prompts);
    expect(tasks[499]?.answer).toBe(499);
  },
);

it('has nested lists, structs, times and JSON as JSON', async () => {
  const bytes = bytesOf([
    text('prompt', ['a', 'b']),
    {
      name: 'metadata',
      data: [
        { tags: ['x', ['y']], at: { n: 1.5 } },
        { tags: [], at: { n: 2 } },
      ],
      type: 'JSON',
    },
    { name: 'answer', data: [new Date(0), new Date(1000)], type: 'TIMESTAMP' },
  ]);
  expect(await read(bytes)).toMatchObject([
    { metadata: { tags: ['x', ['y']], at: { n: 1.5 } }, answer: '1970-01-01T00:00:00.000Z' },
    { metadata: { tags: [], at: { n: 2 } }, answer: '1970-01-01T00:00:01.000Z' },
  ]);
});

it('has messages as a list of structs', async () => {
  const columnData = [{ name: 'prompt', data: [[{ role: 'user', content: 'q' }], [{ role: 'system', content: 's' }]] }];
  const schema = [
    { name: 'root', num_children: 1 },
    { name: 'prompt', repetition_type: 'OPTIONAL', converted_type: 'LIST', num_children: 1 },
    { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
    { name: 'element', repetition_type: 'OPTIONAL', num_children: 2 },
    { name: 'role', repetition_type: 'OPTIONAL', type: 'BYTE_ARRAY', converted_type: 'UTF8' },
    { name: 'content', repetition_type: 'OPTIONAL', type: 'BYTE_ARRAY', converted_type: 'UTF8' },
  ] as const;
  expect(await read(bytesOf(columnData, { schema: [...schema] }))).toMatchObject([
    { prompt: [{ role: 'user', content: 'q' }] },
    { prompt: [{ role: 'system', content: 's' }] },
  ]);
});

it('refuses whole numbers that no number holds exactly, and bytes that are no text', async () => {
  const answers = (data: bigint[]) => bytesOf([text('prompt', data.map(String)), { name: 'answer', data, type: 'INT64' }]);
  expect(await read(answers([2n ** 53n - 1n, -(2n ** 53n) + 1n]))).toMatchObject([
    { answer: 2 ** 53 - 1 },
    { answer: 1 - 2 ** 53 },
  ]);
  await expect(read(answers([1n, 2n ** 53n]))).rejects.toMatchObject(refused('row 2: answer: expected whole numbers'));
  const bytes = bytesOf([text('prompt', ['a']), { name: 'answer', data: [Uint8Array.of(0xff, 0xfe)], type: 'BYTE_ARRAY' }]);
  await expect(read(bytes)).rejects.toMatchObject(refused('not UTF-8'));
});

it('refuses a file that was cut anywhere', async () => {
  const whole = bytesOf([text('prompt', ['a', 'b', 'c']), text('answer', ['1', '2', '3'])]);
  for (const length of [0, 3, 7, 11, whole.length >> 1, whole.length - 9, whole.length - 1]) {
    await expect(read(whole.subarray(0, length)), `${length} bytes`).rejects.toMatchObject(refused('cannot be read as Parquet'));
  }
});

it('refuses a codec that it does not know, by name', async () => {
  const bytes = bytesOf([text('prompt', ['a'.repeat(500)])], { codec: 'LZ4', compressors: { LZ4: (page) => page.slice(1) } });
  await expect(read(bytes)).rejects.toMatchObject(refused('column prompt is compressed by LZ4'));
});

it('refuses pages that claim to be huge, before they are unpacked', async () => {
  // A page of zeros whose compressor lies beforehand: what is written unpacks to 300 MiB.
  const bomb = bytesOf([text('prompt', ['a'.repeat(300 * 2 ** 20)])], { codec: 'ZSTD', compressors: { ZSTD: zstdCompressSync } });
  expect(bomb.length).toBeLessThan(2 ** 20);
  await expect(read(bomb)).rejects.toMatchObject(refused('bytes unpacked, expected at most'));
  const lie = bytesOf([text('prompt', ['b'.repeat(5000)])], {
    codec: 'ZSTD',
    compressors: { ZSTD: () => zstdCompressSync(Buffer.alloc(64 * 2 ** 20)) },
  });
  await expect(read(lie)).rejects.toMatchObject(refused('cannot be read as Parquet'));
});

it('never does anything but read or refuse, whichever bytes are damaged', async () => {
  const whole = bytesOf([text('prompt', ['a', 'b', 'c', 'a', 'b']), { name: 'answer', data: [1, 2, 3, 4, 5], type: 'INT32' }]);
  const damage = fc.array(fc.tuple(fc.nat(whole.length - 1), fc.nat(255)), { minLength: 1, maxLength: 3 });
  await fc.assert(
    fc.asyncProperty(damage, async (changes) => {
      const bytes = whole.slice();
      for (const [place, value] of changes) bytes[place] = value;
      const outcome = await read(bytes).then(
        () => 'read',
        (error: { code?: string }) => error.code,
      );
      expect(['read', 'DATASET_INVALID']).toContain(outcome);
    }),
    { numRuns: 400 },
  );
});
