/**
 * Written mathematics, LaTeX or plain, → tokens. Throws `Unreadable` for a command that is not known: what a macro would do is not guessed.
 *
 * A comma between groups of three digits is part of the number, unless `commas` says that it separates, or a bracket is open: (1,234) is a pair.
 */
import { plainCharacters } from './characters.ts';
import { CALLS } from './nodes.ts';
import { COMMANDS, FONT_COMMANDS, GREEK, IDLE_COMMANDS, NAMES, SHORT_WORDS, TEXT_COMMANDS, UNITS } from './vocabulary.ts';
import { spend, Unreadable, type Work } from './work.ts';

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

export function tokensOf(given: string, reading: Reading, work: Work): Token[] {
  if (given.length > MOST_CHARS) throw new Unreadable('too long');
  const text = plainCharacters(given).replace(/\b([ap])\.\s?m\b\.?/gi, '$1m');
  if (text.length > 2 * MOST_CHARS) throw new Unreadable('too long');
  const reader = new Reader(text, reading, work);
  reader.readAll();
  return reader.tokens;
}

class Reader {
  readonly tokens: Token[] = [];
  readonly #text: string;
  readonly #reading: Reading;
  readonly #work: Work;
  #at = 0;
  #brackets = 0;
  #spaced = false;
  /** Whether a dollar sign is money: those around formulas come in pairs. */
  readonly #isDollar: boolean;
  /** Where the \text{…} that is open ends. */
  #textEnd = -1;

  constructor(text: string, reading: Reading, work: Work) {
    this.#text = text;
    this.#reading = reading;
    this.#isDollar = text.replace(/\\\$|[^$]/g, '').length % 2 === 1;
    this.#work = work;
  }

  readAll(): void {
    while (this.#at < this.#text.length) {
      spend(this.#work, 1);
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
