/**
 * Written mathematics, LaTeX or plain, → tokens. Throws `Unreadable` for a command that is not known: what a macro would do is not guessed.
 *
 * A comma between groups of three digits is part of the number, unless `commas` says that it separates, or a bracket is open: (1,234) is a pair.
 */
import { CALLS } from './evaluation.ts';
import { spend, Unreadable } from './rational.ts';

// ── one spelling for characters that mean the same ───────────────────────────────────────────────────────────────────

const INVISIBLE = /[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]/g;
const SUPERSCRIPTS = /[\u2070\u00b9\u00b2\u00b3\u2074-\u207b\u207f]+/g;
const SUBSCRIPTS = /[\u2080-\u2089]+/g;
const VULGAR_FRACTION = /[\u00bc-\u00be\u2150-\u215e]/g;

/** Behind NFKC, which leaves these apart. */
const SAME = bySpelling({
  '-': '− – ‐ ‑',
  '/': '⁄ ∕ ÷',
  '*': '× · ⋅ ∙',
  '(': '⟨',
  ')': '⟩',
});
const DIFFERENT = new RegExp(`[${Object.keys(SAME).join('')}]`, 'g');

/**
 * Full-width digits, the minus signs, superscripts and vulgar fractions in one spelling. What cannot be seen (direction marks, zero-width
 * characters) is left out: it changes what is shown, never what is meant. Digits of other scripts stay what they are, which is no digits.
 */
export function plainCharacters(text: string): string {
  return text
    .toWellFormed()
    .replace(INVISIBLE, '')
    .replace(SUPERSCRIPTS, (run) => `^{${run.normalize('NFKC')}}`)
    .replace(SUBSCRIPTS, (run) => `_{${run.normalize('NFKC')}}`)
    .replace(VULGAR_FRACTION, (one) => one.normalize('NFKC').replace(/^(\d+)\u2044(\d+)$/, '\\frac{$1}{$2}'))
    .normalize('NFKC')
    .replace(DIFFERENT, (one) => SAME[one] ?? one);
}

// ── the words, commands and units of written mathematics ─────────────────────────────────────────────────────────────

/** From each spelling to what it means, made from what is meant with all its spellings. */
function bySpelling(meanings: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  return Object.fromEntries(
    Object.entries(meanings).flatMap(([meant, spellings]) => spellings.split(' ').map((spelling) => [spelling, meant])),
  );
}

/** Commands that mean what a character or another command means. */
const COMMANDS = bySpelling({
  '*': 'cdot times ast',
  '/': 'div',
  '≤': 'le leq leqslant',
  '≥': 'ge geq geqslant',
  '<': 'lt',
  '>': 'gt',
  '≠': 'ne neq',
  '≈': 'approx',
  '∈': 'in',
  '∪': 'cup',
  '±': 'pm',
  '∓': 'mp',
  '∞': 'infty',
  '°': 'circ degree',
  '\\{': 'lbrace {',
  '\\}': 'rbrace }',
  '(': 'langle',
  ')': 'rangle',
  '|': 'lvert rvert vert',
  '⌊': 'lfloor',
  '⌋': 'rfloor',
  '⌈': 'lceil',
  '⌉': 'rceil',
  '%': '%',
  '\\\\': '\\',
  '\\frac': 'dfrac tfrac cfrac frac',
  '\\binom': 'dbinom tbinom binom',
  '\\sqrt': 'sqrt',
  π: 'pi',
  ':': 'colon',
  ',': 'land',
  "'": 'prime',
  '∅': 'emptyset varnothing',
});

/** Commands and characters that only space, size or delimit. */
const IDLE_COMMANDS = new Set(
  '! , ; : ( ) [ ] quad qquad enspace thinspace displaystyle textstyle limits left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr middle hfill nonumber mathstrut rm bf it'.split(
    ' ',
  ),
);
/** Around words. */
const TEXT_COMMANDS = new Set('text textbf textit textrm textnormal mbox textsf texttt'.split(' '));
/** Around mathematics in another font. */
const FONT_COMMANDS = new Set('mathrm mathbf mathbb mathcal mathit mathsf boldsymbol bm operatorname boxed fbox'.split(' '));

const GREEK = new Set(
  'alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell'.split(
    ' ',
  ),
);

export const MATRICES = new Set(['matrix', 'pmatrix', 'bmatrix', 'Bmatrix', 'smallmatrix', 'array']);

