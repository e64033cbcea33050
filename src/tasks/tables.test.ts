/** Tables of tasks: CSV and Parquet. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { brotliCompressSync, gzipSync, zstdCompressSync } from 'node:zlib';
import type { SchemaElement } from 'hyparquet';
import { type ColumnSource, type ParquetWriteOptions, parquetWriteBuffer } from 'hyparquet-writer';
import { describe, expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import { refusal } from '../../test/fixtures/refusal.ts';
import { readCsv } from './tables.ts';
import { readTasks } from './tasks.ts';

const refuses = (given: Promise<unknown>, message: string, hint?: string) =>
  expect(given).rejects.toMatchObject(refusal('DATASET_INVALID', message, hint));

describe('CSV', () => {
  async function* pieces(text: string, size: number): AsyncGenerator<Uint8Array> {
    const bytes = Buffer.from(text);
    for (let start = 0; start < bytes.length; start += size) yield bytes.subarray(start, start + size);
  }

  const rows = (text: string, size = 1 << 16) => Array.fromAsync(readCsv(pieces(text, size), 'tasks.csv'));

  it('reads quotes, commas and line ends inside cells, in CRLF and with a byte order mark, however the bytes are cut', async () => {
    const text = '\uFEFFprompt,answer\r\n"a, ""b""\r\nc é😀",1\r\n\r\n=SUM(A1),""\r\nplain,';
    for (const size of [1, 2, 7, 1000]) {
      expect(await rows(text, size)).toEqual([
        { kind: 'row', place: 'row 1', row: { prompt: 'a, "b"\r\nc é😀', answer: '1' } },
        { kind: 'row', place: 'row 2', row: { prompt: '=SUM(A1)', answer: '' } },
        { kind: 'row', place: 'row 3', row: { prompt: 'plain', answer: null } },
      ]);
    }
  });

  it('refuses more columns than tasks can have, at once', async () => {
    const wide = Array.from({ length: 300_000 }, (_, i) => `c${i}`).join(',');
    await expect(rows(`${wide}\n`)).rejects.toMatchObject({
      code: 'DATASET_INVALID',
      message: 'tasks.csv: expected at most 1000 columns, found 300000',
    });
  });

  it('names the row whose columns are too many or too few', async () => {
    expect(await rows('prompt,answer\na,1,2\nb\nc,3')).toEqual([
      { kind: 'bad', place: 'row 1', problem: ': expected 2 columns, got 3' },
      { kind: 'bad', place: 'row 2', problem: ': expected 2 columns, got 1' },
      expect.objectContaining({ kind: 'row', place: 'row 3' }),
    ]);
  });

  it.each([
    ['prompt,answer\na,"x\ny\nz', 'row 1: found a quote that is never closed'],
    ['prompt,answer\na,1\nab"c,2', 'row 2: found a quote inside a cell that does not begin with one'],
    ['prompt,answer\n"a"b,2', 'row 1: found text after a closing quote'],
    ['prompt,prompt\na,2', 'column "prompt" is there twice'],
    ['prompt,\na,2', 'column 2 has no name'],
  ])('refuses %j', async (text, message) => {
    for (const size of [1, 1 << 16]) {
      await refuses(rows(text.slice(0, 20_000), size), message);
    }
  });

  it('refuses what is not UTF-8, and a cell without end', async () => {
    const latin = (async function* () {
      yield Buffer.from('prompt\ncaf\xe9', 'latin1');
    })();
    await expect(Array.fromAsync(readCsv(latin, 'x.csv'))).rejects.toMatchObject({ message: 'x.csv is not UTF-8' });
    const endless = (async function* () {
      yield Buffer.from('prompt\n"');
      for (;;) yield Buffer.alloc(1 << 20, 0x61);
    })();
    await expect(Array.fromAsync(readCsv(endless, 'x.csv'))).rejects.toMatchObject({
      message: expect.stringContaining('row 1: found a row of more than'),
    });
  });

  it('takes the JSON of metadata, and of a prompt that is a list of messages', async () => {
    const text = [
      'prompt,metadata',
      '"[{""role"":""user"",""content"":""q""}]","{""k"":[1]}"',
      '"[1, 2] and so on","{""k"":[2]}"',
      'x,{SECRET',
    ].join('\n');
    const [first, second, third] = await rows(text);
    expect(first).toMatchObject({ row: { prompt: [{ role: 'user', content: 'q' }], metadata: { k: [1] } } });
    expect(second).toMatchObject({ row: { prompt: '[1, 2] and so on' } });
    expect(third).toMatchObject({ kind: 'bad', problem: expect.stringMatching(/^: metadata is not valid JSON/) });
    expect(JSON.stringify(third)).not.toContain('SECRET');
  });
});

describe('Parquet', () => {
  const dir = sharedFolder();

  const text = (name: string, data: readonly (string | null)[]): ColumnSource => ({ name, data: [...data], type: 'STRING' });

  function bytesOf(columnData: ColumnSource[], options: Partial<ParquetWriteOptions> = {}): Uint8Array {
    return new Uint8Array(parquetWriteBuffer({ columnData, ...options }));
  }

  async function read(bytes: Uint8Array) {
    const file = join(dir, 'tasks.parquet');
    await writeFile(file, bytes);
    return await readTasks(file);
  }

  it.each(['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'BROTLI', 'ZSTD'] as const)(
    'is read when compressed by %s, group by group',
    async (codec) => {
      const compressors = { GZIP: gzipSync, BROTLI: brotliCompressSync, ZSTD: zstdCompressSync };
      const prompts = Array.from({ length: 500 }, (_, i) => `What is ${i}, and what is ${i} again?`);
      const bytes = bytesOf(
        [text('prompt', prompts), { name: 'answer', data: prompts.map((_, i) => BigInt(i)), type: 'INT64' }],
        {
          codec,
          compressors,
          rowGroupSize: 100,
        },
      );
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
    await refuses(read(large), 'more digits than a number holds');
  });

  it('that is encrypted, or has another name, is refused by name', async () => {
    await refuses(read(Buffer.from('PARE0000PARE')), 'an encrypted Parquet file');
    const file = join(dir, 'tasks.jsonl');
    await writeFile(file, bytesOf([text('prompt', ['a'])]));
    await refuses(readTasks(file), 'is a Parquet file', '.parquet');
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
    await refuses(read(answers([1n, 2n ** 53n])), 'row 2: answer: expected whole numbers');
    const bytes = bytesOf([text('prompt', ['a']), { name: 'answer', data: [Uint8Array.of(0xff, 0xfe)], type: 'BYTE_ARRAY' }]);
    await refuses(read(bytes), 'not UTF-8');
  });

  it('refuses a file that was cut anywhere', async () => {
    const whole = bytesOf([text('prompt', ['a', 'b', 'c']), text('answer', ['1', '2', '3'])]);
    for (const length of [0, 3, 7, 11, whole.length >> 1, whole.length - 9, whole.length - 1]) {
      await refuses(read(whole.subarray(0, length)), 'cannot be read as Parquet');
    }
  });

  it('refuses a codec that it does not know, by name', async () => {
    const bytes = bytesOf([text('prompt', ['a'.repeat(500)])], { codec: 'LZ4', compressors: { LZ4: (page) => page.slice(1) } });
    await refuses(read(bytes), 'compression codec: LZ4');
  });
});
