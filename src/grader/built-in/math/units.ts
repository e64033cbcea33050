/** Units and what else is counted: the words behind a number, in one spelling. Nothing is converted: 50 cm is not 0.5 m here. */
import { NO_UNIT, UNITS } from './vocabulary.ts';
import { Unreadable } from './work.ts';

const MOST_WORDS = 6;
const POWERS: Readonly<Record<string, string>> = { square: '^2', squared: '^2', cubic: '^3', cubed: '^3' };

/** Throws `Unreadable` where the words say something of the number instead: "5 is wrong". */
export function unitOf(words: readonly string[]): string {
  const found = words.map((word) => word.toLowerCase());
  if (found.length > MOST_WORDS || found.some((word) => NO_UNIT.has(word))) throw new Unreadable('words that are no unit');
  const power = found.map((word) => POWERS[word] ?? '').join('');
  const names = found.filter((word) => !Object.hasOwn(POWERS, word) && word !== 'of');
  if (names.length === 0) throw new Unreadable('a power of no unit');
  const spelt = names.map(unitName);
  return spelt.filter((name, index) => name !== spelt[index - 1]).join(' ') + power;
}

function unitName(word: string): string {
  const single = Object.hasOwn(UNITS, word) || !/[^s]s$/.test(word) || word.length < 4 ? word : word.slice(0, -1);
  return Object.hasOwn(UNITS, single) ? UNITS[single]! : single === '/' ? 'per' : single;
}
