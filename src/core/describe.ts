/**
 * Foreign values in words: what a grader returned, what it threw, what it printed. Text only ever grows to a bound, and control
 * characters never pass, because a grader may print what the policy wrote and the text ends on a terminal.
 *
 * Nothing here throws, whatever it is given: a value may have getters and a toString of its own.
 */
import { inspect } from 'node:util';

const VALUE_CHARS = 200;
const THROWN_CHARS = 1_000;

/** Control characters other than tab and newline: C0, DEL, C1; line ends of Unicode; what turns the direction of all that follows. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g;

export function printable(text: string): string {
  return text.replace(CONTROL, '');
}

/** On one line: a line end is shown as ⏎, any other control character as a dot. */
export function printableLine(text: string): string {
  return text.replaceAll('\n', '⏎').replace(CONTROL, '·').replaceAll('\t', '·');
}

/** A value on one line. */
export function describeValue(value: unknown): string {
  try {
    return shortened(
      inspect(value, { depth: 1, breakLength: Number.POSITIVE_INFINITY, maxStringLength: VALUE_CHARS }),
      VALUE_CHARS,
    );
  } catch {
    return `a ${typeof value} that cannot be shown`;
  }
}

/** What was thrown, and for an Error where. */
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

/** Without control characters, and at most so many. */
export function shortened(text: string, chars: number): string {
  const clean = printable(text);
  return clean.length <= chars ? clean : `${clean.slice(0, chars)}…`;
}
