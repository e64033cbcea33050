/**
 * The format of a history: what was asked of the store and the engine, and what came of it, one JSON object per line.
 *
 * An operation is `invoked`, then `ok` or `failed`. One that was only invoked is `unknown`: the process was killed, and whether it
 * took effect must be looked up. Records are compared by digest, so a history holds no prompt, answer or text. Reading tolerates
 * one unfinished line at the end of each process's part: that is what a kill leaves; anything else unreadable is an error.
 */
import { createHash } from 'node:crypto';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';

const callSchema = z.discriminatedUnion('kind', [
  z.object({
    kind: z.literal('append'),
    rolloutId: z.string(),
    groupId: z.string(),
    purpose: z.enum(['train', 'eval']),
    /** Digest of the whole trajectory. */
    content: z.string(),
    /** `prompt` and `result` are digests of the ids, and of ids with log-probabilities. */
    turns: z.array(z.object({ seed: z.int(), policyVersion: z.int(), prompt: z.string(), result: z.string() })),
  }),
  z.object({
    kind: z.literal('commit'),
    step: z.int(),
    policyVersion: z.int(),
    rolloutIds: z.array(z.string()),
    /** Digest of the whole manifest. */
    content: z.string(),
  }),
  z.object({ kind: z.literal('sample'), seed: z.int(), prompt: z.string() }),
]);

const entrySchema = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('process'), process: z.string(), pid: z.int() }),
  z.object({ kind: z.literal('invoked'), op: z.string(), call: callSchema }),
  z.object({
    kind: z.literal('ok'),
    op: z.string(),
    /** What a sample returned. */
    sampled: z.object({ result: z.string(), policyVersion: z.int() }).optional(),
  }),
  z.object({ kind: z.literal('failed'), op: z.string(), error: z.string() }),
]);

export type HistoryEntry = z.infer<typeof entrySchema>;
export type Call = z.infer<typeof callSchema>;
export type Sampled = NonNullable<(HistoryEntry & { kind: 'ok' })['sampled']>;

export interface Operation {
  readonly call: Call;
  readonly state: 'ok' | 'failed' | 'unknown';
  readonly sampled: Sampled | undefined;
}

export interface ReadHistory {
  readonly processes: number;
  /** In the order they were invoked. */
  readonly operations: readonly Operation[];
}

export function readHistory(text: string): ReadHistory {
  const operations = new Map<string, Operation>();
  let processes = 0;
  for (const entry of entriesOf(text)) {
    if (entry.kind === 'process') processes++;
    else if (entry.kind === 'invoked') operations.set(entry.op, { call: entry.call, state: 'unknown', sampled: undefined });
    else {
      const invoked = operations.get(entry.op);
      if (invoked?.state !== 'unknown') throw damaged(`operation ${entry.op} ends without having begun, or twice`);
      const sampled = entry.kind === 'ok' ? entry.sampled : undefined;
      operations.set(entry.op, { ...invoked, state: entry.kind, sampled });
    }
  }
  return { processes, operations: [...operations.values()] };
}

function entriesOf(text: string): readonly HistoryEntry[] {
  const lines = text.split('\n').filter((line) => line !== '');
  const parsed = lines.map(parseLine);
  return parsed.flatMap((entry, place) => {
    if (entry !== undefined) return [entry];
    // A process may also be killed while it writes its first line: then there are two torn lines in a row.
    const next = parsed.slice(place + 1).find((later) => later !== undefined);
    if (next === undefined || next.kind === 'process') return [];
    throw damaged(`entry ${place + 1} cannot be read: ${lines[place]?.slice(0, 80)}`);
  });
}

function parseLine(line: string): HistoryEntry | undefined {
  try {
    return entrySchema.parse(JSON.parse(line));
  } catch {
    return undefined;
  }
}

function damaged(found: string): TrainyardError {
  return new TrainyardError('STORE_FORMAT', `the history is damaged: ${found}`, {
    hint: 'let only recordHistory write to it, one process after another',
  });
}

/** Equal for equal records, whatever the order of their keys; typed arrays are compared bit by bit, absent and undefined alike. */
export function digestOf(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value, canonical)).digest('base64url');
}

function canonical(_key: string, value: unknown): unknown {
  if (ArrayBuffer.isView(value)) return Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('base64');
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1)));
}
