/** Rows of a task file as people write them, such as `3,7,10-20`, counted from 1. */
import { TrainyardError } from '../core/errors.ts';

type Range = readonly [first: number, last: number];

/** Normalizes rows such as `3,7,10-20`, counted from 1: sorted and without duplicates. Throws USAGE with all problems. */
export function tidyRows(text: string): string {
  const ranges = rangesIn(text);
  return ranges.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(',');
}

/** Row numbers, ascending. Throws USAGE if the file has fewer rows. */
export function rowsOf(text: string | undefined, rows: number): readonly number[] {
  const ranges = text === undefined ? ([[1, rows]] as const) : rangesIn(text);
  const last = ranges.at(-1)?.[1] ?? 0;
  if (last > rows) {
    throw new TrainyardError(
      'USAGE',
      `rows: expected rows from 1 to ${rows}, the last of the file, found ${last}`,
      'give --rows numbers and ranges such as 3,7,10-20',
    );
  }
  return ranges.flatMap(([first, end]) => Array.from({ length: end - first + 1 }, (_, i) => first + i));
}

/** Ascending, without overlaps. */
function rangesIn(text: string): readonly Range[] {
  const found = text.split(',').map((part) => rangeIn(part.trim()));
  const problems = found.filter((range) => typeof range === 'string');
  if (problems.length > 0) {
    throw new TrainyardError('USAGE', `rows: ${problems.join('; ')}`, 'give --rows numbers and ranges from 1, such as 3,7,10-20');
  }
  const merged: [number, number][] = [];
  for (const [first, last] of (found as Range[]).toSorted(([a], [b]) => a - b)) {
    const before = merged.at(-1);
    if (before !== undefined && first <= before[1] + 1) before[1] = Math.max(before[1], last);
    else merged.push([first, last]);
  }
  return merged;
}

function rangeIn(part: string): Range | string {
  const parsed = /^(\d{1,15})(?:\s*-\s*(\d{1,15}))?$/.exec(part);
  if (parsed === null) return `expected a row or a range of rows, found ${JSON.stringify(part)}`;
  const first = Number(parsed[1]);
  const last = Number(parsed[2] ?? parsed[1]);
  if (first === 0) return `rows are counted from 1, found ${JSON.stringify(part)}`;
  return first > last ? `${first} to ${last} is the wrong way round` : [first, last];
}
