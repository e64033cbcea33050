/**
 * The filter language of `show`, `export` and the page of `trainyard view`: `reward<0.2 && turns>5 && tool~"search"`. Compiles to a function
 * of one rollout in a list. Nothing that is typed becomes code or a regular expression. Needs nothing of Node, so the page uses it as it is.
 *
 * A missing value (no reward, no limit) satisfies no comparison, not even !=, except with `none`. In lists, = and ~ hold if any item does, !=
 * and !~ if none does. docs/reference/view.md describes the language.
 */
import { nearName, TrainyardError } from './errors.ts';
import type { ByName, RolloutSummary } from './types.ts';

/** What is known of a rollout in a list. */
export interface FilterRow extends RolloutSummary {
  /** The step that trained it. */
  readonly step: number | null;
  /** Why it is excluded from training. Null if it is not. */
  readonly excluded: string | null;
  /** Reasons by excluded turn. */
  readonly excludedTurns: ByName<string>;
}

type RowFilter = (row: FilterRow) => boolean;

type Field =
  | { readonly kind: 'number'; readonly counts?: true; of(row: FilterRow): number | null | undefined }
  | { readonly kind: 'text'; of(row: FilterRow): string | null }
  | { readonly kind: 'truth'; of(row: FilterRow): boolean }
  | { readonly kind: 'names'; of(row: FilterRow): readonly string[] };

const number = (of: (row: FilterRow) => number | null | undefined): Field => ({ kind: 'number', of });
/** Alone it asks for more than none. */
const counted = (of: (row: FilterRow) => number): Field => ({ kind: 'number', counts: true, of });
const text = (of: (row: FilterRow) => string | null): Field => ({ kind: 'text', of });
const names = (of: (row: FilterRow) => readonly string[]): Field => ({ kind: 'names', of });

/** By name; case, hyphens and underscores do not matter. */
const FIELDS: ByName<Field> = {
  reward: number(({ reward }) => reward),
  success: { kind: 'truth', of: ({ success }) => success },
  turns: number(({ turns }) => turns),
  tokens: number(({ tokens }) => tokens),
  seconds: number(({ seconds }) => seconds),
  tool: names(({ tools }) => tools),
  tools: counted(({ tools }) => tools.length),
  task: text(({ taskId }) => taskId),
  rollout: text(({ rolloutId }) => rolloutId),
  group: text(({ groupId }) => groupId),
  purpose: text(({ purpose }) => purpose),
  outcome: text(({ outcome }) => outcome),
  limit: text(({ limit }) => limit),
  fork: names(({ forks }) => Object.keys(forks)),
  forks: counted(({ forks }) => Object.values(forks).reduce((sum, n) => sum + n, 0)),
  step: number(({ step }) => step),
  version: number(({ versions }) => versions?.[1]),
  excluded: text(({ excluded }) => excluded),
  'excluded-turns': counted(({ excludedTurns }) => Object.keys(excludedTurns).length),
  'failed-calls': counted(({ failedCalls }) => failedCalls),
  abandoned: counted(({ abandoned }) => abandoned),
};

/** Names of the fields, without those of parts and metrics. */
export const FILTER_FIELDS: readonly string[] = Object.keys(FIELDS);

/** Bounds the recursion too. */
const LONGEST = 1000;
const OPERATORS = ['&&', '||', '<=', '>=', '==', '!=', '!~', '<', '>', '=', '~', '!', '(', ')'] as const;
type Operator = (typeof OPERATORS)[number];

interface Token {
  readonly kind: 'operator' | 'word' | 'quoted' | 'end';
  readonly text: string;
  /** Characters before it. */
  readonly at: number;
}

/** Throws USAGE, saying where and what was expected. An empty filter lets everything through. */
export function rowFilter(source: string): RowFilter {
  if (source.length > LONGEST) throw fault(`expected at most ${LONGEST} characters, found ${source.length}`);
  if (source.trim() === '') return () => true;
  return new Parser(tokensOf(source)).whole();
}

