/**
 * Tokens → what they mean. A recursive-descent reader of the mathematics that answers are written in; there is no `eval` anywhere.
 *
 * This file reads values: lists, relations, unions, units, sums, products. Single things are read in `parse-atoms.ts`. Throws `Unreadable`
 * for anything else, and for what is nested too deep.
 */
import { inverse, type Kind, type Node, negative, number, product, type RelationSign, sum } from './nodes.ts';
import { Atoms } from './parse-atoms.ts';
import { whole } from './rational.ts';
import { type Reading, type Token, tokensOf } from './tokens.ts';
import { NO_UNIT, SCALES, SEPARATORS, UNITS } from './vocabulary.ts';
import { Unreadable, type Work } from './work.ts';

const RELATIONS: ReadonlySet<string> = new Set(['=', '≈', '≠', '<', '≤', '>', '≥']);

export function parseMath(text: string, reading: Reading, work: Work): Node {
  const tokens = tokensOf(text, reading, work);
  if (isProse(tokens)) throw new Unreadable('words');
  const parser = new Parser(tokens, work);
  const node = parser.value();
  if (parser.here !== undefined) throw new Unreadable('something behind the answer');
  return node;
}

/** Letters alone are an answer in words where some belong to a longer word: "yes" is not y·e·s. */
function isProse(tokens: readonly Token[]): boolean {
  if (tokens.length === 0 || tokens.some(({ kind }) => kind !== 'word' && kind !== 'variable')) return tokens.length === 0;
  return tokens.some(({ kind, spaced }, index) => kind === 'word' || (index > 0 && !spaced));
}

class Parser extends Atoms {
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
    const currency = this.isCurrency() ? [this.next().text] : [];
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
      const { here, behind } = this;
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
    const { here, behind } = this;
    if (items.length !== 1 || items[0]!.kind !== 'number' || items[0]!.value.d !== 1n || !this.justReadNumber) return false;
    if (here?.kind === 'number') return here.spaced && behind?.text === '/' && this.tokenAt(2)?.kind === 'number';
    return here?.text === '\\frac' && this.isPlainFraction();
  }

  #mixedWith(base: Node): readonly Node[] {
    const [top, bottom] = this.here?.kind === 'number' ? [this.power(), this.#behindStroke()] : [this.power(), undefined];
    const part = withMarkOutside(bottom === undefined ? [top] : [top, inverse(bottom)]);
    return [isMark(part) ? { ...part, of: sum([base, part.of]) } : sum([base, part])];
  }

  #behindStroke(): Node {
    this.next();
    return this.power();
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

const MOST_WORDS = 6;
const POWERS: Readonly<Record<string, string>> = { square: '^2', squared: '^2', cubic: '^3', cubed: '^3' };

/**
 * Units and what else is counted: the words behind a number, in one spelling. Nothing is converted: 50 cm is not 0.5 m here. Throws
 * `Unreadable` where the words say something of the number instead: "5 is wrong".
 */
function unitOf(words: readonly string[]): string {
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
