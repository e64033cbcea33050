/**
 * Renders chat templates as Python's Jinja does, which is what models were trained on. The library differs from it in places that published
 * templates use, and accepts no custom filters. So the parsed template is changed to call our own functions for:
 *
 * - `strip`, `lstrip`, `rstrip` and `trim`: which characters they take away, and what counts as white space;
 * - `tojson`: empty lists and objects where it indents, and numbers;
 * - `==` and `!=`: objects and lists are equal if what is in them is.
 *
 * A template that does not end, or counts beyond reason, fails by name (TOKENIZER_INVALID): model files are strangers' data.
 *
 * All else is the library's: `none` equals a missing value, which is `null` in `tojson`; and `selectattr` finds nothing that is undefined.
 */
import { Template } from '@huggingface/jinja';
import { TrainyardError } from '../core/errors.ts';

/** `tojson` writes a text that begins with `numberMark` without quotes: it stands for a number. */
export type Render = (variables: Readonly<Record<string, unknown>>, numberMark?: string) => string;

/** Throws the library's error for an invalid template; rendering throws what the template raises. */
export function compileJinja(source: string): Render {
  const template = new Template(source);
  let end = 0;
  let steps = 0;
  const step = () => {
    // Looking at the clock costs more than most loops do.
    if (++steps % 256 === 0 && performance.now() > end) throw runaway(`has not ended after ${MOST_MS / 1000} s`);
  };
  rewriteIn(template.parsed as unknown as Node, step);
  return (variables, numberMark) => {
    end = performance.now() + MOST_MS;
    const tojson = (value: unknown, ...options: readonly unknown[]) => toJson(value, formOf(options.at(-1), numberMark), '\n');
    return template.render({ ...variables, ...FUNCTIONS, 'python tojson': tojson });
  };
}

/** Published templates write a long conversation in milliseconds, and count to a few hundred. */
const MOST_MS = 5_000;
const MOST_NUMBERS = 100_000;

function runaway(found: string): TrainyardError {
  const hint = 'correct its loops in chat_template.jinja or tokenizer_config.json, or use another model';
  return new TrainyardError('TOKENIZER_INVALID', `the chat template of the model ${found}`, hint);
}

interface Node {
  readonly type: string;
  [part: string]: unknown;
}

/** The library's wrapper of a value. Objects are maps. */
interface Held {
  readonly value: unknown;
}

/** Their names are not valid identifiers, so no template can collide with them. */
const FUNCTIONS = {
  'python strip': (text: unknown, characters: unknown) => rstrip(lstrip(text, characters), characters),
  'python lstrip': lstrip,
  'python rstrip': rstrip,
  'python range': range,
  'python ==': equal,
  'python !=': (a: unknown, b: unknown) => !equal(a, b),
} as const;

// ── the parsed template ──────────────────────────────────────────────────────────────────────────────────────────────────

/** `step` is called before every round of a loop and every call of a macro. */
function rewriteIn(part: unknown, step: () => void): unknown {
  const inside = (inner: unknown) => rewriteIn(inner, step);
  if (typeof part !== 'object' || part === null) return part;
  if (Array.isArray(part)) return part.map(inside);
  if (part instanceof Map) return new Map(Array.from(part, ([key, value]) => [inside(key), inside(value)]));
  const node = part as Node;
  for (const [name, inner] of Object.entries(node)) node[name] = inside(inner);
  if (node.type === 'For' || node.type === 'Macro') {
    const { body } = node;
    // The library reads the body each time it runs it. A node of ours in the body would cost much more.
    Object.defineProperty(node, 'body', {
      get: () => {
        step();
        return body;
      },
    });
  }
  return rewritten(node);
}

function rewritten(node: Node): Node {
  const call = (name: string, args: readonly unknown[]): Node => ({
    type: 'CallExpression',
    callee: { type: 'Identifier', value: `python ${name}` },
    args,
  });
  if (node.type === 'BinaryExpression') {
    const operator = (node['operator'] as Held).value;
    return operator === '==' || operator === '!=' ? call(operator, [node['left'], node['right']]) : node;
  }
  if (node.type === 'CallExpression') {
    const { type, object, property, computed, value } = node['callee'] as Node;
    if (type === 'Identifier' && value === 'range') return call('range', node['args'] as readonly unknown[]);
    const name = type === 'MemberExpression' && !computed ? (property as Node)['value'] : undefined;
    const strips = name === 'strip' || name === 'lstrip' || name === 'rstrip';
    return strips ? call(name, [object, ...(node['args'] as readonly unknown[])]) : node;
  }
  if (node.type !== 'FilterExpression') return node;
  const filter = node['filter'] as Node;
  const given = filter.type === 'CallExpression' ? (filter['args'] as readonly unknown[]) : [];
  const name = (filter.type === 'CallExpression' ? (filter['callee'] as Node) : filter)['value'];
  if (name === 'trim') return call('strip', [node['operand'], ...given]);
  return name === 'tojson' ? call('tojson', [node['operand'], ...given]) : node;
}

