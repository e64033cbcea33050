/**
 * Mathematics in LaTeX or plain text → tokens. Throws `Unreadable` for unknown commands: it does not guess what a macro means.
 *
 * A comma between groups of three digits belongs to the number, unless `commas` is `separate` or a bracket is open: (1,234) is a pair.
 */
import { CALLS } from './evaluation.ts';
import { spend, Unreadable } from './rational.ts';

/** Maps each spelling to its meaning. Rows are `meaning=spelling spelling`, separated by two spaces or a line end. */
function bySpelling(table: string): ReadonlyMap<string, string> {
  const rows = table.trim().split(/\s{2,}/);
  return new Map(
    rows.flatMap((row) => {
      const [meaning = '', spellings = ''] = row.split('=');
      return spellings.split(' ').map((spelling) => [spelling, meaning] as const);
    }),
  );
}

const words = (list: string) => new Set(list.trim().split(/\s+/));

const INVISIBLE = /[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]/g;
const SUPERSCRIPTS = /[\u2070\u00b9\u00b2\u00b3\u2074-\u207b\u207f]+/g;
const SUBSCRIPTS = /[\u2080-\u2089]+/g;
const VULGAR_FRACTION = /[\u00bc-\u00be\u2150-\u215e]/g;

/** Equivalent characters that NFKC keeps apart. */
const SAME = bySpelling('-=− – ‐ ‑  /=⁄ ∕ ÷  *=× · ⋅ ∙  (=⟨  )=⟩');
const DIFFERENT = new RegExp(`[${[...SAME.keys()].join('')}]`, 'g');

/** One spelling for equivalent characters. Drops invisible ones: they carry no meaning. Digits of other scripts stay non-digits. */
export function plainCharacters(text: string): string {
  return text
    .toWellFormed()
    .replace(INVISIBLE, '')
    .replace(SUPERSCRIPTS, (run) => `^{${run.normalize('NFKC')}}`)
    .replace(SUBSCRIPTS, (run) => `_{${run.normalize('NFKC')}}`)
    .replace(VULGAR_FRACTION, (one) => one.normalize('NFKC').replace(/^(\d+)\u2044(\d+)$/, '\\frac{$1}{$2}'))
    .normalize('NFKC')
    .replace(DIFFERENT, (one) => SAME.get(one)!);
}

const COMMANDS = bySpelling(String.raw`
  *=cdot times ast  /=div  ≤=le leq leqslant  ≥=ge geq geqslant  <=lt  >=gt  ≠=ne neq  ≈=approx  ∈=in  ∪=cup  ±=pm  ∓=mp  ∞=infty
  °=circ degree  \{=lbrace {  \}=rbrace }  (=langle  )=rangle  |=lvert rvert vert  ⌊=lfloor  ⌋=rfloor  ⌈=lceil  ⌉=rceil  %=%  \\=\
  \frac=dfrac tfrac cfrac frac  \binom=dbinom tbinom binom  \sqrt=sqrt  π=pi  :=colon  ,=land  '=prime  ∅=emptyset varnothing
`);
/** Commands that only affect spacing, size or delimiters. */
const IDLE_COMMANDS = words(`
  ! , ; : ( ) [ ] quad qquad enspace thinspace displaystyle textstyle limits left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr
  middle hfill nonumber mathstrut rm bf it
`);
/** Their argument is words. */
const TEXT_COMMANDS = words('text textbf textit textrm textnormal mbox textsf texttt');
/** Their argument is mathematics in another font. */
const FONT_COMMANDS = words('mathrm mathbf mathbb mathcal mathit mathsf boldsymbol bm operatorname boxed fbox');
const GREEK = words(`
  alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi varphi chi psi omega
  Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell
`);
export const MATRICES = words('matrix pmatrix bmatrix Bmatrix smallmatrix array');
/** Recognised without a backslash. */
const NAMES = bySpelling(String.raw`π=pi  \sqrt=sqrt  ∞=inf infinity infty  arcsin=asin  arccos=acos  arctan=atan`);
const FUNCTION_NAMES: ReadonlySet<string> = new Set(Object.keys(CALLS));
/** May precede the number, as a word or as its sign. */
export const CURRENCIES = words('usd eur gbp rs yen rupee');
const CURRENCY_SIGNS = bySpelling('eur=€  gbp=£  yen=¥  rupee=₹');
export const SEPARATORS = words('or and');
export const SCALES: ReadonlyMap<string, number> = new Map(
  Object.entries({ hundred: 100, thousand: 1e3, million: 1e6, billion: 1e9, trillion: 1e12 }),
);