/** Names without a backslash that are no words. */
const NAMES = bySpelling({
  π: 'pi',
  '\\sqrt': 'sqrt',
  '∞': 'inf infinity infty',
  arcsin: 'asin',
  arccos: 'acos',
  arctan: 'atan',
});

/** Written before the number, as words or in place of their signs. */
export const CURRENCIES = new Set(['usd', 'eur', 'gbp', 'rs', 'yen', 'rupee']);

/** Words that separate the items of a list. */
export const SEPARATORS = new Set(['or', 'and']);

/** Factors that are written as words. */
export const SCALES: Readonly<Record<string, number>> = {
  hundred: 100,
  thousand: 1000,
  million: 1e6,
  billion: 1e9,
  trillion: 1e12,
};

/** Two and three letters that are a word, not a product of variables. */
const SHORT_WORDS = new Set(
  'no yes not if is it the of to on at by for all any one two six ten odd am we he as be do so an are was but nor who per day pm win sum set new old mon tue wed thu fri sat sun'.split(
    ' ',
  ),
);

/** Each with the name that it is compared by. Words that are not here are compared as they are, without a plural s. */
const UNITS = bySpelling({
  millimeter: 'mm millimetre',
  centimeter: 'cm centimetre',
  meter: 'm metre',
  kilometer: 'km kilometre',
  inch: 'in inches',
  foot: 'ft feet',
  yard: 'yd',
  mile: 'mi',
  milligram: 'mg',
  gram: 'g gm',
  kilogram: 'kg',
  pound: 'lb lbs',
  ounce: 'oz',
  milliliter: 'ml',
  liter: 'l litre',
  second: 's sec secs',
  minute: 'min mins',
  hour: 'h hr hrs',
  millisecond: 'ms',
  dollar: 'usd',
  rupee: 'rs',
  euro: 'eur',
  'pound sterling': 'gbp',
  'mile per hour': 'mph',
  'kilometer per hour': 'kph kmh',
  hertz: 'hz',
  point: 'pts',
  degree: 'deg',
  radian: 'rad radians',
  square: 'sq',
});

/** Words that say something of the number instead of what it counts: behind one of them it is not the answer any more. */
const NO_UNIT = new Set(
  [
    'not no wrong incorrect false nor never except excluded impossible if but unless otherwise instead rather isn correct true right answer',
    'than less more least most about around approximately roughly nearly almost maybe perhaps possibly probably below under above over between beyond',
    'half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths',
    'hundredth hundredths thousandth thousandths millionth millionths billionth billionths tens hundreds thousands millions billions',
    'dozen dozens score scores pair pairs couple couples gross double doubled triple tripled twice thrice halved fold',
    'plus minus times negative positive factorial reciprocal inverse opposite negated root power base modulo divided multiplied',
    'zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty',
    'thirty forty fifty sixty seventy eighty ninety hundred thousand million billion trillion percentage',
  ].flatMap((line) => line.split(' ')),
);

const MOST_WORDS = 6;
const UNIT_POWERS: Readonly<Record<string, string>> = { square: '^2', squared: '^2', cubic: '^3', cubed: '^3' };

/**
 * Units and what else is counted: the words behind a number, in one spelling. Nothing is converted: 50 cm is not 0.5 m here. Throws
 * `Unreadable` where the words say something of the number instead: "5 is wrong".
 */
export function unitOf(words: readonly string[]): string {
  const found = words.map((word) => word.toLowerCase());
  if (found.length > MOST_WORDS || found.some((word) => NO_UNIT.has(word))) throw new Unreadable('words that are no unit');
  const power = found.map((word) => UNIT_POWERS[word] ?? '').join('');
  const names = found.filter((word) => !Object.hasOwn(UNIT_POWERS, word) && word !== 'of');
  if (names.length === 0) throw new Unreadable('a power of no unit');
  const spelt = names.map(unitName);
  return spelt.filter((name, index) => name !== spelt[index - 1]).join(' ') + power;
}

function unitName(word: string): string {
  const single = Object.hasOwn(UNITS, word) || !/[^s]s$/.test(word) || word.length < 4 ? word : word.slice(0, -1);
  return Object.hasOwn(UNITS, single) ? UNITS[single]! : single === '/' ? 'per' : single;
}

// ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

export type Token =
  | {
      readonly kind: 'number';
      readonly text: string;
      readonly exponent: number;
      /** Digits that go on for ever behind these: 0.1\\overline{6}. */
      readonly repeated?: string;
      readonly spaced: boolean;
    }
  /** A character, or a command by its name with a backslash, each in its one spelling. */
  | { readonly kind: 'sign' | 'variable' | 'function' | 'word'; readonly text: string; readonly spaced: boolean }
  | { readonly kind: 'begin' | 'end'; readonly text: string; readonly spaced: boolean };

