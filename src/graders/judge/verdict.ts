/**
 * What a judge replied, read strictly: JSON with the check that it was given and a finite number for every score. A number outside of the
 * scale is moved to its end and counted; anything else is no verdict.
 *
 * Around the verdict there may be other words, and JSON without the check: a judge that quotes the agent must not lose its verdict by that. What
 * it thought before it replied is no reply, and two verdicts that differ, or one that names a score twice, are none: which one was meant is not known.
 *
 * No message quotes the reply: a judge that was shown the answer may repeat it, and messages are logged.
 */
import { createHmac, hash, randomUUID } from 'node:crypto';
import { constants, mkdir, open, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isObject, parsedJson } from '../../core/json.ts';
import type { Json } from '../../core/types.ts';
import { bracketedIn, jsonEqual } from '../json-match.ts';
import type { JudgedBy } from './question.ts';

type Said = { readonly [name: string]: Json };

export interface Verdict {
  /** One for each criterion, or the only one. */
  readonly scores: readonly number[];
  /** How many of them were outside of the scale. */
  readonly clamped: number;
}

/** The verdict, or what is wrong with it. */
export function verdictIn(reply: string, { scale: [low, high], criteria }: JudgedBy, check: string): Verdict | string {
  const said = saidIn(reply, check);
  if (typeof said === 'string') return said;
  const { scores } = said;
  // Without criteria the score stands in the verdict itself.
  const given = criteria.length === 0 ? said : scores !== undefined && isObject(scores) ? scores : {};
  const names = criteria.length === 0 ? ['score'] : criteria.map(({ name }) => name);
  const found = names.map((name) => (Object.hasOwn(given, name) ? given[name] : undefined));
  const bad = found.findIndex((score) => typeof score !== 'number' || !Number.isFinite(score));
  if (bad !== -1) return `its ${JSON.stringify(names[bad])} is ${kindOf(found[bad])}, expected a number`;
  const numbers = found as readonly number[];
  const kept = numbers.map((score) => Math.min(high, Math.max(low, score)));
  return { scores: kept, clamped: kept.filter((score, i) => score !== numbers[i]).length };
}

function saidIn(reply: string, check: string): Said | string {
  const answer = withoutThoughts(reply);
  if (answer === undefined) return 'its reply ends before it was done thinking';
  const objects = [...bracketedIn(answer)].filter((one): one is { value: Said; json: string } => isObject(one.value));
  if (objects.length === 0) return 'its reply is no JSON object';
  const verdicts = objects.filter(({ value }) => value['check'] === check);
  const [first] = verdicts;
  if (first === undefined) return 'its verdict does not repeat the check it was given, as if it followed somebody else';
  if (verdicts.some(({ json }) => namesTwice(json))) return 'its verdict names something twice';
  const meant = ({ score, scores }: Said): Json => ({ score: score ?? null, scores: scores ?? null });
  if (verdicts.some(({ value }) => !jsonEqual(meant(first.value), meant(value)))) return 'it gave several verdicts that differ';
  return first.value;
}

/** Servers that do not take thoughts out leave them in front. Undefined where there is nothing else. */
function withoutThoughts(reply: string): string | undefined {
  if (reply.trimStart().startsWith('{')) return reply;
  const end = /<\/think(?:ing)?>/.exec(reply);
  if (end !== null) return reply.slice(end.index + end[0].length);
  return /^\s*<think(?:ing)?>/.test(reply) ? undefined : reply;
}

/** Whether an object in it has a name twice: `JSON.parse` takes the last without a word. */
function namesTwice(json: string): boolean {
  const open: Set<string>[] = [];
  for (const [token, name] of json.matchAll(/("(?:[^"\\]|\\.)*")\s*:|"(?:[^"\\]|\\.)*"|[{}]/g)) {
    if (token === '{') open.push(new Set());
    else if (token === '}') open.pop();
    else if (name !== undefined) {
      const names = open.at(-1)!;
      if (names.size === names.add(JSON.parse(name) as string).size) return true;
    }
  }
  return false;
}

function kindOf(value: unknown): string {
  if (value === undefined) return 'missing';
  if (typeof value === 'number') return 'not finite';
  return value === null ? 'null' : typeof value === 'string' ? 'a text' : `a ${typeof value}`;
}

// ── verdicts that were given before ─────────────────────────────────────────────────────────────────────────────────────

const MOST_KEPT = 10_000;
const FILE_BYTES = 64 * 1024;

interface VerdictCache {
  get(question: string, key: string): Promise<Verdict | undefined>;
  put(question: string, key: string, verdict: Verdict): Promise<void>;
}

/** Of everything that decides a verdict. */
export function questionHash(asked: unknown): string {
  return hash('sha256', JSON.stringify(asked), 'hex');
}

/**
 * By the hash of everything that was asked: the last ones in memory, and all of them in a directory where one is named. Failures are never kept.
 *
 * A file that is not what was written counts as none. Files are sealed with the judge's key, so that whoever can write into the directory
 * but does not have the key, as an agent in a process of its own, cannot put a verdict there. Without a key nothing is sealed. A directory
 * that cannot be written costs the saving, never the verdict.
 */
export function verdictCache(directory?: string): VerdictCache {
  const kept = new Map<string, Verdict>();
  const keep = (question: string, verdict: Verdict): Verdict => {
    // Behind all others: a map gives its keys in the order they were put in, so the first is the one longest unused.
    kept.delete(question);
    kept.set(question, verdict);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value!);
    return verdict;
  };
  return {
    async get(question, key) {
      const known = kept.get(question) ?? (directory === undefined ? undefined : await readVerdict(directory, question, key));
      return known && keep(question, known);
    },
    async put(question, key, verdict) {
      keep(question, verdict);
      if (directory !== undefined) await writeVerdict(directory, question, key, verdict);
    },
  };
}

async function readVerdict(directory: string, question: string, key: string): Promise<Verdict | undefined> {
  const text = await readPlain(join(directory, `${question}.json`));
  if (text === undefined) return undefined;
  const file = parsedJson(text) as Partial<Verdict & { seal: unknown }> | null | undefined;
  const { scores, clamped, seal } = file ?? {};
  const isVerdict = Array.isArray(scores) && scores.every((score) => Number.isFinite(score)) && Number.isSafeInteger(clamped);
  if (!isVerdict) return undefined;
  const verdict: Verdict = { scores, clamped: clamped! };
  return seal === sealOf(question, key, verdict) ? verdict : undefined;
}

/** Undefined where it is not there, or is no file of ours: a pipe would be waited for, and a link to a device read without end. */
async function readPlain(path: string): Promise<string | undefined> {
  try {
    await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    const stats = await file.stat();
    return stats.isFile() && stats.size <= FILE_BYTES ? await file.readFile('utf8') : undefined;
  } catch {
    return undefined;
  }
}

/** Whole or not there: renamed into place. */
async function writeVerdict(directory: string, question: string, key: string, verdict: Verdict): Promise<void> {
  const temporary = join(directory, `${question}.${randomUUID()}.tmp`);
  try {
    await mkdir(directory, { recursive: true });
    await writeFile(temporary, `${JSON.stringify({ ...verdict, seal: sealOf(question, key, verdict) })}\n`);
    await rename(temporary, join(directory, `${question}.json`));
  } catch {
    await rm(temporary, { force: true }).catch(() => {});
  }
}

function sealOf(question: string, key: string, { scores, clamped }: Verdict): string {
  return createHmac('sha256', key)
    .update(JSON.stringify([question, scores, clamped]))
    .digest('hex');
}
