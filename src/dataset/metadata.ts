/**
 * The rules for `metadata` where a source has that column: an object with something in it in every row, no empty object inside, and under
 * one key one type in all rows. What breaks them cannot be written as a table, and mostly is a mistake of whoever made the file.
 */
import { isRecord, kindOf } from './rows.ts';

/** More are not told of one row. */
const MOST_PROBLEMS = 10;

/** What is known of one key, and of the keys of the objects under it. */
interface Known {
  type?: { readonly name: string; readonly place: string };
  readonly keys: Map<string, Known>;
}

export class MetadataRules {
  readonly #root: Known = { keys: new Map() };

  /** What is wrong with the metadata of one row. */
  problems(metadata: unknown, place: string): readonly string[] {
    if (!isRecord(metadata) || Object.keys(metadata).length === 0) {
      return [`metadata: expected an object with at least one key, found ${kindOf(metadata)}`];
    }
    const problems: string[] = [];
    walk(metadata, { known: this.#root, path: ['metadata'], place, problems });
    return problems;
  }
}

interface Walk {
  readonly known: Known;
  readonly path: readonly string[];
  readonly place: string;
  readonly problems: string[];
}

function walk(object: Readonly<Record<string, unknown>>, { known, path, place, problems }: Walk): void {
  for (const [key, value] of Object.entries(object)) {
    if (problems.length >= MOST_PROBLEMS) return;
    // Null says that there is nothing, and fits every type.
    if (value === null) continue;
    const below: Known = known.keys.get(key) ?? { keys: new Map() };
    known.keys.set(key, below);
    const here = [...path, key.slice(0, 40)];
    const name = typeOf(value);
    below.type ??= { name, place };
    if (below.type.name !== name) {
      problems.push(`${here.join('.')}: expected ${below.type.name} as on ${below.type.place}, found ${name}`);
    }
    if (Array.isArray(value)) {
      if (value.some(holdsEmpty)) problems.push(`${here.join('.')}: found an empty object in the list`);
    } else if (isRecord(value)) {
      if (Object.keys(value).length === 0) problems.push(`${here.join('.')}: found an empty object; leave it out, or write null`);
      walk(value, { known: below, path: here, place, problems });
    }
  }
}

/** Items of a list may differ in type. */
function holdsEmpty(value: unknown): boolean {
  if (Array.isArray(value)) return value.some(holdsEmpty);
  if (!isRecord(value)) return false;
  const items = Object.values(value);
  return items.length === 0 || items.some(holdsEmpty);
}

function typeOf(value: unknown): string {
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object') return 'an object';
  if (typeof value === 'string') return 'a text';
  return typeof value === 'boolean' ? 'true or false' : 'a number';
}
