/**
 * Tokens → `Node`: a recursive-descent parser for answers (lists, unions, relations, units, sums, products, atoms). Never uses `eval`.
 * Throws `Unreadable` for anything else and for input nested too deep.
 */
import {
  call,
  type FunctionName,
  inverse,
  isMinusOne,
  type Kind,
  type Node,
  negative,
  number,
  power,
  product,
  type RelationSign,
  root,
  sum,
} from './evaluation.ts';
import { fromDecimal, plus, type Rational, rational, spend, Unreadable, whole } from './rational.ts';
import { CURRENCIES, MATRICES, type Reading, SCALES, SEPARATORS, type Token, tokensOf, unitOf } from './tokens.ts';

const CLOSING: Readonly<Record<string, string>> = { '(': ')', '[': ']', '{': '}', '\\{': '\\}', '⌊': '⌋', '⌈': '⌉' };
/** Signs that begin a factor. A bar also does, unless one is open. */
const BEGINNINGS = new Set(['(', '[', '{', '\\{', '\\frac', '\\binom', '\\sqrt', 'π', '∞', '⌊', '⌈']);
const RELATIONS: ReadonlySet<string> = new Set(['=', '≈', '≠', '<', '≤', '>', '≥']);
const TRIGONOMETRIC: ReadonlySet<string> = new Set(['sin', 'cos', 'tan', 'cot', 'sec', 'csc']);
/** A pair of brackets costs three levels. */
const MOST_DEPTH = 150;
const PI: Node = { kind: 'constant', name: 'pi' };

export function parseMath(text: string, reading: Reading): Node {
  const tokens = tokensOf(text, reading);
  if (isProse(tokens)) throw new Unreadable('words');
  const parser = new Parser(tokens);
  const node = parser.value();
  if (parser.here !== undefined) throw new Unreadable('something behind the answer');
  return node;
}

/** Whether the tokens are words only. Letters count as words if any are adjacent: "yes" is not y·e·s. */
function isProse(tokens: readonly Token[]): boolean {
  if (tokens.length === 0 || tokens.some(({ kind }) => kind !== 'word' && kind !== 'variable')) return tokens.length === 0;
  return tokens.some(({ kind, spaced }, index) => kind === 'word' || (index > 0 && !spaced));
}

function numberOf({ text, exponent = 0, repeated }: Token): Rational {
  const value = fromDecimal(text, exponent);
  if (repeated === undefined) return value;
  const places = BigInt((text.split('.')[1] ?? '').length);
  return plus(value, rational(BigInt(repeated), (10n ** BigInt(repeated.length) - 1n) * 10n ** places));
}

class Parser {
  readonly #tokens: Token[];
  #at = 0;
  #depth = 0;
  #openBars = 0;

  constructor(tokens: Token[]) {
    this.#tokens = tokens;
  }

  get here(): Token | undefined {
    return this.#tokens[this.#at];
  }

