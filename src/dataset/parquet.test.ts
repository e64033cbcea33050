import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { brotliCompressSync, gzipSync, zstdCompressSync } from 'node:zlib';
import fc from 'fast-check';
import type { SchemaElement } from 'hyparquet';
import { type ColumnSource, type ParquetWriteOptions, parquetWriteBuffer } from 'hyparquet-writer';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { openDataFile } from './data-file.ts';
import { readParquet } from './parquet.ts';
import { checkPages } from './parquet-check.ts';
import { decodeParquet } from './parquet-decode.ts';
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

/** A positive number, as Thrift writes it. */
const zigzag = (number: number): number[] => {
  const bytes = [];
  for (let rest = number * 2; ; rest = Math.floor(rest / 128)) {
    if (rest < 128) return [...bytes, rest];
    bytes.push((rest % 128) + 128);
  }
};

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

it('has decimals as the numbers that they are, and refuses those that no number holds', async () => {
  const decimals = (data: readonly unknown[], element: object) =>
    bytesOf(
      [
        { name: 'prompt', data: data.map((_, i) => `question ${i}`) },
        { name: 'answer', data: [...data] },
      ],
      {
        schema: [
          { name: 'root', num_children: 2 },
          { name: 'prompt', type: 'BYTE_ARRAY', converted_type: 'UTF8', repetition_type: 'REQUIRED' },
          { name: 'answer', repetition_type: 'OPTIONAL', converted_type: 'DECIMAL', ...element } as SchemaElement,
        ],
      },
    );
  // Each is another number when a whole number is multiplied by 0.1.
  const prices = [0.3, 0.6, null, -0.7, 1.2];
  const small = await read(decimals(prices, { type: 'INT32', scale: 1, precision: 9 }));
  expect(small.map(({ answer }) => answer)).toEqual(prices);
  const large = decimals([2 ** 60], { type: 'INT64', scale: 0, precision: 18 });
  await expect(read(large)).rejects.toMatchObject(refused('more digits than a number holds'));
});

it('refuses a text that is too long', async () => {
  const long = bytesOf([text('prompt', ['x'.repeat(2 ** 24 + 1)])]);
  await expect(read(long)).rejects.toMatchObject(refused('row 1: prompt: found a text of more than'));
});

it('hands rows over a few at a time where a text that the file has once is in many of them', async () => {
  const prompts = Array.from({ length: 300 }, (_, i) => `${'long '.repeat(40_000)}${i % 3}`);
  const file = join(dir, 'repeated.parquet');
  await writeFile(file, bytesOf([text('prompt', prompts)]));
  const batches = [];
  await using data = await openDataFile(file);
  for await (const batch of decodeParquet(data)) batches.push(batch.length);
  expect(batches.reduce((sum, length) => sum + length)).toBe(300);
  expect(Math.max(...batches)).toBeLessThan(100);
});

it('that is encrypted, or has another name, is refused by name', async () => {
  await expect(read(Buffer.from('PARE0000PARE'))).rejects.toMatchObject(refused('an encrypted Parquet file'));
  const file = join(dir, 'tasks.jsonl');
  await writeFile(file, bytesOf([text('prompt', ['a'])]));
  await expect(readTasks(file)).rejects.toMatchObject({
    ...refused('is a Parquet file'),
    hint: expect.stringContaining('.parquet'),
  });
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
  // The header of a page in Thrift's compact protocol: its kind, then 300 MiB unpacked, then one byte packed.
  const header = [0x15, 0, 0x15, ...zigzag(300 * 2 ** 20), 0x15, ...zigzag(1), 0];
  const column = { name: 'prompt', start: 0, end: header.length + 1, values: 1 };
  expect(() => checkPages('x.parquet', column, Uint8Array.of(...header, 0))).toThrow('bytes unpacked, expected at most');
  const lie = bytesOf([text('prompt', ['b'.repeat(5000)])], {
    codec: 'ZSTD',
    compressors: { ZSTD: () => zstdCompressSync(Buffer.alloc(64 * 2 ** 20)) },
  });
  await expect(read(lie)).rejects.toMatchObject(refused('cannot be read as Parquet'));
});

it('whose decoding never ends is given up, and the thread with it', async () => {
  const answers = Array.from({ length: 50 }, (_, i) => BigInt(i));
  const bytes = bytesOf(
    [
      text(
        'prompt',
        answers.map((i) => `p${i % 7n}`),
      ),
      { name: 'answer', data: answers, type: 'INT64' },
    ],
    {
      rowGroupSize: 20,
    },
  );
  // A header of a page whose fields are of other types: the decoder finds no rows in it, and does not get on.
  expect(bytes[102]).toBe(21);
  bytes[102] = 5;
  const file = join(dir, 'endless.parquet');
  await writeFile(file, bytes);
  await expect(readParquet(file, 1500).next()).rejects.toMatchObject(refused('was not decoded in 1500 ms'));
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
    { numRuns: 20 },
  );
});
