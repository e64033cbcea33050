/**
 * Constrained sampling: which bytes, and so which tokens, may come next where a completion must be JSON of a schema. A machine reads bytes
 * and follows every way in which the text so far may go on.
 *
 * Enforced: types, enums, constants, properties, required ones, array items, `anyOf`, `oneOf` and references. Where an object's properties
 * are named, others are allowed only if `additionalProperties` says so. Bounds, patterns and other keywords are not enforced.
 */
import { isObject } from './json.ts';
import { referred } from './json-schema.ts';
import type { Json } from './types.ts';

/** Bytes, and `CONTROL` before the text of a control token. */
type Bytes = ArrayLike<number>;

/** The bytes of all tokens, one after the other, and where each token's end. Both in shared memory, so that threads get them for free. */
export interface TokenBytes {
  readonly bytes: Uint16Array;
  readonly ends: Int32Array;
}

/** `before`, JSON of the schema, `after`. */
export interface ConstrainedText {
  readonly before: Bytes;
  readonly schema: Json;
  readonly after: Bytes;
}

/** Plain data. The completion must be one of the texts, then a stop id, unless its length ends it first. */
export interface SampleConstraint {
  readonly texts: readonly ConstrainedText[];
  readonly vocabulary: TokenBytes;
}

/** Not a byte, because there are tokens for every byte: so no JSON can hold a control token. */
export const CONTROL = 0x100;

/** What may follow after a byte: nothing, or one state for each way to read the text so far. */
type State = (byte: number) => readonly State[];
type Start = (next: State) => State;

/** Stands for the stop id in the place of a byte. */
const STOP = -1;
/** More ways to read the text so far than any sensible schema has; the rest is dropped. */
const MOST_STATES = 10_000;

export class ConstrainedTokens {
  readonly #vocabulary: TokenBytes;
  readonly #stopIds: readonly number[];
  #states: readonly State[];

  constructor({ texts, vocabulary }: SampleConstraint, stopIds: readonly number[]) {
    this.#vocabulary = vocabulary;
    this.#stopIds = stopIds;
    const end: State = (byte) => (byte === STOP ? [end] : []);
    this.#states = texts.map(({ before, schema, after }) =>
      literal(before, value(startsIn(schema), schema, literal(after, end))),
    );
  }

  allows(id: number): boolean {
    return this.#after(id).length > 0;
  }

  take(id: number): void {
    this.#states = this.#after(id);
  }

  #after(id: number): readonly State[] {
    if (this.#stopIds.includes(id)) return stepped(this.#states, STOP);
    const { bytes, ends } = this.#vocabulary;
    const from = id === 0 ? 0 : ends[id - 1]!;
    const to = ends[id] ?? 0;
    let states = from < to ? this.#states : [];
    for (let i = from; i < to && states.length > 0; i++) states = stepped(states, bytes[i]!);
    return states;
  }
}

function stepped(states: readonly State[], byte: number): readonly State[] {
  if (states.length === 1) return states[0]!(byte);
  return [...new Set(states.flatMap((state) => state(byte)))].slice(0, MOST_STATES);
}

const bytesIn = (text: string) => new TextEncoder().encode(text);
const code = (character: string) => character.charCodeAt(0);
const [SPACE, QUOTE, BACKSLASH, COMMA, MINUS, ZERO, NINE] = [' ', '"', '\\', ',', '-', '0', '9'].map(code) as [
  number,
  number,
  number,
  number,
  number,
  number,
  number,
];
const isDigit = (byte: number) => byte >= ZERO && byte <= NINE;

function literal(bytes: Bytes, next: State, at = 0): State {
  return at === bytes.length ? next : (byte) => (byte === bytes[at] ? [literal(bytes, next, at + 1)] : []);
}

/** At most one space, since a policy may go on with white space for ever; then whatever `first` makes of the next byte. */
const spaced =
  (first: State): State =>
  (byte) =>
    byte === SPACE ? [first] : first(byte);

/** Made once, when it is reached: schemas may be recursive, and each token of a vocabulary asks. */
function later(make: () => State): State {
  let made: State | undefined;
  return (byte) => {
    made ??= make();
    return made(byte);
  };
}

const anyOf =
  (states: readonly State[]): State =>
  (byte) =>
    states.flatMap((state) => state(byte));

const colon = (next: State) => spaced((byte) => (byte === code(':') ? [next] : []));

function value(startsOf: (schema: unknown) => readonly Start[], schema: unknown, next: State): State {
  return spaced(later(() => anyOf(startsOf(schema).map((start) => start(next)))));
}

/** How values of each schema in the document may begin. */
function startsIn(root: unknown): (schema: unknown) => readonly Start[] {
  const known = new Map<unknown, readonly Start[]>();
  const startsOf = (schema: unknown): readonly Start[] => {
    const found = known.get(schema) ?? alternatives(root, schema).flatMap((one) => startsOfOne(one, startsOf));
    known.set(schema, found);
    return found;
  };
  return startsOf;
}

/** The schemas that references and choices lead to. Each is visited once, so that no schema can make this endless. */
function alternatives(root: unknown, schema: unknown): readonly unknown[] {
  const found = new Set<unknown>();
  const visited = new Set<unknown>();
  const visit = (one: unknown) => {
    if (visited.has(one)) return;
    visited.add(one);
    const { $ref: ref, anyOf, oneOf, allOf, type, properties } = isObject(one) ? one : ({} as Record<string, unknown>);
    const choices = type === undefined && properties === undefined ? (anyOf ?? oneOf) : undefined;
    if (typeof ref === 'string') visit(referred(root, ref) ?? true);
    else if (Array.isArray(choices)) choices.forEach(visit);
    else if (type === undefined && Array.isArray(allOf) && allOf.length === 1) visit(allOf[0]);
    else found.add(one);
  };
  visit(schema);
  return [...found];
}