export type Commas = 'group' | 'separate';

export interface Reading {
  readonly commas: Commas;
  /** Whether a letter behind a number that is a unit is one: 5 m. */
  readonly unitLetters: boolean;
}

const MOST_CHARS = 4_000;

const NUMBER = /(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4}(?![\d.a-zA-Z]))?/y;
const GROUPED = /\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?/y;
/** Thin spaces, {,} and \, never separate a list; plain spaces group where every group but the first has three digits. */
const SPACED = /\d{1,3}(?:(?:\{,\}|\\,|\\ |\\!,|,\\!| )\d{3})+(?![\d/])(?:\.\d+)?/y;
const LETTERS = /\p{L}+/uy;
const COMMAND = /\\(?:[A-Za-z]+|[^A-Za-z])/y;
const ENVIRONMENT = /\s?\{([A-Za-z]{1,20})\*?\}/y;
const SIGNS = new Set([..."+-*/^_()[]{}|,;!%=<>≤≥≠≈∈∪±∓∞°:&'π√⌊⌋⌈⌉∅"]);
const OPENING = new Set(['(', '[', '⌊', '⌈', '\\{']);
const CLOSING = new Set([')', ']', '⌋', '⌉', '\\}']);
const REPEATED = /\\(?:overline|bar)\s?(?:\{(\d{1,40})\}|(\d))/y;
const UPRIGHT_WORD = /\s?\{[\s~]*([A-Za-z]+)[\s~]*\}/y;
const IDLE = /[$\s~]/;
const CURRENCY_SIGNS: Readonly<Record<string, string>> = { '€': 'eur', '£': 'gbp', '¥': 'yen', '₹': 'rupee' };
const FUNCTION_NAMES: ReadonlySet<string> = new Set(Object.keys(CALLS));

export function tokensOf(given: string, reading: Reading): Token[] {
  if (given.length > MOST_CHARS) throw new Unreadable('too long');
  const text = plainCharacters(given).replace(/\b([ap])\.\s?m\b\.?/gi, '$1m');
  if (text.length > 2 * MOST_CHARS) throw new Unreadable('too long');
  const reader = new Reader(text, reading);
  reader.readAll();
  return reader.tokens;
}

class Reader {
  readonly tokens: Token[] = [];
  readonly #text: string;
  readonly #reading: Reading;
  #at = 0;
  #brackets = 0;
  #spaced = false;
  /** Whether a dollar sign is money: those around formulas come in pairs. */
  readonly #isDollar: boolean;
  /** Where the \text{…} that is open ends. */
  #textEnd = -1;

  constructor(text: string, reading: Reading) {
    this.#text = text;
    this.#reading = reading;
    this.#isDollar = text.replace(/\\\$|[^$]/g, '').length % 2 === 1;
  }

  readAll(): void {
    while (this.#at < this.#text.length) {
      spend(1);
      this.#readOne();
    }
  }

