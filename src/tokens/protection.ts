/**
 * Keeps the text of control tokens inside user-supplied strings from becoming control tokens.
 *
 * A string at risk gets a mark around each of its visible characters before it is rendered; whatever a template joins it with,
 * no such character can then be part of a control token's text. Marks are taken out again after the split on control tokens.
 * White space is left alone, so a template's `trim` works as before. The mark is a character that nothing in the call contains.
 *
 * Strings not at risk are rendered as they are, so a template may look into them.
 */
import { TrainyardError } from '../core/errors.ts';
import { WHITE_SPACE } from './jinja.ts';

const DELETE = '\u007F';
const VISIBLE = new RegExp(`[^${WHITE_SPACE}]+`, 'gu');
const PRIVATE_USE = [
  [0xe000, 0xf8ff],
  [0xf0000, 0xffffd],
  [0x100000, 0x10fffd],
] as const;

export interface Protection {
  /** The character this call's protected strings are marked with. */
  readonly mark: string;
  protect(text: string): string;
  restore(text: string): string;
}

export interface Protector {
  /** `contents`: all that will be rendered, as one string in which no character is left out or escaped away. */
  begin(contents: string): Protection;
  /** Whether a string can take part in a control token's text. */
  atRisk(text: string): boolean;
}

/**
 * A string can only take part in a control token's text if it has that text's first or last visible character, or lies wholly
 * inside it. The latter needs a template that writes the beginning of a control token right before an inserted string.
 */
export function createProtector(controlTokens: readonly string[], template: string): Protector {
  const trimmed = controlTokens.map((token) => token.trim());
  const edges = characterClass(trimmed.flatMap((token) => [[...token][0]!, [...token].at(-1)!]));
  const gluing = trimmed.some((token) => endsInLiteral(template, token));

  const atRisk = (text: string): boolean => {
    if (edges.test(text)) return true;
    const inner = text.trim();
    return gluing && inner !== '' && trimmed.some((token) => token.includes(inner));
  };

  return {
    atRisk,
    begin(contents) {
      const mark = unusedCharacter(contents + template);
      return {
        mark,
        protect: (text) => (atRisk(text) ? text.replace(VISIBLE, (run) => mark + [...run].join(mark) + mark) : text),
        restore: (text) => text.replaceAll(mark, ''),
      };
    },
  };
}

function characterClass(characters: readonly string[]): RegExp {
  return new RegExp(`[${characters.map((character) => character.replace(/[\\\]^-]/, '\\$&')).join('')}]`, 'u');
}

/** Whether some literal text of the template stops in the middle of this control token. */
function endsInLiteral(template: string, token: string): boolean {
  for (let length = 1; length < token.length; length++) {
    const beginning = token.slice(0, length);
    if (["'", '"', '{{', '{%'].some((end) => template.includes(beginning + end))) return true;
  }
  return false;
}

/** DEL first: it is ASCII and JSON leaves it alone, so it comes through every form of `tojson`. Then the private use areas. */
function unusedCharacter(contents: string): string {
  if (!contents.includes(DELETE)) return DELETE;
  const used = new Set(contents);
  for (const [from, to] of PRIVATE_USE) {
    for (let code = from; code <= to; code++) {
      const character = String.fromCodePoint(code);
      if (!used.has(character)) return character;
    }
  }
  throw new TrainyardError('REQUEST_INVALID', 'the request holds every private-use character of Unicode', {
    hint: 'remove some of them',
  });
}