function tokensOf(source: string): readonly Token[] {
  const tokens: Token[] = [];
  let at = 0;
  while (at < source.length) {
    const rest = source.slice(at);
    const [blank] = /^\s*/.exec(rest)!;
    const operator = OPERATORS.find((one) => rest.startsWith(one));
    const quoted = /^"((?:[^"\\]|\\.)*)"|^'((?:[^'\\]|\\.)*)'/s.exec(rest);
    const [word] = /^[^\s()!<>=~&|"']*/.exec(rest)!;
    if (blank !== '') at += blank.length;
    else if (operator !== undefined) at = pushed({ kind: 'operator', text: operator, at }, operator.length);
    else if (quoted !== null) {
      const inside = (quoted[1] ?? quoted[2] ?? '').replaceAll(/\\(.)/gs, '$1');
      at = pushed({ kind: 'quoted', text: inside, at }, quoted[0].length);
    } else if (word !== '') at = pushed({ kind: 'word', text: word, at }, word.length);
    else if (/^["']/.test(rest)) throw fault(`expected ${rest[0]} to be closed`, at);
    else throw fault(`expected ${rest[0]}${rest[0]}, found ${rest[0]}`, at);
  }
  return [...tokens, { kind: 'end', text: '', at }];

  function pushed(token: Token, length: number): number {
    tokens.push(token);
    return token.at + length;
  }
}

class Parser {
  readonly #tokens: readonly Token[];
  #next = 0;

  constructor(tokens: readonly Token[]) {
    this.#tokens = tokens;
  }

  whole(): RowFilter {
    const filter = this.#either();
    if (this.#peek().kind !== 'end') throw expected('&&, || or the end', this.#peek());
    return filter;
  }

  #either(): RowFilter {
    const parts = [this.#both()];
    while (this.#take('||')) parts.push(this.#both());
    return parts.length === 1 ? parts[0]! : (row) => parts.some((part) => part(row));
  }

  #both(): RowFilter {
    const parts = [this.#one()];
    while (this.#take('&&')) parts.push(this.#one());
    return parts.length === 1 ? parts[0]! : (row) => parts.every((part) => part(row));
  }

  #one(): RowFilter {
    if (this.#take('!')) {
      const inner = this.#one();
      return (row) => !inner(row);
    }
    if (!this.#take('(')) return this.#comparison();
    const inner = this.#either();
    if (!this.#take(')')) throw expected(')', this.#peek());
    return inner;
  }

  /** A field alone asks whether it is there: `success`, `!excluded`. */
  #comparison(): RowFilter {
    const name = this.#peek();
    const field = this.#field();
    const operator = this.#take('<', '<=', '>', '>=', '=', '==', '!=', '~', '!~');
    if (operator === undefined) return (row) => isThere(field, row);
    const value = this.#peek();
    if (value.kind !== 'word' && value.kind !== 'quoted') throw expected(`a value after ${operator}`, value);
    this.#next++;
    return comparison(name.text, field, operator === '==' ? '=' : operator, value);
  }

  #field(): Field {
    const token = this.#peek();
    if (token.kind !== 'word') throw expected(`a field such as reward, turns or tool`, token);
    this.#next++;
    const [, whose, rest = ''] = /^(part|metric)s?\.(.*)$/is.exec(token.text) ?? [];
    if (whose !== undefined) {
      const after = this.#peek();
      const isQuoted = rest === '' && after.kind === 'quoted' && after.at === token.at + token.text.length;
      if (rest === '' && !isQuoted) throw expected(`a name after ${token.text}`, after);
      if (isQuoted) this.#next++;
      const key = whose.toLowerCase() === 'part' ? ('parts' as const) : ('metrics' as const);
      const name = isQuoted ? after.text : rest;
      return number(({ [key]: all = {} }) => (Object.hasOwn(all, name) ? all[name] : null));
    }
    const known = FILTER_FIELDS.find((one) => plain(one) === plain(token.text));
    if (known !== undefined) return FIELDS[known]!;
    const near = nearName(token.text, FILTER_FIELDS);
    const instead =
      near === undefined ? `, expected ${FILTER_FIELDS.join(', ')}, part.<name> or metric.<name>` : `, did you mean ${near}?`;
    throw fault(`no field ${JSON.stringify(token.text)}${instead}`, token.at);
  }

  #peek(): Token {
    return this.#tokens[this.#next]!;
  }

  #take(...operators: readonly Operator[]): Operator | undefined {
    const { kind, text: found } = this.#peek();
    const taken = kind === 'operator' ? operators.find((one) => one === found) : undefined;
    if (taken !== undefined) this.#next++;
    return taken;
  }
}

function plain(name: string): string {
  return name.replaceAll(/[-_]/g, '').toLowerCase();
}

function isThere(field: Field, row: FilterRow): boolean {
  if (field.kind === 'truth') return field.of(row);
  const value = field.of(row);
  if (field.kind === 'number' && field.counts) return Number(value) > 0;
  return field.kind === 'names' ? field.of(row).length > 0 : value !== null && value !== undefined;
}

const ORDER: Readonly<Partial<Record<Operator, (a: number, b: number) => boolean>>> = {
  '<': (a, b) => a < b,
  '<=': (a, b) => a <= b,
  '>': (a, b) => a > b,
  '>=': (a, b) => a >= b,
  '=': (a, b) => a === b,
  '!=': (a, b) => a !== b,
};

function comparison(name: string, field: Field, operator: Operator, value: Token): RowFilter {
  const isPlain = value.kind === 'word';
  const isEqual = operator === '=';
  if (isPlain && /^(?:none|null)$/i.test(value.text)) {
    if (field.kind === 'truth') throw fault(`${name} is true or false, never ${value.text}`, value.at);
    if (!isEqual && operator !== '!=') throw fault(`expected = or != before ${value.text}, found ${operator}`, value.at);
    return (row) => isThere(field, row) !== isEqual;
  }
  if (field.kind === 'number') {
    const order = ORDER[operator];
    const wanted = isPlain && value.text !== '' ? Number(value.text) : Number.NaN;
    if (order === undefined) throw fault(`${name} is a number, expected < <= > >= = or !=, found ${operator}`, value.at);
    if (!Number.isFinite(wanted)) throw fault(`${name} is a number, expected a number or none, found ${shown(value)}`, value.at);
    return (row) => {
      const found = field.of(row) ?? null;
      return found !== null && order(found, wanted);
    };
  }
  const isTruth = isPlain && (field.kind === 'truth' || field === FIELDS['excluded']) && /^(?:true|false)$/i.test(value.text);
  const isNegated = operator === '!=' || operator === '!~';
  const isWithin = operator === '~' || operator === '!~';
  if (!isEqual && !isNegated && !isWithin) {
    const kind = field.kind === 'truth' ? 'true or false, expected = or !=' : 'text, expected = != ~ or !~';
    throw fault(`${name} is ${kind}, found ${operator}`, value.at);
  }
  // `excluded = true` asks whether there is a reason.
  if (isTruth && !isWithin) return (row) => (isThere(field, row) === (value.text.toLowerCase() === 'true')) !== isNegated;
  if (field.kind === 'truth') throw fault(`${name} is true or false, found ${shown(value)}`, value.at);
  const lower = value.text.toLowerCase();
  const matches = isWithin ? (one: string) => one.toLowerCase().includes(lower) : (one: string) => one === value.text;
  if (field.kind === 'names') return (row) => field.of(row).some(matches) !== isNegated;
  return (row) => {
    const found = field.of(row);
    return found !== null && matches(found) !== isNegated;
  };
}

function shown({ kind, text: found }: Token): string {
  return kind === 'end' ? 'the end' : kind === 'quoted' ? JSON.stringify(found) : found;
}

function expected(what: string, token: Token): TrainyardError {
  return fault(`expected ${what}, found ${shown(token)}`, token.at);
}

/** One line: terminals and the page show it as it is. */
function fault(found: string, at?: number): TrainyardError {
  const message = `filter${at === undefined ? '' : `, character ${at + 1}`}: ${found}`;
  return new TrainyardError('USAGE', message, 'such as: reward<0.2 && turns>5 && tool~"search"');
}
