/** One row → one task, or what is wrong with it. The same for every source. */
import { createHash } from 'node:crypto';
import { z } from 'zod';
import { messageOf } from '../core/errors.ts';
import { canonicalJson, isPlain, MAX_NESTING, sameJson } from '../core/json.ts';
import type { Json, PromptMessage, Task, TaskView } from '../core/types.ts';
import { kindOf, MAX_ROW_BYTES, TOO_LARGE } from './rows.ts';
import { labelInMetadata, type MetadataRules } from './rules.ts';

const messages = z.array(z.strictObject({ role: z.enum(['system', 'user', 'assistant']), content: z.string() })).min(1);
const ID = /^[^\p{C}]{1,200}$/u;

interface RowReading {
  readonly row: Readonly<Record<string, unknown>>;
  readonly place: string;
  /** Present where the source has a column `metadata`: then a prompt is not needed. */
  readonly rules: MetadataRules | undefined;
}

/** Without an id where the row has none. */
export type ReadTask = Omit<Task, 'id'> & { readonly id?: string };

export type RowRead =
  /** `bytes`: what it takes in memory, about. */
  { readonly task: ReadTask; readonly bytes: number } | { readonly problems: readonly string[] };

export function taskOf({ row: given, place, rules }: RowReading): RowRead {
  const problems: string[] = [];
  const problem = (text: string): void => void problems.push(text);
  const row = Object.create(null) as Record<string, Json>;
  let bytes = 0;
  for (const [name, value] of Object.entries(given)) {
    const copied = plainJson(value, name);
    if ('problem' in copied) problem(copied.problem);
    else {
      row[name] = copied.value;
      bytes += copied.bytes;
    }
  }
  // What is no JSON is not looked at closer: it may be cyclic.
  if (problems.length > 0) return { problems };
  const id = idOf(row['id'], problem);
  const prompt = promptOf(row, rules !== undefined, problem);
  const answer = answerOf(row);
  const { metadata } = row;
  if (rules !== undefined) problems.push(...rules.problems(metadata, place));
  const task = {
    ...(id === undefined ? {} : { id }),
    prompt,
    ...(answer === undefined ? {} : { answer }),
    ...(rules === undefined ? {} : { metadata: metadata as Json }),
  };
  const leak = labelInMetadata(task);
  if (leak !== undefined) problem(`${leak} is the answer, and the agent sees metadata: leave it out there`);
  return problems.length > 0 ? { problems } : { task, bytes };
}

function idOf(id: unknown, problem: (text: string) => void): string | undefined {
  if (id === undefined || id === null || id === '') return undefined;
  if (typeof id === 'number' && Number.isInteger(id)) return String(id);
  if (typeof id === 'string' && ID.test(id)) return id;
  problem('id: expected 1 to 200 printable characters, or a whole number');
  return undefined;
}

/** The first that is there; where all are null, null. */
function answerOf(row: Readonly<Record<string, unknown>>): Json | undefined {
  const given = ['answer', 'ground_truth', 'label']
    .map((name) => row[name] as Json | undefined)
    .filter((value) => value !== undefined);
  return given.find((value) => value !== null) ?? given[0];
}

function promptOf(
  row: Readonly<Record<string, unknown>>,
  isOptional: boolean,
  problem: (text: string) => void,
): readonly PromptMessage[] {
  const { system_prompt: system = null } = row;
  const name = 'user_prompt' in row ? 'user_prompt' : 'prompt';
  const asked = row[name] ?? null;
  if (system !== null && typeof system !== 'string') problem(`system_prompt: expected text, found ${kindOf(system)}`);
  const before: PromptMessage[] = typeof system === 'string' && system !== '' ? [{ role: 'system', content: system }] : [];
  if (isOptional && (asked === null || asked === '' || sameJson(asked, []))) return before;
  return [...before, ...messagesOf(asked, name, problem)];
}

function messagesOf(asked: unknown, name: string, problem: (text: string) => void): readonly PromptMessage[] {
  if (typeof asked === 'string' && asked !== '') return [{ role: 'user', content: asked }];
  if (!Array.isArray(asked) || name === 'user_prompt') {
    problem(`${name}: expected ${name === 'prompt' ? 'text or a list of messages' : 'text'}, found ${kindOf(asked)}`);
    return [];
  }
  const parsed = messages.safeParse(asked);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  problem(`${[name, ...(issue?.path ?? [])].join('.')}: ${issue?.message ?? 'not a list of messages'}`);
  return [];
}

