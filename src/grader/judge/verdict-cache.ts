/**
 * Verdicts that were given before, by the hash of everything that was asked: the last ones in memory, and all of them in a directory where
 * one is named. Failures are never kept.
 *
 * A file that is not what was written counts as none. Files are sealed with the judge's key, so that whoever can write into the directory
 * but does not have the key, as an agent in a process of its own, cannot put a verdict there. Without a key nothing is sealed. A directory
 * that cannot be written costs the saving, never the verdict.
 */
import { createHmac, hash, randomUUID } from 'node:crypto';
import { constants, mkdir, open, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parsedJson } from '../../core/chat-completions.ts';
import type { Verdict } from './verdict.ts';

const MOST_KEPT = 10_000;
const FILE_BYTES = 64 * 1024;

export interface VerdictCache {
  get(question: string, key: string): Promise<Verdict | undefined>;
  put(question: string, key: string, verdict: Verdict): Promise<void>;
}

/** Of everything that decides a verdict. */
export function questionHash(asked: unknown): string {
  return hash('sha256', JSON.stringify(asked), 'hex');
}

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
