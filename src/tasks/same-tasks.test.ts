/** The same rows are the same tasks, whatever they are read from. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import type { TaskRow } from './rows.ts';
import { readTasks } from './tasks.ts';

const dir = sharedFolder();

/** Lone surrogates are no UTF-8, and no file can hold them. */
const text = fc.string({ unit: 'grapheme', maxLength: 12 }).filter((value) => value.isWellFormed());
const asked = text.filter((value) => value !== '' && !value.trimStart().startsWith('['));
const metadata = fc.record({
  n: fc.oneof(fc.constant(null), fc.integer(), fc.double({ noNaN: true, noDefaultInfinity: true, min: -1e9, max: 1e9 })),
  tags: fc.array(text, { maxLength: 3 }),
  deep: fc.record({ flag: fc.boolean(), name: text }),
});
const messages = fc.array(fc.record({ role: fc.constantFrom('system', 'user', 'assistant'), content: text }), {
  minLength: 1,
  maxLength: 3,
});
const columns: Record<string, fc.Arbitrary<unknown>> = {
  prompt: fc.oneof(asked, messages),
  answer: fc.oneof(text, fc.constant(null)),
  system_prompt: fc.oneof(text, fc.constant(null)),
  metadata,
};
const sets = [['prompt'], ['prompt', 'answer'], ['prompt', 'answer', 'system_prompt'], Object.keys(columns), ['metadata']];
const table = fc.constantFrom(...sets).chain((names) =>
  fc.array(fc.record(Object.fromEntries(names.map((name) => [name, columns[name] as fc.Arbitrary<unknown>]))), {
    minLength: 1,
    maxLength: 5,
  }),
);

const asCell = (value: unknown): string | null => (value === null || typeof value === 'string' ? value : JSON.stringify(value));

function csvOf(rows: readonly Record<string, unknown>[]): string {
  const names = Object.keys(rows[0] ?? {});
  const cell = (value: string | null): string => (value === null ? '' : `"${value.replaceAll('"', '""')}"`);
  return [names.join(','), ...rows.map((row) => names.map((name) => cell(asCell(row[name]))).join(','))].join('\r\n');
}

function parquetOf(rows: readonly Record<string, unknown>[]): Uint8Array {
  const names = Object.keys(rows[0] ?? {});
  const columnData = names.map((name) => {
    const isJson = name === 'metadata';
    return { name, data: rows.map((row) => (isJson ? row[name] : asCell(row[name]))), type: isJson ? 'JSON' : 'STRING' } as const;
  });
  return new Uint8Array(parquetWriteBuffer({ columnData: columnData.map((column) => ({ ...column, data: [...column.data] })) }));
}

it('JSONL, CSV, Parquet, a list and an async iterable', async () => {
  await fc.assert(
    fc.asyncProperty(table, async (generated) => {
      // -0 is no JSON.
      const rows = JSON.parse(JSON.stringify(generated)) as Record<string, unknown>[];
      const at = (name: string): string => join(dir, name);
      await writeFile(at('t.jsonl'), rows.map((row) => JSON.stringify(row)).join('\n'));
      await writeFile(at('t.csv'), csvOf(rows));
      await writeFile(at('t.parquet'), parquetOf(rows));
      const list = await readTasks(rows as TaskRow[]);
      const iterable = (async function* () {
        yield* rows as TaskRow[];
      })();
      expect(await readTasks(at('t.jsonl'))).toEqual(list);
      expect(await readTasks(at('t.csv'))).toEqual(list);
      expect(await readTasks(at('t.parquet'))).toEqual(list);
      expect(await readTasks(iterable)).toEqual(list);
    }),
    { numRuns: 15 },
  );
});