  #readOne(): void {
    const char = this.#text[this.#at]!;
    if (this.#at === this.#textEnd) {
      this.#textEnd = -1;
      this.#at++;
    } else if (Object.hasOwn(CURRENCY_SIGNS, char)) {
      this.#push('word', CURRENCY_SIGNS[char]!);
      this.#at++;
    } else if (char === '$' && this.#isDollar && /^\$(?:\d|\s*$)/.test(this.#text.slice(this.#at, this.#at + 20))) {
      this.#push('word', 'usd');
      this.#at++;
    } else if (IDLE.test(char)) {
      this.#spaced = true;
      this.#at++;
    } else if (char === '\\') this.#readCommand();
    else if (/[\d.]/.test(char)) this.#readNumber();
    else if (SIGNS.has(char)) this.#readSign(char);
    else this.#readLetters();
  }

  #match(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.#at;
    return pattern.exec(this.#text);
  }

  #push(kind: 'sign' | 'variable' | 'function' | 'word' | 'begin' | 'end', text: string): void {
    if (OPENING.has(text)) this.#brackets++;
    if (CLOSING.has(text)) this.#brackets--;
    this.tokens.push({ kind, text, spaced: this.#spaced });
    this.#spaced = false;
  }

  #readSign(char: string): void {
    const two = this.#text.slice(this.#at, this.#at + 2);
    const both = { '<=': '≤', '>=': '≥', '!=': '≠', '**': '^' }[two];
    this.#push('sign', both ?? (char === '√' ? '\\sqrt' : char));
    this.#at += both === undefined ? 1 : 2;
  }

  #readNumber(): void {
    const grouped =
      this.#match(SPACED) ?? (this.#reading.commas === 'group' && this.#brackets === 0 ? this.#match(GROUPED) : null);
    const found = grouped ?? this.#match(NUMBER);
    const alone = this.#at + 1 === this.#text.trimEnd().length;
    // The full stop behind an answer is no part of it; elsewhere a point without digits is.
    if (found === null && alone) this.#at++;
    if (found === null && alone) return;
    if (found === null) throw new Unreadable('a point without digits');
    const [digits = '', exponent = '0'] = found[0].replace(grouped ? /[^\d.]/g : '', '').split(/e/i);
    this.#at += found[0].length;
    const repeated = digits.includes('.') && exponent === '0' ? this.#match(REPEATED) : null;
    const more = repeated === null ? {} : { repeated: repeated[1] ?? repeated[2]! };
    this.tokens.push({ kind: 'number', text: digits, exponent: Number(exponent), ...more, spaced: this.#spaced });
    this.#spaced = false;
    this.#at += repeated?.[0].length ?? 0;
  }

  #readLetters(): void {
    const run = this.#match(LETTERS)?.[0];
    if (run === undefined) throw new Unreadable(`the character ${JSON.stringify(this.#text[this.#at])}`);
    this.#at += run.length;
    const lower = run.toLowerCase();
    if (this.#textEnd !== -1) this.#push('word', run);
    else if (Object.hasOwn(NAMES, lower)) this.#named(NAMES[lower]!);
    else if (FUNCTION_NAMES.has(lower) && lower !== 'factorial') this.#push('function', lower);
    else if (run.length === 1 && !this.#isUnitLetter(lower)) this.#push('variable', run);
    else if (run.length > 3 || SHORT_WORDS.has(lower) || lower === 'or' || lower === 'and' || Object.hasOwn(UNITS, lower))
      this.#push('word', run);
    else for (const letter of run) this.#push('variable', letter);
  }

  #isUnitLetter(letter: string): boolean {
    return this.#reading.unitLetters && Object.hasOwn(UNITS, letter) && this.tokens.at(-1)?.kind === 'number';
  }

  #named(name: string): void {
    this.#push(FUNCTION_NAMES.has(name) ? 'function' : 'sign', name);
  }

  #readCommand(): void {
    const name = this.#match(COMMAND)?.[0].slice(1);
    if (name === undefined) throw new Unreadable('a backslash at the end');
    this.#at += name.length + 1;
    if (name === '$') this.#push('word', 'usd');
    else if (Object.hasOwn(COMMANDS, name)) this.#push('sign', COMMANDS[name]!);
    else if (name === 'begin' || name === 'end') this.#readEnvironment(name);
    else if (TEXT_COMMANDS.has(name) || (name === 'mathrm' && this.#isUnitNext())) this.#enterText();
    else if (FUNCTION_NAMES.has(name)) this.#push('function', name);
    else if (GREEK.has(name)) this.#push('variable', `\\${name}`);
    else if (IDLE_COMMANDS.has(name) || /\s/.test(name)) this.#skipIdle(name);
    else if (!FONT_COMMANDS.has(name)) throw new Unreadable(`the command \\${name}`);
  }

  #isUnitNext(): boolean {
    const word = this.#match(UPRIGHT_WORD)?.[1]?.toLowerCase();
    return word !== undefined && Object.hasOwn(UNITS, word);
  }

  /** A point stands for no bracket behind \left and \right. */
  #skipIdle(name: string): void {
    this.#spaced ||= name !== '!';
    if ((name === 'left' || name === 'right') && this.#text[this.#at] === '.') this.#at++;
  }

  #readEnvironment(kind: 'begin' | 'end'): void {
    const found = this.#match(ENVIRONMENT);
    if (found === null) throw new Unreadable(`\\${kind} without a name`);
    this.#at += found[0].length;
    this.#brackets += kind === 'begin' ? 1 : -1;
    this.#push(kind, found[1]!);
  }

  /** Letters up to the closing brace are words, not variables. */
  #enterText(): void {
    while (this.#text[this.#at] === ' ') this.#at++;
    if (this.#text[this.#at] !== '{') throw new Unreadable('a text without braces');
    this.#textEnd = this.#text.indexOf('}', this.#at);
    if (this.#textEnd === -1) throw new Unreadable('a text without an end');
    this.#at++;
    this.#spaced = true;
  }
}