type Copied =
  /** `bytes`: what the copy takes in memory, about. */
  { readonly value: Json; readonly bytes: number } | { readonly problem: string };

class NotPlain extends Error {}

/**
 * Copies a value that must be JSON, and is kept exactly as it is: rows given as values may hold anything, and JSON text may hold numbers
 * that no number holds. Each property is read once, so that one that is computed is the same for whoever looks later. A cycle is found as
 * too deep, and what is shared a million times as too large. `path` is what the value is called in the problem.
 */
function plainJson(value: unknown, path: string): Copied {
  const copying = new Copying();
  try {
    return { value: copying.copy(value, path, 0), bytes: copying.bytes };
  } catch (thrown) {
    return { problem: thrown instanceof NotPlain ? thrown.message : `${path}: reading it threw: ${messageOf(thrown)}` };
  }
}

class Copying {
  bytes = 0;

  copy(value: unknown, path: string, depth: number): Json {
    if (depth > MAX_NESTING) throw new NotPlain(`${path.slice(0, 80)}: nested deeper than ${MAX_NESTING} levels`);
    if (typeof value === 'string') return this.#text(value, path);
    this.#grow(16, path);
    if (value === null || typeof value === 'boolean') return value;
    if (typeof value === 'number') return numberIn(value, path);
    if (typeof value !== 'object') throw new NotPlain(`${path}: expected JSON, found ${typeof value}`);
    this.#grow(32, path);
    if (Array.isArray(value)) return this.#list(value, path, depth);
    if (!isPlain(value)) throw new NotPlain(`${path}: expected JSON, found ${classOf(value)}`);
    const entries: [string, Json][] = [];
    for (const [key, item] of Object.entries(value)) {
      entries.push([this.#text(key, path), this.copy(item, `${path}.${key.slice(0, 40)}`, depth + 1)]);
    }
    return Object.fromEntries(entries);
  }

  #list(value: readonly unknown[], path: string, depth: number): Json {
    const items: Json[] = [];
    // By place: a hole in a list is no JSON.
    for (let i = 0; i < value.length; i++) items.push(this.copy(value[i], `${path}.${i}`, depth + 1));
    return items;
  }

  #text(text: string, path: string): string {
    // No file but JSONL can hold half a character, and neither tokens nor the store can.
    if (!text.isWellFormed()) throw new NotPlain(`${path}: expected text, found half of a surrogate pair in it`);
    this.#grow(24 + (NOT_LATIN.test(text) ? 2 : 1) * text.length, path);
    return text;
  }

  #grow(bytes: number, path: string): void {
    this.bytes += bytes;
    if (this.bytes > MAX_ROW_BYTES) throw new NotPlain(`${path}: holds more than ${MAX_ROW_BYTES / 2 ** 20} MiB`);
  }
}

/** Texts without such characters take a byte for each. */
const NOT_LATIN = /[^\0-\xff]/;

function numberIn(value: number, path: string): number {
  if (!Number.isFinite(value)) throw new NotPlain(`${path}: expected a finite number, found ${value}`);
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) throw new NotPlain(`${path}: ${TOO_LARGE}`);
  // JSON text has no other zero.
  return value === 0 ? 0 : value;
}

function classOf({ constructor: made }: object): string {
  return typeof made === 'function' && made.name !== '' ? `a ${made.name.slice(0, 40)}` : 'an object of a class';
}

/**
 * What a task is known by where its row has no id: a hash of what is asked, 64 bits as 16 hexadecimal digits. So its name does not change
 * when the file is shuffled, split, appended to or written in another format. The answer is not in the hash: an agent sees the id of its
 * task, and could try answers against it.
 */
export function contentHash({ prompt, metadata }: Pick<TaskView, 'prompt' | 'metadata'>): string {
  const messages = prompt.map(({ role, content }) => ({ role, content }));
  return createHash('sha256')
    .update(canonicalJson({ prompt: messages, metadata: metadata ?? null }))
    .digest('hex')
    .slice(0, 16);
}
