/**
 * One decoded row of a Parquet file as JSON. Whole numbers and decimals become numbers where those are exact, else the row is refused.
 * Times become texts (ISO 8601). Bytes that are no text are refused.
 */
import { fromCells } from './cells.ts';
import { MAX_LINE_BYTES, MAX_ROW_BYTES, type RawRow, TOO_LARGE } from './rows.ts';

export interface JsonRow {
  readonly raw: RawRow;
  /** What it takes in memory, at most. */
  readonly bytes: number;
}

/** `decimals`: the scales of the columns that have whole numbers to be divided by a power of ten. */
export function jsonRow(row: Readonly<Record<string, unknown>>, place: string, decimals: ReadonlyMap<string, number>): JsonRow {
  const reading = new CellReading(decimals);
  const cells = Object.fromEntries(Object.entries(row).map(([name, value]) => [name, reading.json(value, name)]));
  const { problem, bytes } = reading;
  if (problem === undefined) return { raw: fromCells(cells, place), bytes };
  return { raw: { kind: 'bad', place, problem }, bytes: 0 };
}

class CellReading {
  problem: string | undefined;
  bytes = 0;
  readonly #decimals: ReadonlyMap<string, number>;

  constructor(decimals: ReadonlyMap<string, number>) {
    this.#decimals = decimals;
  }

  json(value: unknown, name: string): unknown {
    if (value === undefined || value === null || this.problem !== undefined) return null;
    this.bytes += 16;
    if (typeof value === 'string') return this.#text(value, name);
    if (typeof value === 'bigint') {
      const number = Number(value);
      return Number.isSafeInteger(number) ? number : this.#refuse(name, TOO_LARGE);
    }
    if (typeof value === 'number') return this.#number(value, name);
    if (typeof value !== 'object') return value;
    if (value instanceof Date) return Number.isNaN(value.getTime()) ? this.#refuse(name, 'found no date') : value.toISOString();
    if (ArrayBuffer.isView(value)) return this.#refuse(name, 'expected text, numbers, lists or structs, found bytes');
    if (Array.isArray(value)) return value.map((item) => this.json(item, name));
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, this.json(item, `${name}.${key}`)]));
  }

  #text(text: string, name: string): string | null {
    this.bytes += 2 * text.length;
    if (text.length > MAX_LINE_BYTES) return this.#refuse(name, `found a text of more than ${MAX_LINE_BYTES} characters`);
    return this.bytes > MAX_ROW_BYTES ? this.#refuse(name, `holds more than ${MAX_ROW_BYTES / 2 ** 20} MiB`) : text;
  }

  #number(value: number, name: string): number | null {
    const scale = this.#decimals.get(name);
    if (scale === undefined) return value;
    if (!Number.isSafeInteger(value)) {
      return this.#refuse(name, 'found a decimal with more digits than a number holds; write it as text');
    }
    return Number(`${value}e-${scale}`);
  }

  #refuse(name: string, found: string): null {
    this.problem ??= `: ${name}: ${found}`;
    return null;
  }
}
