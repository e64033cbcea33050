/**
 * Rules for rows: column names, `metadata`, and answers that an agent could read. Only known column names are allowed, so that a misspelt
 * `answer` never silently becomes "no answer". Metadata is a non-empty object in every row, contains no empty objects, and has one type per
 * key across rows; anything else cannot be written as a table and is mostly a mistake. An answer in metadata under a telling key is an
 * error. Elsewhere it is a warning, since it may belong there: a text to correct, a list of choices.
 */
import { nearName } from '../core/errors.ts';
import { isObject, sameJson } from '../core/json.ts';
import type { Json, Task } from '../core/types.ts';
import { kindOf } from './rows.ts';

const MOST_PROBLEMS = 10;

interface Known {
  type?: { readonly name: string; readonly place: string };
  readonly keys: Map<string, Known>;
}

export class MetadataRules {
  readonly #root: Known = { keys: new Map() };

  problems(metadata: unknown, place: string): readonly string[] {
    if (!isObject(metadata) || Object.keys(metadata).length === 0) {
      return [`metadata: expected an object with at least one key, found ${kindOf(metadata)}`];
    }
    const problems: string[] = [];
    const walk = (object: Readonly<Record<string, unknown>>, known: Known, path: string) => {
      for (const [key, value] of Object.entries(object)) {
        if (problems.length >= MOST_PROBLEMS) return;
        // Null means no value, and fits every type.
        if (value === null) continue;
        const below: Known = known.keys.get(key) ?? { keys: new Map() };
        known.keys.set(key, below);
        const here = `${path}.${key.slice(0, 40)}`;
        const name = typeOf(value);
        below.type ??= { name, place };
        if (below.type.name !== name) {
          problems.push(`${here}: expected ${below.type.name} as on ${below.type.place}, found ${name}`);
        }
        if (Array.isArray(value)) {
          if (value.some(holdsEmpty)) problems.push(`${here}: found an empty object in the list`);
        } else if (isObject(value)) {
          if (Object.keys(value).length === 0) problems.push(`${here}: found an empty object; leave it out, or write null`);
          walk(value, below, here);
        }
      }
    };
    walk(metadata, this.#root, 'metadata');
    return problems;
  }
}

/** Does not compare types: items of a list may differ. */
function holdsEmpty(value: unknown): boolean {
  if (Array.isArray(value)) return value.some(holdsEmpty);
  if (!isObject(value)) return false;
  const items = Object.values(value);
  return items.length === 0 || items.some(holdsEmpty);
}

function typeOf(value: unknown): string {
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object') return 'an object';
  if (typeof value === 'string') return 'a text';
  return typeof value === 'boolean' ? 'true or false' : 'a number';
}

const COLUMNS = ['id', 'prompt', 'system_prompt', 'user_prompt', 'answer', 'ground_truth', 'label', 'metadata'] as const;
const KNOWN: ReadonlySet<string> = new Set(COLUMNS);
/** Null counts as absent. Not for prompt and metadata: a row without them is not a task. */
const NULLABLE = ['id', 'system_prompt', 'answer', 'ground_truth', 'label'];
/** Names used elsewhere, suggested if the row has none of our columns for the same purpose. */
const ELSEWHERE = [
  {
    ours: ['prompt', 'user_prompt'],
    theirs: ['question', 'query', 'main_query', 'raw_prompt', 'input', 'instruction', 'problem', 'messages', 'text'],
  },
  {
    ours: ['answer', 'ground_truth', 'label'],
    theirs: ['target', 'gold', 'solution', 'output', 'response', 'completion', 'expected', 'reference'],
  },
];

export function columnProblems(names: readonly string[]): readonly string[] {
  const unknown = unknownColumns(names);
  const has = (name: string) => names.includes(name);
  if (has('prompt') && has('user_prompt')) return [...unknown, 'expected either prompt or user_prompt, found both'];
  if (has('prompt') || has('user_prompt') || has('metadata')) return unknown;
  return [...unknown, 'missing required columns: expected either prompt or user_prompt, or metadata, found neither'];
}

export function difference(names: readonly string[], first: ReadonlySet<string>): string | undefined {
  const extra = names.filter((name) => !first.has(name));
  if (extra.length === 0 && names.length === first.size) return undefined;
  const missing = [...first].filter((name) => !names.includes(name));
  const parts = [listed('missing', missing), listed('extra', extra)].filter((part) => part !== '');
  const absent = NULLABLE.filter((name) => missing.includes(name) || extra.includes(name));
  const hint = absent.length === 0 ? '' : `; write null where a row has no ${absent.join(' or ')}`;
  return `top-level fields differ from the first row (${parts.join('; ')})${hint}`;
}

function listed(what: string, names: readonly string[]): string {
  if (names.length === 0) return '';
  return `${what}: ${shownNames(names)}`;
}

function shownNames(names: readonly string[]): string {
  return `${names.slice(0, 8).map(shown).join(', ')}${names.length > 8 ? ', …' : ''}`;
}

function shown(name: string): string {
  return /^[\w.-]{1,60}$/.test(name) ? name : JSON.stringify(name.slice(0, 60));
}

/** Never says that one belongs into metadata: it may hold the answer, which the agent would read there. */
function unknownColumns(names: readonly string[]): readonly string[] {
  const unknown = names.filter((name) => !KNOWN.has(name)).map((name) => ({ name, meant: meantBy(name, names) }));
  const misspelt = unknown.flatMap(({ name, meant }) =>
    meant === undefined ? [] : [`unknown column ${shown(name)}, did you mean ${meant}?`],
  );
  const others = unknown.filter(({ meant }) => meant === undefined).map(({ name }) => name);
  if (others.length === 0) return misspelt;
  const where = 'put what the agent may read into metadata, and what only the grader may read into answer';
  const columns = others.length === 1 ? 'column' : 'columns';
  return [...misspelt, `unknown ${columns} ${shownNames(others)}; ${where}`];
}

function meantBy(name: string, names: readonly string[]): string | undefined {
  const word = name.toLowerCase();
  const called = ELSEWHERE.find(({ ours, theirs }) => theirs.includes(word) && !ours.some((own) => names.includes(own)));
  return nearName(word, COLUMNS) ?? called?.ours[0];
}

/** Lower case, without hyphens and underscores. Omits `target` and `expected`, which are often part of the question. */
const LABEL_KEYS: ReadonlySet<string> = new Set(
  'answer correctanswer expectedanswer finalanswer goldanswer gold groundtruth label referenceanswer solution'.split(' '),
);
/** Shorter answers, such as a number or the name of a choice, occur in texts by chance. */
const TELLING_CHARS = 12;

type Labelled = Pick<Task, 'answer' | 'prompt' | 'metadata'> & { readonly id?: string | undefined };

/** Path of a metadata key that holds the answer and is named like one. Does not search lists: they may be choices. */
export function labelInMetadata({ answer, metadata }: Pick<Task, 'answer' | 'metadata'>): string | undefined {
  if (answer === undefined || answer === null) return undefined;
  return labelIn(metadata, (value) => isSame(value, answer));
}

/** Path of a metadata key that is named like an answer, for tasks that have none of their own. */
export function namedLikeAnswer({ metadata }: Pick<Task, 'metadata'>): string | undefined {
  return labelIn(metadata, (value) => value !== null && value !== '' && typeof value !== 'boolean');
}

function labelIn(object: unknown, isAnswer: (value: unknown) => boolean, path = 'metadata'): string | undefined {
  if (!isObject(object)) return undefined;
  for (const [key, value] of Object.entries(object)) {
    const here = `${path}.${key.slice(0, 40)}`;
    if (LABEL_KEYS.has(plainName(key)) && isAnswer(value)) return here;
    const below = labelIn(value, isAnswer, here);
    if (below !== undefined) return below;
  }
  return undefined;
}

function plainName(key: string): string {
  return key.toLowerCase().replace(/[-_]/g, '');
}

function isSame(found: unknown, answer: Json): boolean {
  return sameJson(found, answer) || (typeof found !== 'object' && typeof answer !== 'object' && String(found) === String(answer));
}

export type LabelPlace = 'prompt' | 'metadata' | 'id';

export function labelPlaces({ id, answer, prompt, metadata }: Labelled): readonly LabelPlace[] {
  const isThere = finderOf(answer);
  if (isThere === undefined) return [];
  const places: LabelPlace[] = [];
  if (prompt.some(({ content }) => isThere(content))) places.push('prompt');
  if (holds(metadata, isThere)) places.push('metadata');
  if (isThere(id)) places.push('id');
  return places;
}

/**
 * Returns a test for whether a value contains the answer, in upper or lower case, or one of the texts that an answer of several parts
 * expects. Undefined if all of it is too short to tell.
 */
function finderOf(answer: Json | undefined): ((value: unknown) => boolean) | undefined {
  const texts = expectedTexts(answer);
  const isWhole = typeof answer === 'object' && answer !== null && JSON.stringify(answer).length >= TELLING_CHARS;
  if (texts.length === 0 && !isWhole) return undefined;
  return (value) => {
    if (typeof value === 'object') return isWhole && sameJson(value, answer);
    if (typeof value !== 'string' && typeof value !== 'number') return false;
    const found = plainText(value);
    return texts.some((text) => (typeof value === 'string' ? found.includes(text) : found === text));
  };
}

/** Names in an answer of several parts. What stands under others (`args`, `language`) may belong to the question. */
const EXPECTED_KEYS: ReadonlySet<string> = new Set([...LABEL_KEYS, 'expected', 'output', 'result', 'stdout', 'target', 'value']);

function expectedTexts(answer: unknown, isExpected = true): readonly string[] {
  if (typeof answer === 'string' || typeof answer === 'number') {
    const text = plainText(answer);
    return isExpected && text.length >= TELLING_CHARS ? [text] : [];
  }
  if (Array.isArray(answer)) return answer.flatMap((item) => expectedTexts(item, isExpected));
  if (!isObject(answer)) return [];
  return Object.entries(answer).flatMap(([key, value]) => expectedTexts(value, EXPECTED_KEYS.has(plainName(key))));
}

/** In lower case, with single spaces. */
function plainText(text: string | number): string {
  return String(text).trim().toLowerCase().replace(/\s+/g, ' ');
}

function holds(value: unknown, isThere: (value: unknown) => boolean): boolean {
  if (isThere(value)) return true;
  if (typeof value !== 'object' || value === null) return false;
  return Object.entries(value).some(([key, item]) => isThere(key) || holds(item, isThere));
}