/** Two- and three-letter words that would otherwise be read as a product of variables. */
const SHORT_WORDS = words(`
  no yes not if is it the of to on at by for all any one two six ten odd am we he as be do so an are was but nor who per day pm win sum set
  new old mon tue wed thu fri sat sun or and
`);

/** Units by the name they are compared under. Other words are compared literally, without a plural s. */
const UNITS = bySpelling(`
  millimeter=mm millimetre  centimeter=cm centimetre  meter=m metre  kilometer=km kilometre  inch=in inches  foot=ft feet  yard=yd  mile=mi
  milligram=mg  gram=g gm  kilogram=kg  pound=lb lbs  ounce=oz  milliliter=ml  liter=l litre  millisecond=ms  second=s sec secs
  minute=min mins  hour=h hr hrs  dollar=usd  rupee=rs  euro=eur  pound sterling=gbp  mile per hour=mph  kilometer per hour=kph kmh
  hertz=hz  point=pts  degree=deg  radian=rad radians  square=sq
`);

/** Words that qualify the number instead of naming what it counts ("5 is wrong"), so that the number is not the answer. */
const NO_UNIT = words(`
  not no wrong incorrect false nor never except excluded impossible if but unless otherwise instead rather isn correct true right answer
  than less more least most about around approximately roughly nearly almost maybe perhaps possibly probably below under above over between
  beyond half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths
  tenth tenths hundredth hundredths thousandth thousandths millionth millionths billionth billionths tens hundreds thousands millions
  billions dozen dozens score scores pair pairs couple couples gross double doubled triple tripled twice thrice halved fold plus minus times
  negative positive factorial reciprocal inverse opposite negated root power base modulo divided multiplied
  zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty
  thirty forty fifty sixty seventy eighty ninety hundred thousand million billion trillion percentage
`);
const UNIT_POWERS = bySpelling('^2=square squared  ^3=cubic cubed');
const MOST_WORDS = 6;

/** Normalises the words after a number and converts nothing: 50 cm is not 0.5 m. Throws `Unreadable` for words of NO_UNIT. */
export function unitOf(given: readonly string[]): string {
  const found = given.map((word) => word.toLowerCase());
  if (found.length > MOST_WORDS || found.some((word) => NO_UNIT.has(word))) throw new Unreadable('words that are no unit');
  const power = found.map((word) => UNIT_POWERS.get(word) ?? '').join('');
  const names = found.filter((word) => !UNIT_POWERS.has(word) && word !== 'of').map(unitName);
  if (names.length === 0) throw new Unreadable('a power of no unit');
  return names.filter((name, index) => name !== names[index - 1]).join(' ') + power;
}

function unitName(word: string): string {
  const single = UNITS.has(word) || !/[^s]s$/.test(word) || word.length < 4 ? word : word.slice(0, -1);
  return UNITS.get(single) ?? (single === '/' ? 'per' : single);
}

export interface Token {
  readonly kind: 'number' | 'sign' | 'variable' | 'function' | 'word' | 'begin' | 'end';
  /** Digits, a name, or the normalised character or \command. */
  readonly text: string;
  /** Whether white space precedes the token. */
  readonly spaced: boolean;
  /** Numbers only: the power of ten, and the repeating digits as in 0.1\overline{6}. */
  readonly exponent?: number;
  readonly repeated?: string | undefined;
}

