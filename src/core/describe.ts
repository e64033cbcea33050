/**
 * Text for messages: short descriptions of foreign values (what a grader returned, threw or printed), and complaints about unknown names.
 * Text is bounded and has no control characters, because a grader may print what the policy wrote, and it ends up on a terminal. Describing
 * a value never throws.
 */
import { inspect } from 'node:util';
import type { ErrorCode } from './error-codes.ts';
import { nearName, TrainyardError } from './errors.ts';

const VALUE_CHARS = 200;
const THROWN_CHARS = 1_000;

/** C0 (except tab and newline), DEL and C1 controls, Unicode line separators, and bidirectional overrides. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
export const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g;

export function printable(text: string): string {
  return text.replace(CONTROL, '');
}

/** Shows a newline as ⏎ and any other control character as a dot. */
export function printableLine(text: string): string {
  return text.replaceAll('\n', '⏎').replace(CONTROL, '·').replaceAll('\t', '·');
}

export function shortLine(text: string, chars: number): string {
  return printableLine(text.length > chars ? `${text.slice(0, chars)}…` : text);
}

/** What is wrong with the base URL of a model server, without repeating it: it may hold a key. */
export function baseURLFault(given: unknown): string | undefined {
  const url = typeof given === 'string' ? URL.parse(given) : null;
  if (url === null || !/^https?:$/.test(url.protocol)) return 'expected a URL that begins with http:// or https://';
  if (url.username !== '' || url.password !== '') return 'expected a URL without user and password';
  return url.search === '' && url.hash === '' ? undefined : 'expected a URL without ? and #: a path is added to it';
}

export function kindOf(value: unknown): string {
  return Object.prototype.toString.call(value).slice(8, -1);
}

export function describeValue(value: unknown): string {
  try {
    const options = { depth: 1, breakLength: Number.POSITIVE_INFINITY, maxStringLength: VALUE_CHARS };
    return shortened(inspect(value, options), VALUE_CHARS);
  } catch {
    return `a ${typeof value} that cannot be shown`;
  }
}

/** Includes the first stack frame of an Error. */
export function describeThrown(thrown: unknown): string {
  try {
    if (!(thrown instanceof Error)) return `a value that is not an Error: ${describeValue(thrown)}`;
    const place = /^\s+(at .*)$/m.exec(thrown.stack ?? '')?.[1];
    const text = shortened(`${thrown.name}: ${thrown.message}`, THROWN_CHARS);
    return place === undefined ? text : `${text} (${shortened(place, VALUE_CHARS)})`;
  } catch {
    return 'an Error that cannot be shown';
  }
}

export function shortened(text: string, chars: number): string {
  const clean = printable(text);
  return clean.length <= chars ? clean : `${clean.slice(0, chars)}…`;
}

/** Returns one message per unknown option, starting with `whose`. Does not repeat values, which may be secrets. */
export function unknownOptions(given: object, names: readonly string[], whose = 'it'): readonly string[] {
  return Object.keys(given)
    .filter((name) => !names.includes(name))
    .map((name) => {
      const meant = nearName(name, names);
      return `${whose} has no option ${name}, ${meant === undefined ? `expected ${names.join(', ')}` : `did you mean ${meant}?`}`;
    });
}

export function checkNames(given: object, names: readonly string[], whose: string, code: ErrorCode = 'USAGE'): void {
  const unknown = unknownOptions(given, names, whose);
  if (unknown.length > 0) throw new TrainyardError(code, unknown.join('; also: '));
}

/**
 * Makes reading our names in snake case, and a row's answer, throw and say what to write. These names are hidden from loops and copies.
 * `instead`: who is given the answer.
 */
export function refusing<T extends object>(given: T, whose: string, ours: readonly string[], instead: string): T {
  const snake = (name: string) => name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  const names = [
    ...ours.map((name) => [snake(name), `it is ${name} here`] as const),
    ...['answer', 'ground_truth', 'label'].map((name) => [name, `a workflow never sees it; ${instead}`] as const),
  ];
  for (const [name, why] of names.filter(([name]) => !(name in given))) {
    const get = (): never => {
      throw new TrainyardError('WORKFLOW_INVALID', `${whose} has no ${name}: ${why}`);
    };
    Object.defineProperty(given, name, { get });
  }
  return given;
}

/** Throws for a field or method that is one of ours but for case and underscores (Python style). Other fields are the author's own. */
export function checkedFields<T extends object>(instance: T, ours: readonly string[]): T {
  const plain = (text: string) => text.replaceAll(/(?<!^)_/g, '').toLowerCase();
  for (const field of [...Object.keys(instance), ...Object.getOwnPropertyNames(Object.getPrototypeOf(instance))]) {
    const meant = ours.find((one) => one !== field && plain(one) === plain(field));
    if (meant === undefined) continue;
    throw new TrainyardError('WORKFLOW_INVALID', `${instance.constructor.name} has ${field}, did you mean ${meant}?`);
  }
  return instance;
}
