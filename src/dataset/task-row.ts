/** One row → one task, or what is wrong with it. The same for every source. */
import { z } from 'zod';
import { sameJson } from '../core/json.ts';
import type { Json, PromptMessage, Task } from '../core/types.ts';
import { labelInMetadata } from './labels.ts';
import type { MetadataRules } from './metadata.ts';
import { plainJson } from './plain-json.ts';
import { kindOf } from './rows.ts';

const messages = z.array(z.strictObject({ role: z.enum(['system', 'user', 'assistant']), content: z.string() })).min(1);
const ID = /^[^\p{C}]{1,200}$/u;

export interface RowReading {
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