const TYPES = ['object', 'array', 'string', 'number', 'boolean', 'null'];

function startsOfOne(schema: unknown, startsOf: (schema: unknown) => readonly Start[]): readonly Start[] {
  if (schema === false) return [];
  const { type, enum: values, ...rest } = isObject(schema) ? schema : ({} as Record<string, unknown>);
  const listed = 'const' in rest ? [rest['const']] : values;
  if (Array.isArray(listed)) return listed.map((one) => (next: State) => literal(bytesIn(JSON.stringify(one)), next));
  const implied = isObject(rest['properties']) ? ['object'] : TYPES;
  const known = [type].flat().filter((name) => name === 'integer' || TYPES.includes(String(name)));
  const types = known.length > 0 ? known : implied;
  return types.flatMap((name): readonly Start[] => {
    if (name === 'object') return [(next) => object(rest, startsOf, next)];
    if (name === 'array') return [(next) => array(rest['items'], startsOf, next)];
    if (name === 'string') return [string];
    if (name === 'number' || name === 'integer') return [(next) => number(name === 'integer', next)];
    if (name === 'boolean') return ['true', 'false'].map((word) => (next) => literal(bytesIn(word), next));
    return name === 'null' ? [(next) => literal(bytesIn('null'), next)] : [];
  });
}

function string(next: State): State {
  const hex =
    (left: number): State =>
    (byte) =>
      /[0-9a-f]/i.test(String.fromCharCode(byte)) ? [left === 1 ? content : hex(left - 1)] : [];
  const escaped: State = (byte) => {
    if (byte === code('u')) return [hex(4)];
    return byte > 0 && '"\\/bfnrt'.includes(String.fromCharCode(byte)) ? [content] : [];
  };
  const continuation =
    (left: number): State =>
    (byte) =>
      byte >= 0x80 && byte < 0xc0 ? [left === 1 ? content : continuation(left - 1)] : [];
  const content: State = (byte) => {
    if (byte === QUOTE) return [next];
    if (byte === BACKSLASH) return [escaped];
    if (byte < 0x80) return byte < 0x20 ? [] : [content];
    // The first byte of a character tells how many follow it.
    if (byte < 0xc2 || byte > 0xf4) return [];
    return [continuation(byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3)];
  };
  return (byte) => (byte === QUOTE ? [content] : []);
}

function number(whole: boolean, next: State): State {
  const exponentDigits: State = (byte) => (isDigit(byte) ? [exponentDigits] : next(byte));
  const digit =
    (then: State): State =>
    (byte) =>
      isDigit(byte) ? [then] : [];
  const signed: State = (byte) => (byte === MINUS || byte === code('+') ? [digit(exponentDigits)] : digit(exponentDigits)(byte));
  const exponent: State = (byte) => (!whole && (byte === code('e') || byte === code('E')) ? [signed] : next(byte));
  const decimals: State = (byte) => (isDigit(byte) ? [decimals] : exponent(byte));
  const fraction: State = (byte) => (!whole && byte === code('.') ? [digit(decimals)] : exponent(byte));
  const digits: State = (byte) => (isDigit(byte) ? [digits] : fraction(byte));
  const first: State = (byte) => (byte === ZERO ? [fraction] : isDigit(byte) ? [digits] : []);
  return (byte) => (byte === MINUS ? [first] : first(byte));
}

/** Each named property at most once, in any order. */
function object(schema: Readonly<Record<string, unknown>>, startsOf: (schema: unknown) => readonly Start[], next: State): State {
  const { properties, required, additionalProperties } = schema;
  const demanded = Array.isArray(required) ? required.map(String) : [];
  const own = Object.entries(isObject(properties) ? properties : {});
  const named = new Map<string, unknown>([
    ...demanded.map((name) => [name, true] as const),
    // One that no value fits can only be left out.
    ...own.filter(([name, inner]) => demanded.includes(name) || startsOf(inner).length > 0),
  ]);
  const others = additionalProperties ?? own.length + demanded.length === 0;
  const member = (inner: unknown, rest: () => ReadonlyMap<string, unknown>) =>
    later(() => colon(value(startsOf, inner, spaced(afterMember(rest())))));
  const keys = (left: ReadonlyMap<string, unknown>) =>
    later(() => {
      const known = [...left].map(([name, inner]) => {
        const rest = () => new Map([...left].filter(([other]) => other !== name));
        return literal(bytesIn(JSON.stringify(name)), member(inner, rest));
      });
      return anyOf(others === false ? known : [...known, string(member(others, () => left))]);
    });
  const closing =
    (left: ReadonlyMap<string, unknown>): State =>
    (byte) =>
      byte === code('}') && !demanded.some((name) => left.has(name)) ? [next] : [];
  const afterMember = (left: ReadonlyMap<string, unknown>): State => {
    const more = left.size > 0 || others !== false ? [spaced(keys(left))] : [];
    return (byte) => (byte === COMMA ? more : closing(left)(byte));
  };
  const opened = spaced(anyOf([closing(named), keys(named)]));
  return (byte) => (byte === code('{') ? [opened] : []);
}

function array(items: unknown, startsOf: (schema: unknown) => readonly Start[], next: State): State {
  const element = Array.isArray(items) ? true : (items ?? true);
  const closing: State = (byte) => (byte === code(']') ? [next] : []);
  const afterElement = spaced((byte) => (byte === COMMA ? [another] : closing(byte)));
  const another: State = value(startsOf, element, afterElement);
  const opened = spaced((byte) => [...closing(byte), ...another(byte)]);
  return (byte) => (byte === code('[') ? [opened] : []);
}
