/**
 * The rules for `metadata` where a source has that column: an object with something in it in every row, no empty object inside, and under
 * one key one type in all rows. What breaks them cannot be written as a table, and mostly is a mistake of whoever made the file.
 */
import { isRecord, kindOf } from './rows.ts';

export class MetadataRules {
  /** By path: the type, and the place where it was first seen. */
  readonly #types = new Map<string, { readonly type: string; readonly place: string }>();

  /** What is wrong with the metadata of one row. */
  problems(metadata: unknown, place: string): readonly string[] {
    if (!isRecord(metadata) || Object.keys(metadata).length === 0) {
      return [`metadata: expected an object with at least one key, found ${kindOf(metadata)}`];
    }
    const problems: string[] = [];
    for (const [key, value] of Object.entries(metadata)) this.#walk(value, `metadata.${key}`, place, problems);
    return problems;
  }

  #walk(value: unknown, path: string, place: string, problems: string[]): void {
    // Null says that there is nothing, and fits every type.
    if (value === null) return;
    const known = this.#types.get(path);
    const type = typeOf(value);
    if (known === undefined) this.#types.set(path, { type, place });
    else if (known.type !== type) problems.push(`${path}: expected ${known.type} as on ${known.place}, found ${type}`);
    if (Array.isArray(value)) for (const item of value) emptiesIn(item, path, problems);
    if (!isRecord(value)) return;
    if (Object.keys(value).length === 0) problems.push(`${path}: found an empty object; leave it out, or write null`);
    for (const [key, item] of Object.entries(value)) this.#walk(item, `${path}.${key}`, place, problems);
  }
}

/** Items of a list may differ in type. */
function emptiesIn(value: unknown, path: string, problems: string[]): void {
  if (Array.isArray(value)) for (const item of value) emptiesIn(item, path, problems);
  if (!isRecord(value)) return;
  const items = Object.values(value);
  if (items.length === 0) problems.push(`${path}: found an empty object in the list`);
  for (const item of items) emptiesIn(item, path, problems);
}

function typeOf(value: unknown): string {
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object') return 'an object';
  if (typeof value === 'string') return 'a text';
  return typeof value === 'boolean' ? 'true or false' : 'a number';
}