export interface Reading {
  readonly commas: 'group' | 'separate';
  /** Whether a single letter after a number is read as a unit if it is one: 5 m. */
  readonly unitLetters: boolean;
}

const MOST_CHARS = 4_000;

const NUMBER = /(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4}(?![\d.a-zA-Z]))?/y;
const GROUPED = /\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?/y;
/** Thin spaces, {,} and \, never separate list items. Plain spaces group if each group after the first has three digits. */
const SPACED = /\d{1,3}(?:(?:\{,\}|\\,|\\ |\\!,|,\\!| )\d{3})+(?![\d/])(?:\.\d+)?/y;
const REPEATED = /\\(?:overline|bar)\s?(?:\{(\d{1,40})\}|(\d))/y;
const LETTERS = /\p{L}+/uy;
const COMMAND = /\\(?:[A-Za-z]+|[^A-Za-z])/y;
const ENVIRONMENT = /\s?\{([A-Za-z]{1,20})\*?\}/y;
const UPRIGHT_WORD = /\s?\{[\s~]*([A-Za-z]+)[\s~]*\}/y;
const DOLLARS = /\$(?=\d|\s*$)/y;
const IDLE = /[$\s~]/y;
const SIGN = /<=|>=|!=|\*\*|[-+*/^_()[\]{}|,;!%=<>≤≥≠≈∈∪±∓∞°:&'π√⌊⌋⌈⌉∅]/y;
const SIGNS: Readonly<Record<string, string>> = { '<=': '≤', '>=': '≥', '!=': '≠', '**': '^', '√': '\\sqrt' };
const OPENING = words('( [ ⌊ ⌈ \\{');
const CLOSING = words(') ] ⌋ ⌉ \\}');

export function tokensOf(given: string, reading: Reading): Token[] {
  if (given.length > MOST_CHARS) throw new Unreadable('too long');
  const text = plainCharacters(given).replace(/\b([ap])\.\s?m\b\.?/gi, '$1m');
  if (text.length > 2 * MOST_CHARS) throw new Unreadable('too long');
  const tokenizer = new Tokenizer(text, reading);
  while (tokenizer.readOne()) spend(1);
  return tokenizer.tokens;
}

class Tokenizer {
  readonly tokens: Token[] = [];
  readonly #text: string;
  readonly #reading: Reading;
  #at = 0;
  #brackets = 0;
  #spaced = false;
  /** Whether a dollar sign may be money. Those around formulas come in pairs. */
  readonly #isDollar: boolean;
  /** Index of the closing brace of the open \text{…}; -1 if none is open. */
  #textEnd = -1;

  constructor(text: string, reading: Reading) {
    this.#text = text;
    this.#reading = reading;
    this.#isDollar = text.replace(/\\\$|[^$]/g, '').length % 2 === 1;
  }

  readOne(): boolean {
    const char = this.#text[this.#at];
    if (char === undefined) return false;
    if (this.#at === this.#textEnd) {
      this.#textEnd = -1;
      this.#at++;
    } else if (CURRENCY_SIGNS.has(char)) this.#push('word', CURRENCY_SIGNS.get(char)!, 1);
    else if (this.#isDollar && this.#ahead(DOLLARS)) this.#push('word', 'usd', 1);
    else if (this.#ahead(IDLE)) {
      this.#spaced = true;
      this.#at++;
    } else if (char === '\\') this.#readCommand();
    else if (/[\d.]/.test(char)) this.#readNumber();
    else {
      const sign = this.#ahead(SIGN)?.[0];
      if (sign === undefined) this.#readLetters();
      else this.#push('sign', SIGNS[sign] ?? sign, sign.length);
    }
    return true;
  }

  #ahead(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.#at;
    return pattern.exec(this.#text);
  }

  #push(kind: Token['kind'], text: string, length = 0, more: Partial<Token> = {}): void {
    this.#at += length;
    if (OPENING.has(text) || kind === 'begin') this.#brackets++;
    if (CLOSING.has(text) || kind === 'end') this.#brackets--;
    this.tokens.push({ kind, text, spaced: this.#spaced, ...more });
    this.#spaced = false;
  }

  #readNumber(): void {
    const inGroups = this.#reading.commas === 'group' && this.#brackets === 0;
    const grouped = this.#ahead(SPACED) ?? (inGroups ? this.#ahead(GROUPED) : null);
    const found = (grouped ?? this.#ahead(NUMBER))?.[0];
    if (found === undefined) {
      // A final full stop is punctuation; anywhere else a point without digits is an error.
      if (this.#at + 1 !== this.#text.trimEnd().length) throw new Unreadable('a point without digits');
      this.#at++;
      return;
    }
    const [digits = '', exponent = '0'] = (grouped ? found.replace(/[^\d.]/g, '') : found).split(/e/i);
    this.#at += found.length;
    const repeated = digits.includes('.') && exponent === '0' ? this.#ahead(REPEATED) : null;
    const more = { exponent: Number(exponent), repeated: repeated?.[1] ?? repeated?.[2] };
    this.#push('number', digits, repeated?.[0].length, more);
  }

  #readLetters(): void {
    const run = this.#ahead(LETTERS)?.[0];
    if (run === undefined) throw new Unreadable(`the character ${JSON.stringify(this.#text[this.#at])}`);
    this.#at += run.length;
    const lower = run.toLowerCase();
    const name = NAMES.get(lower) ?? lower;
    const isUnitLetter = this.#reading.unitLetters && UNITS.has(lower) && this.tokens.at(-1)?.kind === 'number';
    if (this.#textEnd !== -1) this.#push('word', run);
    else if (FUNCTION_NAMES.has(name) && name !== 'factorial') this.#push('function', name);
    else if (name !== lower) this.#push('sign', name);
    else if (run.length === 1 && !isUnitLetter) this.#push('variable', run);
    else if (run.length > 3 || SHORT_WORDS.has(lower) || UNITS.has(lower)) this.#push('word', run);
    else for (const letter of run) this.#push('variable', letter);
  }

  #readCommand(): void {
    const name = this.#ahead(COMMAND)?.[0].slice(1);
    if (name === undefined) throw new Unreadable('a backslash at the end');
    this.#at += name.length + 1;
    if (name === '$') this.#push('word', 'usd');
    else if (COMMANDS.has(name)) this.#push('sign', COMMANDS.get(name)!);
    else if (name === 'begin' || name === 'end') this.#readEnvironment(name);
    else if (TEXT_COMMANDS.has(name) || (name === 'mathrm' && this.#isUnitAhead())) this.#enterText();
    else if (FUNCTION_NAMES.has(name)) this.#push('function', name);
    else if (GREEK.has(name)) this.#push('variable', `\\${name}`);
    else if (IDLE_COMMANDS.has(name) || /\s/.test(name)) {
      this.#spaced ||= name !== '!';
      // \left. and \right. are invisible delimiters.
      if ((name === 'left' || name === 'right') && this.#text[this.#at] === '.') this.#at++;
    } else if (!FONT_COMMANDS.has(name)) throw new Unreadable(`the command \\${name}`);
  }

  #isUnitAhead(): boolean {
    return UNITS.has(this.#ahead(UPRIGHT_WORD)?.[1]?.toLowerCase() ?? '');
  }

  #readEnvironment(kind: 'begin' | 'end'): void {
    const found = this.#ahead(ENVIRONMENT);
    if (found === null) throw new Unreadable(`\\${kind} without a name`);
    this.#push(kind, found[1]!, found[0].length);
  }

  /** From here to the closing brace, letters are words and not variables. */
  #enterText(): void {
    while (this.#text[this.#at] === ' ') this.#at++;
    if (this.#text[this.#at] !== '{') throw new Unreadable('a text without braces');
    this.#textEnd = this.#text.indexOf('}', this.#at);
    if (this.#textEnd === -1) throw new Unreadable('a text without an end');
    this.#at++;
    this.#spaced = true;
  }
}