  #ahead(offset: number): Token | undefined {
    return this.#tokens[this.#at + offset];
  }

  #next(): Token {
    const token = this.#tokens[this.#at++];
    if (token === undefined) throw new Unreadable('it ends too early');
    spend(1);
    return token;
  }

  #isSign(sign: string): boolean {
    return this.here?.kind === 'sign' && this.here.text === sign;
  }

  #skip(sign: string): boolean {
    const found = this.#isSign(sign);
    if (found) this.#next();
    return found;
  }

  get #word(): string {
    return this.here?.kind === 'word' ? this.here.text.toLowerCase() : '';
  }

  /** Wraps every recursive rule, so that no input can build a deep stack or tree. */
  #inside<T>(read: () => T): T {
    if (++this.#depth > MOST_DEPTH) throw new Unreadable('nested too deep');
    const made = read();
    this.#depth--;
    return made;
  }

  #several(read: () => Node, skip: () => boolean, make: (items: readonly Node[]) => Node): Node {
    const items = [read()];
    while (skip()) items.push(read());
    return items.length === 1 ? items[0]! : make(items);
  }

  value(): Node {
    const union = () =>
      this.#several(
        () => this.#relation(),
        () => this.#skip('∪'),
        (items) => ({ kind: 'union', items }),
      );
    return this.#inside(() =>
      this.#several(
        union,
        () => this.#skipSeparator(),
        (items) => ({ kind: 'set', items }),
      ),
    );
  }

  /** Comma, semicolon, "or" or "and"; also a comma or semicolon followed by one of these words. */
  #skipSeparator(): boolean {
    const comma = this.#skip(',') || this.#skip(';');
    if (!SEPARATORS.has(this.#word)) return comma;
    this.#next();
    return true;
  }

  #relation(): Node {
    const items = [this.#measured()];
    const signs: RelationSign[] = [];
    while (this.here?.kind === 'sign' && RELATIONS.has(this.here.text)) {
      signs.push(this.#next().text as RelationSign);
      items.push(this.#measured());
    }
    if (signs.length > 0) return { kind: 'relation', signs, items };
    // "x ∈ A" means A.
    return items[0]!.kind === 'variable' && this.#skip('∈') ? this.#measured() : items[0]!;
  }

  #measured(): Node {
    const currency = CURRENCIES.has(this.#word) ? [this.#next().text] : [];
    const of = this.#several(
      () => this.#sum(),
      () => this.#skip(':'),
      (items) => ({ kind: 'tuple', brackets: '::', items }),
    );
    const scale = SCALES.get(this.#word);
    if (scale !== undefined) this.#next();
    const scaled = scale === undefined ? of : product([of, number(whole(scale))]);
    if (currency.length === 0 && this.#word === 'percent') {
      this.#next();
      return { kind: 'percent', of: scaled };
    }
    const words = [...currency, ...this.#unitWords()];
    return words.length === 0 ? scaled : { kind: 'measured', of: scaled, unit: unitOf(words) };
  }

  /** Words up to a separator, with divisions and powers: km/h, m^2. */
  #unitWords(): string[] {
    const words: string[] = [];
    while (this.#word !== '' && !SEPARATORS.has(this.#word)) {
      words.push(this.#next().text);
      if (this.#skip('^')) words.push(squareOrCube(this.#group()));
      const behind = this.#ahead(1)?.kind;
      if (this.here?.text === '/' && (behind === 'word' || behind === 'variable'))
        words.push(this.#next().text, this.#next().text);
    }
    return words;
  }

  #sum(): Node {
    return this.#inside(() => {
      const items = [this.#signed() ?? this.#product()];
      for (let next = this.#signed(); next !== undefined; next = this.#signed()) items.push(next);
      return sum(items);
    });
  }

  /** Undefined if there is no sign here. */
  #signed(): Node | undefined {
    if (this.#skip('+')) return this.#inside(() => this.#signed() ?? this.#product());
    if (this.#skip('-')) return negative(this.#inside(() => this.#signed() ?? this.#product()));
    if (this.#skip('±')) return { kind: 'either-sign', sign: 1, of: this.#product() };
    return this.#skip('∓') ? { kind: 'either-sign', sign: -1, of: this.#product() } : undefined;
  }

  #product(): Node {
    const items = [this.#power()];
    for (;;) {
      if (this.#skip('*')) items.push(this.#signedFactor());
      else if (this.#skip('/')) items.push(inverse(this.#signedFactor()));
      else if (this.#isMixed(items)) items.push(this.#mixedWith(items.pop()!));
      else if (this.#startsFactor()) items.push(this.#power());
      else return withMarkOutside(items);
    }
  }

  #signedFactor(): Node {
    return this.#skip('-') ? negative(this.#inside(() => this.#signedFactor())) : this.#power();
  }

  /** Whether a fraction of whole numbers follows a whole number, so that the two are added: 2 1/2, 2\frac{1}{2}. */
  #isMixed([first, ...others]: readonly Node[]): boolean {
    if (others.length > 0 || first?.kind !== 'number' || first.value.d !== 1n || this.#ahead(-1)?.kind !== 'number') return false;
    const [here, ...behind] = [0, 1, 2, 3, 4, 5].map((offset) => this.#ahead(offset));
    if (here?.kind === 'number') return here.spaced && behind[0]?.text === '/' && behind[1]?.kind === 'number';
    if (here?.text !== '\\frac') return false;
    const isBraced = behind[0]?.text === '{' && behind[1]?.kind === 'number' && behind[2]?.text === '}';
    return behind[0]?.kind === 'number' || (isBraced && behind[4]?.kind === 'number');
  }

  #mixedWith(base: Node): Node {
    const isFraction = this.here?.kind !== 'number';
    const top = this.#power();
    const part = withMarkOutside(isFraction || !this.#skip('/') ? [top] : [top, inverse(this.#power())]);
    return isMark(part) ? { ...part, of: sum([base, part.of]) } : sum([base, part]);
  }

  /** Whether an implicit multiplication follows. Two adjacent numbers are not a product. */
  #startsFactor(): boolean {
    const { here } = this;
    const before = this.#ahead(-1)?.kind;
    if (here?.kind === 'number') return before !== 'number' && before !== 'variable';
    if (here?.kind === 'sign') return here.text === '|' ? this.#openBars === 0 : BEGINNINGS.has(here.text);
    return here?.kind === 'variable' || here?.kind === 'function' || here?.kind === 'begin';
  }

  #power(): Node {
    const base = this.#postfix(this.#group());
    if (!this.#skip('^')) return base;
    if (this.#skipCircle()) return this.#postfix({ kind: 'degree', of: base });
    return this.#postfix(power(base, this.#exponent()));
  }

  #skipCircle(): boolean {
    if (this.#skip('°')) return true;
    const isBraced = ['{', '°', '}'].every((text, offset) => this.#ahead(offset)?.text === text);
    if (isBraced) this.#at += 3;
    return isBraced;
  }

  /** Right-associative: 2^3^2 is 2^9. */
  #exponent(): Node {
    return this.#inside(() => {
      if (this.#skip('-')) return negative(this.#exponent());
      this.#skip('+');
      const base = this.#postfix(this.#group());
      return this.#skip('^') ? power(base, this.#exponent()) : base;
    });
  }

  #postfix(of: Node): Node {
    if (this.#skip('!')) return this.#inside(() => this.#postfix(call('factorial', of)));
    const kind = this.#skip('%') ? 'percent' : this.#skip('°') ? 'degree' : undefined;
    return kind === undefined ? of : this.#inside(() => this.#postfix({ kind, of }));
  }

  #group(): Node {
    return this.#inside(() => this.#atomFrom(this.#next()));
  }

  #atomFrom(token: Token): Node {
    const { kind, text } = token;
    if (kind === 'number') return this.#based(number(numberOf(token)));
    if (kind === 'variable') return this.#variable(text);
    if (kind === 'function') return this.#call(text as FunctionName);
    if (kind === 'begin') return this.#matrix(text);
    if (kind === 'sign') return this.#fromSign(text);
    // A currency inside a sum.
    if (CURRENCIES.has(text.toLowerCase()) && this.here?.kind === 'number') return this.#atomFrom(this.#next());
    throw new Unreadable(`${text} where a value should be`);
  }

  #fromSign(sign: string): Node {
    if (sign === 'π') return PI;
    if (sign === '∞') return { kind: 'constant', name: 'infinity' };
    if (sign === '∅') return { kind: 'set', items: [] };
    if (sign === '\\frac') return product([this.#argument(), inverse(this.#argument())]);
    if (sign === '\\binom') return binomial(this.#argument(), this.#argument());
    if (sign === '\\sqrt') return this.#root();
    if (sign === '|') return this.#bars();
    if (sign in CLOSING) return this.#bracketed(sign);
    throw new Unreadable(`${sign} where a value should be`);
  }

  /** A number with a base keeps it as its unit: its digits are not converted. */
  #based(of: Node): Node {
    if (!this.#skip('_')) return of;
    const base = this.#group();
    if (base.kind !== 'number' || base.value.d !== 1n || base.value.n < 2n || base.value.n > 36n)
      throw new Unreadable('the base of a number');
    return { kind: 'measured', of, unit: `base ${base.value.n}` };
  }

  #variable(name: string): Node {
    let full = name;
    if (this.#skip('_')) full += `_${this.#isSign('{') ? this.#bracedText() : this.#next().text}`;
    while (this.#skip("'")) full += "'";
    return full === 'e' ? { kind: 'constant', name: 'e' } : { kind: 'variable', name: full };
  }

  #bracedText(): string {
    let text = '';
    for (this.#next(); !this.#skip('}'); ) text += this.#next().text;
    return text;
  }

  /** A command's argument: a group or a single token. Of a longer number it takes only the first digit: \frac12. */
  #argument(): Node {
    const { here } = this;
    if (here?.kind !== 'number' || here.text.length === 1) return this.#group();
    this.#tokens[this.#at] = { ...here, text: here.text.slice(1) };
    return number(fromDecimal(here.text.slice(0, 1), 0));
  }

  #root(): Node {
    if (!this.#skip('[')) return root(this.#group());
    const degree = this.#sum();
    if (!this.#skip(']')) throw new Unreadable('] is missing');
    return root(this.#group(), degree);
  }

  #bars(): Node {
    this.#openBars++;
    const of = this.#sum();
    this.#openBars--;
    if (!this.#skip('|')) throw new Unreadable('| is missing');
    return call('abs', of);
  }

  #bracketed(open: string): Node {
    const bars = this.#openBars;
    this.#openBars = 0;
    const inside: Node = this.#isSign(CLOSING[open]!) ? { kind: 'set', items: [] } : this.value();
    this.#openBars = bars;
    const close = this.#next();
    const isInterval = (open === '(' || open === '[') && (close.text === ')' || close.text === ']');
    if (close.kind !== 'sign' || (close.text !== CLOSING[open] && !isInterval)) throw new Unreadable(`${open} is not closed`);
    if (open === '⌊') return call('floor', inside);
    if (open === '⌈') return call('ceil', inside);
    if (open === '\\{') return inside.kind === 'set' ? inside : { kind: 'set', items: [inside] };
    if (inside.kind !== 'set' || open === '{') return inside;
    return { kind: 'tuple', brackets: `${open}${close.text}`, items: inside.items };
  }

  #call(name: FunctionName): Node {
    const base = name === 'log' && this.#skip('_') ? this.#group() : undefined;
    const exponent = this.#skip('^') ? this.#exponent() : undefined;
    if (exponent !== undefined && isMinusOne(exponent)) {
      // sin^{-1} is the arcsine, not 1/sin.
      if (name !== 'sin' && name !== 'cos' && name !== 'tan') throw new Unreadable(`the inverse of ${name}`);
      return call(`arc${name}`, this.#functionArgument());
    }
    const of = this.#functionArgument();
    const inRadians = of.kind === 'degree' && TRIGONOMETRIC.has(name) ? product([of.of, PI, number({ n: 1n, d: 180n })]) : of;
    const made = base === undefined ? call(name, inRadians) : product([call('ln', of), inverse(call('ln', base))]);
    return exponent === undefined ? made : power(made, exponent);
  }

  /** A bracketed argument, else the factors that follow: sin 2x is sin(2x), but sin x cos x is a product. */
  #functionArgument(): Node {
    if (this.#isSign('(') || this.#isSign('{')) return this.#group();
    const items = [this.#power()];
    while (this.#startsFactor() && this.here?.kind !== 'function' && this.here?.text !== '(') items.push(this.#power());
    return product(items);
  }

  #matrix(environment: string): Node {
    if (!MATRICES.has(environment)) throw new Unreadable(`\\begin{${environment}}`);
    if (environment === 'array' && this.#isSign('{')) this.#bracedText();
    const rows: Node[][] = [[]];
    for (;;) {
      if (this.here?.kind !== 'end' && this.here?.text !== '\\\\') rows.at(-1)!.push(this.#sum());
      const token = this.#next();
      if (token.kind === 'end') break;
      if (token.text === '\\\\') rows.push([]);
      else if (token.text !== '&') throw new Unreadable('an entry of a matrix');
    }
    return { kind: 'matrix', rows: rows.filter((row) => row.length > 0) };
  }
}

function binomial(n: Node, k: Node): Node {
  return product(
    [n, k, sum([n, negative(k)])].map((of, index) => (index === 0 ? call('factorial', of) : inverse(call('factorial', of)))),
  );
}

type Mark = Kind<'percent' | 'degree'>;
const isMark = (node: Node): node is Mark => node.kind === 'percent' || node.kind === 'degree';

/** Applies a trailing percent or degree sign to the whole product: 1/2% is half a per cent. */
function withMarkOutside(items: readonly Node[]): Node {
  const last = items.at(-1)!;
  const marked = last.kind === 'power' && isMark(last.base) && isMinusOne(last.exponent) ? last.base : last;
  if (!isMark(marked)) return product(items);
  const of = product([...items.slice(0, -1), marked === last ? marked.of : inverse(marked.of)]);
  return { kind: marked.kind, of };
}

function squareOrCube(degree: Node): string {
  const name =
    degree.kind === 'number' && degree.value.d === 1n ? { 2: 'squared', 3: 'cubed' }[String(degree.value.n)] : undefined;
  if (name === undefined) throw new Unreadable('the power of a unit');
  return name;
}