function range(...given: readonly number[]): readonly number[] {
  const [start, stop, by = 1] = given.length === 1 ? [0, given[0]!] : (given as [number, number, number?]);
  const length = Math.max(0, Math.ceil((stop - start) / by));
  if (!(length <= MOST_NUMBERS)) throw runaway(`asks for a range of ${length} numbers; ${MOST_NUMBERS} are allowed`);
  return Array.from({ length }, (_, i) => start + i * by);
}

// ── white space ──────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Python's white space: includes ASCII's separators and U+0085, but not the byte order mark. */
export const WHITE_SPACE =
  '\t\n\v\f\r\u001C\u001D\u001E\u001F \u0085\u00A0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200A\u2028\u2029\u202F\u205F\u3000';

function isTaken(character: string, characters: unknown): boolean {
  return (typeof characters === 'string' ? characters : WHITE_SPACE).includes(character);
}

function lstrip(given: unknown, characters: unknown): string {
  const text = textOf(given);
  let start = 0;
  while (start < text.length && isTaken(text[start]!, characters)) start++;
  return text.slice(start);
}

function rstrip(given: unknown, characters: unknown): string {
  const text = textOf(given);
  let end = text.length;
  while (end > 0 && isTaken(text[end - 1]!, characters)) end--;
  return text.slice(0, end);
}

function textOf(given: unknown): string {
  if (typeof given === 'string') return given;
  throw new TypeError('only text can be stripped of characters');
}

// ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

interface Form {
  readonly indent: string;
  readonly item: string;
  readonly key: string;
  readonly sorted: boolean;
  readonly ascii: boolean;
  readonly numberMark: string | undefined;
}

/** Reads the keyword arguments of `tojson`. */
function formOf(options: unknown, numberMark: string | undefined): Form {
  const option = (name: string) => (options instanceof Map ? (options.get(name) as Held | undefined)?.value : undefined);
  const width = option('indent');
  const indent = typeof width === 'number' ? ' '.repeat(width) : '';
  const separators = option('separators') as readonly Held[] | null | undefined;
  const [item, key] = separators?.map(({ value }) => String(value)) ?? [];
  return {
    indent,
    item: item ?? (indent === '' ? ', ' : ','),
    key: key ?? ': ',
    sorted: option('sort_keys') === true,
    ascii: option('ensure_ascii') === true,
    numberMark,
  };
}

/** `margin`: a line break and the indentation of this value. */
function toJson(value: unknown, form: Form, margin: string): string {
  if (typeof value === 'string') return jsonString(value, form);
  if (typeof value === 'number') return jsonNumber(value);
  if (typeof value === 'boolean') return String(value);
  if (value === null || value === undefined) return 'null';
  const inner = margin + form.indent;
  const json = (held: Held) => toJson(held.value, form, inner);
  const wrapped = (open: string, items: readonly string[], close: string) => {
    if (items.length === 0 || form.indent === '') return open + items.join(form.item) + close;
    return open + inner + items.join(form.item + inner) + margin + close;
  };
  if (Array.isArray(value)) return wrapped('[', value.map(json), ']');
  if (!(value instanceof Map)) throw new TypeError('the chat template writes something as JSON that is no value');
  const entries = [...(value as ReadonlyMap<string, Held>)];
  if (form.sorted) entries.sort(([a], [b]) => (a < b ? -1 : 1));
  return wrapped(
    '{',
    entries.map(([key, held]) => jsonString(key, form) + form.key + json(held)),
    '}',
  );
}

function jsonString(text: string, { ascii, numberMark }: Form): string {
  if (numberMark && text.startsWith(numberMark) && /^[-\d]/.test(text.slice(numberMark.length))) return text;
  const json = JSON.stringify(text);
  const escaped = (unit: string) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
  // Protected text is marked with DEL or a private-use character; marks have to come through.
  return ascii ? json.replace(/[\u0080-\uDFFF\uF900-\uFFFF]/g, escaped) : json;
}

/** The source of this number is unknown, so one without a fraction counts as an integer. */
function jsonNumber(value: number): string {
  return Number.isInteger(value) ? JSON.stringify(value) : pythonFloat(value);
}

/** A JSON number as Python writes it: integers of any length, and `1.0` stays a float. */
export function pythonNumber(source: string): string {
  if (/[.eE]/.test(source)) return pythonFloat(Number(source));
  return source === '-0' ? '0' : source;
}

/** Python switches to exponents at other sizes than JavaScript, and gives them two digits. */
function pythonFloat(value: number): string {
  const exponent = Number(value.toExponential().split('e')[1]);
  if (exponent < -4 || exponent >= 16) return value.toExponential().replace(/([+-])(\d)$/, '$10$2');
  if (Object.is(value, -0)) return '-0.0';
  return Number.isInteger(value) ? `${value}.0` : String(value);
}

// ── equality ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

function equal(a: unknown, b: unknown): boolean {
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((held, i) => equalHeld(held, b[i]));
  if (a instanceof Map && b instanceof Map) {
    return a.size === b.size && Array.from(a).every(([key, held]) => b.has(key) && equalHeld(held, b.get(key)));
  }
  return plain(a) === plain(b);
}

const equalHeld = (a: unknown, b: unknown) => equal((a as Held).value, (b as Held).value);

/** In Python `true` is 1. */
const plain = (value: unknown) => (typeof value === 'boolean' ? Number(value) : value);
