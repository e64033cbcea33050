/**
 * Tokens → what they mean. A recursive-descent reader of the mathematics that answers are written in: lists, relations, unions, units, sums,
 * products, and the single things that they are made of. There is no `eval` anywhere. Throws `Unreadable` for anything else, and for what
 * is nested too deep.
 */
import {
  call,
  type FunctionName,
  inverse,
  type Kind,
  type Node,
  negative,
  number,
  product,
  type RelationSign,
  root,
  sum,
} from './evaluation.ts';
import { fromDecimal, plus, type Rational, rational, spend, Unreadable, whole } from './rational.ts';
import { CURRENCIES, MATRICES, type Reading, SCALES, SEPARATORS, type Token, tokensOf, unitOf } from './tokens.ts';

const CLOSING: Readonly<Record<string, string>> = { '(': ')', '[': ']', '{': '}', '\\{': '\\}', '⌊': '⌋', '⌈': '⌉' };
/** A pair of brackets takes three. */
const MOST_DEPTH = 150;
const PI: Node = { kind: 'constant', name: 'pi' };
const TRIGONOMETRIC: ReadonlySet<string> = new Set(['sin', 'cos', 'tan', 'cot', 'sec', 'csc']);

function numberOf({ text, exponent, repeated }: Extract<Token, { readonly kind: 'number' }>): Rational {
  const value = fromDecimal(text, exponent);
  if (repeated === undefined) return value;
  const places = BigInt((text.split('.')[1] ?? '').length);
  const all = 10n ** BigInt(repeated.length) - 1n;
  return plus(value, rational(BigInt(repeated), all * 10n ** places));
}

const RELATIONS: ReadonlySet<string> = new Set(['=', '≈', '≠', '<', '≤', '>', '≥']);

export function parseMath(text: string, reading: Reading): Node {
  const tokens = tokensOf(text, reading);
  if (isProse(tokens)) throw new Unreadable('words');
  const parser = new Parser(tokens);
  const node = parser.value();
  if (parser.here !== undefined) throw new Unreadable('something behind the answer');
  return node;
}

