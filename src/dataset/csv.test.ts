import fc from 'fast-check';
import { expect, it } from 'vitest';
import { readCsv, recordsOf } from './csv.ts';

async function* pieces(text: string, size: number): AsyncGenerator<Uint8Array> {
  const bytes = Buffer.from(text);
  for (let start = 0; start < bytes.length; start += size) yield bytes.subarray(start, start + size);
}

async function rows(text: string, size = 1 << 16) {
  return await all(readCsv(pieces(text, size), 'tasks.csv'));
}

const all = async <T>(source: AsyncIterable<T>): Promise<T[]> => {
  const items: T[] = [];
  for await (const item of source) items.push(item);
  return items;
};

const cellsOf = async (text: string, size = 1 << 16) =>
  (await all(recordsOf(pieces(text, size), 'tasks.csv'))).map(({ cells }) => cells);

it('reads quotes, commas and line ends inside cells, in CRLF and with a byte order mark', async () => {
  const text = '\uFEFFprompt,answer\r\n"a, ""b""\r\nc",1\r\n\r\n=SUM(A1),""\r\nplain,';
  expect(await rows(text)).toEqual([
    { kind: 'row', place: 'row 1 (line 2)', row: { prompt: 'a, "b"\r\nc', answer: '1' } },
    { kind: 'row', place: 'row 2 (line 5)', row: { prompt: '=SUM(A1)', answer: '' } },
    { kind: 'row', place: 'row 3 (line 6)', row: { prompt: 'plain', answer: null } },
  ]);
});

it('reads back whatever was written, however the bytes are cut', async () => {
  const cell = fc.oneof(fc.constant(null), fc.string({ unit: 'grapheme' }), fc.stringMatching(/^[",\r\n aé😀]*$/u));
  const table = fc.array(fc.array(cell, { minLength: 2, maxLength: 4 }), { minLength: 1, maxLength: 5 });
  await fc.assert(
    fc.asyncProperty(table, fc.integer({ min: 1, max: 7 }), fc.constantFrom('\n', '\r\n'), async (records, size, lineEnd) => {
      // A byte order mark at the very beginning is not part of the text.
      const clean = records.map((cells) => cells.map((value) => value?.replaceAll('\uFEFF', '') ?? null));
      const written = clean.map((cells) =>
        cells.map((value) => (value === null ? '' : `"${value.replaceAll('"', '""')}"`)).join(','),
      );
      expect(await cellsOf(written.join(lineEnd), size)).toEqual(clean);
    }),
  );
});

it('names the row whose columns are too many or too few', async () => {
  expect(await rows('prompt,answer\na,1,2\nb\nc,3')).toEqual([
    { kind: 'bad', place: 'row 1 (line 2)', problem: ': expected 2 columns, got 3' },
    { kind: 'bad', place: 'row 2 (line 3)', problem: ': expected 2 columns, got 1' },
    expect.objectContaining({ kind: 'row', place: 'row 3 (line 4)' }),
  ]);
});

it.each([
  ['prompt,answer\na,"x\ny\nz', 'line 2: found a quote that is never closed'],
  ['prompt,answer\na,1\nab"c,2', 'line 3: found a quote inside a cell that does not begin with one'],
  ['prompt,answer\n"a"b,2', 'line 2: found text after a closing quote'],
  ['prompt,answer\na\rb,2\n', 'line 2: found a carriage return'],
  ['prompt,prompt\na,2', 'column "prompt" is there twice'],
  ['prompt,\na,2', 'column 2 has no name'],
  [`a${',a'.repeat(100_000)}`, 'more than 4096 columns'],
])('refuses %j', async (text, message) => {
  for (const size of [1, 1 << 16]) {
    await expect(rows(text.slice(0, 20_000), size)).rejects.toMatchObject({
      code: 'DATASET_INVALID',
      message: expect.stringContaining(message),
    });
  }
});

it('refuses what is not UTF-8, and a cell without end', async () => {
  const latin = (async function* () {
    yield Buffer.from('prompt\ncaf\xe9', 'latin1');
  })();
  await expect(all(readCsv(latin, 'x.csv'))).rejects.toMatchObject({ message: 'x.csv is not UTF-8' });
  const endless = (async function* () {
    yield Buffer.from('prompt\n"');
    for (;;) yield Buffer.alloc(1 << 20, 0x61);
  })();
  await expect(all(readCsv(endless, 'x.csv'))).rejects.toMatchObject({
    message: expect.stringContaining('line 2: found a row of more than'),
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
