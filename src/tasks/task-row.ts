/** Converts a row from any source to a task, or says what is wrong with it. Also computes the hash that identifies tasks without an id. */
import { hash } from 'node:crypto';
import { z } from 'zod';
import { messageOf } from '../core/errors.ts';
import { canonicalJson, defined, isPlain, MAX_NESTING, sameJson } from '../core/json.ts';
import type { ByName, Json, PromptMessage, Task, TaskView } from '../core/types.ts';
import { kindOf, TOO_LARGE } from './rows.ts';
import { labelInMetadata, type MetadataRules } from './rules.ts';

const messages = z.array(z.strictObject({ role: z.enum(['system', 'user', 'assistant']), content: z.string() })).min(1);
const ID = /^[^\p{C}]{1,200}$/u;

export type ReadTask = Omit<Task, 'id'> & { readonly id?: string };

export type RowRead = { readonly task: ReadTask } | { readonly problems: readonly string[] };

/** `rules` is present if the source has a `metadata` column; the prompt is then optional. */
export function taskOf(given: ByName<unknown>, place: string, rules: MetadataRules | undefined): RowRead {
  const problems: string[] = [];
  const problem = (text: string) => void problems.push(text);
  const row = Object.create(null) as Record<string, Json>;
  for (const [name, value] of Object.entries(given)) {
    try {
      row[name] = copyOf(value, name, 0);
    } catch (thrown) {
      problem(thrown instanceof NotJson ? thrown.message : `${name}: reading it threw: ${messageOf(thrown)}`);
    }
  }
  if (problems.length > 0) return { problems };
  const id = idOf(row['id'], problem);
  const prompt = promptOf(row, rules !== undefined, problem);
  const answer = answerOf(row);
  const { metadata } = row;
  if (rules !== undefined) problems.push(...rules.problems(metadata, place));
  const task = { prompt, ...defined({ id, answer, metadata: rules && metadata }) };
  const leak = labelInMetadata(task);
  if (leak !== undefined) problem(`${leak} is the answer, and the agent sees metadata: leave it out there`);
  return problems.length > 0 ? { problems } : { task };
}

function idOf(id: unknown, problem: (text: string) => void): string | undefined {
  if (id === undefined || id === null || id === '') return undefined;
  if (typeof id === 'number' && Number.isInteger(id)) return String(id);
  if (typeof id === 'string' && ID.test(id)) return id;
  problem('id: expected 1 to 200 printable characters, or a whole number');
  return undefined;
}

/** The first that is not null; null if all are. */
function answerOf(row: ByName<unknown>): Json | undefined {
  const given = ['answer', 'ground_truth', 'label']
    .map((name) => row[name] as Json | undefined)
    .filter((value) => value !== undefined);
  return given.find((value) => value !== null) ?? given[0];
}

function promptOf(row: ByName<unknown>, isOptional: boolean, problem: (text: string) => void): readonly PromptMessage[] {
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

class NotJson extends Error {}

/** Copies a value as JSON. Rows given as values may hold anything, and JSON text may hold numbers that JavaScript cannot represent. */
function copyOf(value: unknown, path: string, depth: number): Json {
  if (depth > MAX_NESTING) throw new NotJson(`${path.slice(0, 80)}: nested deeper than ${MAX_NESTING} levels`);
  if (typeof value === 'string') return textOf(value, path);
  if (value === null || typeof value === 'boolean') return value;
  if (typeof value === 'number') return numberOf(value, path);
  if (typeof value !== 'object') throw new NotJson(`${path}: expected JSON, found ${typeof value}`);
  // Array.from visits holes, which are not JSON.
  if (Array.isArray(value)) return Array.from(value, (item, i) => copyOf(item, `${path}.${i}`, depth + 1));
  if (!isPlain(value)) throw new NotJson(`${path}: expected JSON, found ${classOf(value)}`);
  const copied = ([key, item]: [string, unknown]) =>
    [textOf(key, path), copyOf(item, `${path}.${key.slice(0, 40)}`, depth + 1)] as const;
  return Object.fromEntries(Object.entries(value).map(copied));
}

/** Neither tokens nor the store can represent a lone surrogate. */
function textOf(text: string, path: string): string {
  if (!text.isWellFormed()) throw new NotJson(`${path}: expected text, found half of a surrogate pair in it`);
  return text;
}

function numberOf(value: number, path: string): number {
  if (!Number.isFinite(value)) throw new NotJson(`${path}: expected a finite number, found ${value}`);
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) throw new NotJson(`${path}: ${TOO_LARGE}`);
  // JSON text has no negative zero.
  return value === 0 ? 0 : value;
}

function classOf({ constructor: made }: object): string {
  return typeof made === 'function' && made.name !== '' ? `a ${made.name.slice(0, 40)}` : 'an object of a class';
}

/**
 * The id of a task without one: a hash of prompt and metadata, 16 hex digits. Stable when the file is shuffled, split, appended to or
 * converted to another format. Leaves out the answer: an agent sees the id and could test guesses against it.
 */
export function contentHash({ prompt, metadata }: Pick<TaskView, 'prompt' | 'metadata'>): string {
  const messages = prompt.map(({ role, content }) => ({ role, content }));
  return hash('sha256', canonicalJson({ prompt: messages, metadata: metadata ?? null })).slice(0, 16);
}