/** Letters alone are an answer in words where some belong to a longer word: "yes" is not y·e·s. */
function isProse(tokens: readonly Token[]): boolean {
  if (tokens.length === 0 || tokens.some(({ kind }) => kind !== 'word' && kind !== 'variable')) return tokens.length === 0;
  return tokens.some(({ kind, spaced }, index) => kind === 'word' || (index > 0 && !spaced));
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
    return this.#tokenAt(0);
  }

  #tokenAt(offset: number): Token | undefined {
    return this.#tokens[this.#at + offset];
  }

  next(): Token {
    const token = this.#tokens[this.#at++];
    if (token === undefined) throw new Unreadable('it ends too early');
    spend(1);
    return token;
  }

  skip(sign: string): boolean {
    const found = this.here?.kind === 'sign' && this.here.text === sign;
    if (found) this.next();
    return found;
  }

  /** Everything that reads something inside of itself does it in here, so that no text makes a deep stack or a deep tree. */
  inside<T>(read: () => T): T {
    if (++this.#depth > MOST_DEPTH) throw new Unreadable('nested too deep');
    const made = read();
    this.#depth--;
    return made;
  }

  #expect(sign: string): void {
    if (!this.skip(sign)) throw new Unreadable(`${sign} is missing`);
  }

  /** A list, or the one thing in it. */
  value(): Node {
    return this.inside(() => {
      const items = [this.#union()];
      while (this.#skipSeparator()) items.push(this.#union());
      return items.length === 1 ? items[0]! : { kind: 'set', items };
    });
  }

  /** A comma, a semicolon, "or", "and", or a comma and then one of these. */
  #skipSeparator(): boolean {
    const comma = this.skip(',') || this.skip(';');
    const { here } = this;
    if (here?.kind !== 'word' || !SEPARATORS.has(here.text.toLowerCase())) return comma;
    this.next();
    return true;
  }

  #union(): Node {
    const items = [this.#relation()];
    while (this.skip('∪')) items.push(this.#relation());
    return items.length === 1 ? items[0]! : { kind: 'union', items };
  }

  #relation(): Node {
    const items = [this.#measured()];
    const signs: RelationSign[] = [];
    while (this.here?.kind === 'sign' && RELATIONS.has(this.here.text)) {
      signs.push(this.next().text as RelationSign);
      items.push(this.#measured());
    }
    // "x ∈ A" says A.
    if (signs.length === 0 && items[0]!.kind === 'variable' && this.skip('∈')) return this.#measured();
    return signs.length === 0 ? items[0]! : { kind: 'relation', signs, items };
  }

  #measured(): Node {
    const { here } = this;
    const currency = here?.kind === 'word' && CURRENCIES.has(here.text.toLowerCase()) ? [this.next().text] : [];
    const of = this.#ratio();
    const scale = this.here?.kind === 'word' ? SCALES[this.here.text.toLowerCase()] : undefined;
    if (scale !== undefined) this.next();
    const scaled = scale === undefined ? of : product([of, number(whole(scale))]);
    if (currency.length === 0 && this.here?.kind === 'word' && this.here.text.toLowerCase() === 'percent') {
      this.next();
      return { kind: 'percent', of: scaled };
    }
    const words = [...currency, ...this.#unitWords()];
    return words.length === 0 ? scaled : { kind: 'measured', of: scaled, unit: unitOf(words) };
  }

  /** Words up to what separates; "/" and a power belong to them: km/h, m^2. */
  #unitWords(): string[] {
    const words: string[] = [];
    while (this.here?.kind === 'word' && !SEPARATORS.has(this.here.text.toLowerCase())) {
      words.push(this.next().text);
      const power = this.skip('^') ? this.group() : undefined;
      if (power !== undefined) words.push(squareOrCube(power));
      const [here, behind] = [this.here, this.#tokenAt(1)];
      if (here?.text === '/' && (behind?.kind === 'word' || behind?.kind === 'variable')) {
        this.next();
        words.push('/', this.next().text);
      }
    }
    return words;
  }

  #ratio(): Node {
    const items = [this.sum()];
    while (this.skip(':')) items.push(this.sum());
    return items.length === 1 ? items[0]! : { kind: 'tuple', brackets: '::', items };
  }

  sum(): Node {
    return this.inside(() => {
      const items = [this.#signed() ?? this.#product()];
      for (let next = this.#signed(); next !== undefined; next = this.#signed()) items.push(next);
      return sum(items);
    });
  }

  /** A term with its sign; undefined where there is no sign. */
  #signed(): Node | undefined {
    if (this.skip('+')) return this.inside(() => this.#signed() ?? this.#product());
    if (this.skip('-')) return negative(this.inside(() => this.#signed() ?? this.#product()));
    if (this.skip('±')) return { kind: 'either-sign', sign: 1, of: this.#product() };
    if (this.skip('∓')) return { kind: 'either-sign', sign: -1, of: this.#product() };
    return undefined;
  }

  #product(): Node {
    const items = [this.power()];
    for (;;) {
      if (this.skip('*')) items.push(this.#signedFactor());
      else if (this.skip('/')) items.push(inverse(this.#signedFactor()));
      else if (this.#isMixed(items)) items.push(...this.#mixedWith(items.pop()!));
      else if (this.startsFactor()) items.push(this.power());
      else return withMarkOutside(items);
    }
  }

  #signedFactor(): Node {
    return this.skip('-') ? negative(this.inside(() => this.#signedFactor())) : this.power();
  }

  /** A whole number before a fraction of whole numbers is added to it: 2 1/2, 2\frac{1}{2}. */
  #isMixed(items: readonly Node[]): boolean {
    const [here, behind] = [this.here, this.#tokenAt(1)];
    if (items.length !== 1 || items[0]!.kind !== 'number' || items[0]!.value.d !== 1n || this.#tokenAt(-1)?.kind !== 'number')
      return false;
    if (here?.kind === 'number') return here.spaced && behind?.text === '/' && this.#tokenAt(2)?.kind === 'number';
    return here?.text === '\\frac' && this.isPlainFraction();
  }

  #mixedWith(base: Node): readonly Node[] {
    const isFraction = this.here?.kind !== 'number';
    const top = this.power();
    const part = withMarkOutside(isFraction || !this.skip('/') ? [top] : [top, inverse(this.power())]);
    return [isMark(part) ? { ...part, of: sum([base, part.of]) } : sum([base, part])];
  }

  /** Whether what comes multiplies what came, though nothing says so. Two numbers side by side are no product. */
  startsFactor(): boolean {
    const { here } = this;
    if (here === undefined) return false;
    if (here.kind === 'variable' || here.kind === 'function' || here.kind === 'begin') return true;
    if (here.kind === 'number') return this.#tokenAt(-1)?.kind !== 'number' && this.#tokenAt(-1)?.kind !== 'variable';
    if (here.kind !== 'sign') return false;
    return here.text === '|'
      ? this.#openBars === 0
      : ['(', '[', '{', '\\{', '\\frac', '\\binom', '\\sqrt', 'π', '∞', '⌊', '⌈'].includes(here.text);
  }

  power(): Node {
    const base = this.#postfix(this.group());
    if (!this.skip('^')) return base;
    if (this.#skipCircle()) return this.#postfix({ kind: 'degree', of: base });
    return this.#postfix({ kind: 'power', base, exponent: this.#exponent() });
  }

  #skipCircle(): boolean {
    if (this.skip('°')) return true;
    if (this.here?.text !== '{' || this.#tokenAt(1)?.text !== '°' || this.#tokenAt(2)?.text !== '}') return false;
    for (let i = 0; i < 3; i++) this.next();
    return true;
  }

  /** To the right first: 2^3^2 is 2^9. */
  #exponent(): Node {
    return this.inside(() => {
      if (this.skip('-')) return negative(this.#exponent());
      this.skip('+');
      const base = this.#postfix(this.group());
      return this.skip('^') ? { kind: 'power', base, exponent: this.#exponent() } : base;
    });
  }

  #postfix(of: Node): Node {
    const made: Node | undefined = this.skip('!')
      ? call('factorial', of)
      : this.skip('%')
        ? { kind: 'percent', of }
        : this.skip('°')
          ? { kind: 'degree', of }
          : undefined;
    return made === undefined ? of : this.inside(() => this.#postfix(made));
  }

  /** One thing, or a group in braces. */
  group(): Node {
    return this.inside(() => this.#atomFrom(this.next()));
  }

  #atomFrom(token: Token): Node {
    switch (token.kind) {
      case 'number':
        return this.#based(number(numberOf(token)));
      case 'variable':
        return this.#variable(token.text);
      case 'function':
        return this.#call(token.text as FunctionName);
      case 'begin':
        return this.#matrix(token.text);
      case 'sign':
        return this.#fromSign(token.text);
      default:
        // The sign of a currency, inside of a sum.
        if (CURRENCIES.has(token.text.toLowerCase()) && this.here?.kind === 'number') return this.#atomFrom(this.next());
        throw new Unreadable(`${token.text} where a value should be`);
    }
  }

  #fromSign(sign: string): Node {
    if (sign === 'π') return PI;
    if (sign === '∞') return { kind: 'constant', name: 'infinity' };
    if (sign === '∅') return { kind: 'set', items: [] };
    if (sign === '\\frac') return product([this.#argument(), inverse(this.#argument())]);
    if (sign === '\\binom') return this.#binomial();
    if (sign === '\\sqrt') return this.#root();
    if (sign === '|') return this.#bars();
    if (sign in CLOSING) return this.#bracketed(sign);
    throw new Unreadable(`${sign} where a value should be`);
  }

  /** A number with a base is not a number in base ten: its base is kept as its unit. */
  #based(of: Node): Node {
    if (!this.skip('_')) return of;
    const base = this.group();
    if (base.kind !== 'number' || base.value.d !== 1n || base.value.n < 2n || base.value.n > 36n)
      throw new Unreadable('the base of a number');
    return { kind: 'measured', of, unit: `base ${base.value.n}` };
  }

  #variable(name: string): Node {
    let full = name;
    if (this.skip('_')) full += `_${this.#subscript()}`;
    while (this.skip("'")) full += "'";
    return full === 'e' ? { kind: 'constant', name: 'e' } : { kind: 'variable', name: full };
  }

  #subscript(): string {
    if (!this.skip('{')) return this.next().text;
    let text = '';
    while (!this.skip('}')) text += this.next().text;
    return text;
  }

  /** What a command takes: a group, or the one token behind it; of a number its first digit: \frac12. */
  #argument(): Node {
    const { here } = this;
    if (here?.kind === 'number' && here.text.length > 1) {
      this.#tokens[this.#at] = { ...here, text: here.text.slice(1) };
      return number(fromDecimal(here.text.slice(0, 1), 0));
    }
    return this.group();
  }

  isPlainFraction(): boolean {
    const kinds = [1, 2, 3, 4, 5, 6].map((offset) => this.#tokenAt(offset));
    if (kinds[0]?.kind === 'number') return true;
    return kinds[0]?.text === '{' && kinds[1]?.kind === 'number' && kinds[2]?.text === '}' && kinds[4]?.kind === 'number';
  }

  #root(): Node {
    if (!this.skip('[')) return root(this.group());
    const degree = this.sum();
    this.#expect(']');
    return root(this.group(), degree);
  }

  #binomial(): Node {
    const [n, k] = [this.#argument(), this.#argument()];
    const rest: Node = { kind: 'sum', items: [n, product([number(whole(-1)), k])] };
    return product([call('factorial', n), inverse(call('factorial', k)), inverse(call('factorial', rest))]);
  }

  #bars(): Node {
    this.#openBars++;
    const of = this.sum();
    this.#openBars--;
    this.#expect('|');
    return call('abs', of);
  }

  #bracketed(open: string): Node {
    const bars = this.#openBars;
    this.#openBars = 0;
    const isEmpty = this.here?.kind === 'sign' && this.here.text === CLOSING[open];
    const inside = isEmpty ? { kind: 'set' as const, items: [] } : this.value();
    this.#openBars = bars;
    const close = this.next();
    const isInterval = (open === '(' || open === '[') && (close.text === ')' || close.text === ']');
    if (close.kind !== 'sign' || (close.text !== CLOSING[open] && !isInterval)) throw new Unreadable(`${open} is not closed`);
    if (open === '⌊') return call('floor', inside);
    if (open === '⌈') return call('ceil', inside);
    if (open === '\\{') return inside.kind === 'set' ? inside : { kind: 'set', items: [inside] };
    if (inside.kind !== 'set' || open === '{') return inside;
    return { kind: 'tuple', brackets: `${open}${close.text}`, items: inside.items };
  }

  #call(name: FunctionName): Node {
    const base = name === 'log' && this.skip('_') ? this.group() : undefined;
    const exponent = this.skip('^') ? this.#exponent() : undefined;
    if (exponent?.kind === 'number' && exponent.value.n === -1n && exponent.value.d === 1n) return this.#inverseCall(name);
    const of = this.#functionArgument();
    const inRadians = of.kind === 'degree' && TRIGONOMETRIC.has(name) ? product([of.of, PI, number({ n: 1n, d: 180n })]) : of;
    const made = base === undefined ? call(name, inRadians) : product([call('ln', of), inverse(call('ln', base))]);
    return exponent === undefined ? made : { kind: 'power', base: made, exponent };
  }

  /** sin^{-1} is the arcsine, not 1/sin. */
  #inverseCall(name: FunctionName): Node {
    if (name !== 'sin' && name !== 'cos' && name !== 'tan') throw new Unreadable(`the inverse of ${name}`);
    return call(`arc${name}`, this.#functionArgument());
  }

  /** What is in brackets; else the factors that follow: sin 2x is sin(2x), and sin x cos x is a product. */
  #functionArgument(): Node {
    if (this.here?.kind === 'sign' && (this.here.text === '(' || this.here.text === '{')) return this.group();
    const items = [this.power()];
    while (this.startsFactor() && this.here?.kind !== 'function' && this.here?.text !== '(') items.push(this.power());
    return product(items);
  }

  #matrix(environment: string): Node {
    if (!MATRICES.has(environment)) throw new Unreadable(`\\begin{${environment}}`);
    if (environment === 'array' && this.here?.text === '{') this.#subscript();
    const rows: Node[][] = [[]];
    for (;;) {
      if (this.here?.kind !== 'end' && this.here?.text !== '\\\\') rows.at(-1)!.push(this.sum());
      const token = this.next();
      if (token.kind === 'end') break;
      if (token.text === '\\\\') rows.push([]);
      else if (token.text !== '&') throw new Unreadable('an entry of a matrix');
    }
    return { kind: 'matrix', rows: rows.filter((row) => row.length > 0) };
  }
}

type Mark = Kind<'percent' | 'degree'>;
const isMark = (node: Node): node is Mark => node.kind === 'percent' || node.kind === 'degree';

/** A sign behind a product is said of all of it: 1/2% is half a per cent. */
function withMarkOutside(items: readonly Node[]): Node {
  const last = items.at(-1)!;
  const marked = last.kind === 'power' && isMark(last.base) && isInverse(last) ? last.base : last;
  if (!isMark(marked)) return product(items);
  const of = product([...items.slice(0, -1), marked === last ? marked.of : inverse(marked.of)]);
  return { kind: marked.kind, of };
}

const isInverse = ({ exponent }: Kind<'power'>): boolean =>
  exponent.kind === 'number' && exponent.value.n === -1n && exponent.value.d === 1n;

function squareOrCube(power: Node): string {
  const degree = (power as Partial<Kind<'number'>>).value;
  if (power.kind === 'number' && degree?.d === 1n && degree.n === 2n) return 'squared';
  if (power.kind === 'number' && degree?.d === 1n && degree.n === 3n) return 'cubed';
  throw new Unreadable('the power of a unit');
}
