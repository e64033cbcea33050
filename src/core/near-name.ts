/** Which of the names that there are was most likely meant by one that there is not. What is given under no known name is never ignored. */
import { type ErrorCode, TrainyardError } from './errors.ts';

/** Differences that a slip of the fingers makes. */
const MOST_SLIPS = 2;

/** The nearest of `known`, whatever its case; undefined where none is near. A short name must be nearer: two slips make any of it. */
export function nearName(name: string, known: readonly string[]): string | undefined {
  const given = name.toLowerCase();
  const near = known
    .map((one) => ({ one, slips: slips(one.toLowerCase(), given) }))
    .filter(({ one, slips }) => slips <= Math.min(MOST_SLIPS, Math.floor(one.length / 2)))
    .toSorted((a, b) => a.slips - b.slips);
  return near[0]?.one;
}

/** One fault for each option that there is not. Values are not repeated: they may be secrets. `whose` begins each. */
export function unknownOptions(given: object, names: readonly string[], whose = 'it'): readonly string[] {
  return Object.keys(given)
    .filter((name) => !names.includes(name))
    .map((name) => {
      const meant = nearName(name, names);
      return `${whose} has no option ${name}, ${meant === undefined ? `expected ${names.join(', ')}` : `did you mean ${meant}?`}`;
    });
}

/** Throws for options that there are not. */
export function checkNames(given: object, names: readonly string[], whose: string, code: ErrorCode = 'USAGE'): void {
  const unknown = unknownOptions(given, names, whose);
  if (unknown.length > 0) throw new TrainyardError(code, unknown.join('; also: '));
}

/** Throws for a field or method that is one of ours but for case and underscores, as Python would write it. Others are the author's own. */
export function checkedFields<T extends object>(instance: T, ours: readonly string[]): T {
  const plain = (text: string): string => text.replaceAll(/(?<!^)_/g, '').toLowerCase();
  for (const field of [...Object.keys(instance), ...Object.getOwnPropertyNames(Object.getPrototypeOf(instance))]) {
    const meant = ours.find((one) => one !== field && plain(one) === plain(field));
    if (meant === undefined) continue;
    throw new TrainyardError('WORKFLOW_INVALID', `${instance.constructor.name} has ${field}, did you mean ${meant}?`);
  }
  return instance;
}

/** Letters to change, add, leave out or swap; counted to one more than are looked for. */
function slips(a: string, b: string): number {
  if (Math.abs(a.length - b.length) > MOST_SLIPS) return MOST_SLIPS + 1;
  let [before, row]: [number[], number[]] = [[], Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      next[j] = Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + same);
      const isSwap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (isSwap) next[j] = Math.min(next[j]!, before[j - 2]! + 1);
    }
    [before, row] = [row, next];
  }
  return row[b.length]!;
}
