/**
 * A history of the calls to store and engine and of their outcomes, one JSON object per line. `recordHistory` writes it; `checkHistory`
 * judges it. An operation is `invoked`, then `ok` or `failed`. One that was only invoked is `unknown`: the process was killed, and the
 * operation may have taken effect. Records are compared by digest, so a history holds no prompts or other text. Reading tolerates one torn
 * line at the end of each process's part, as a kill leaves it; anything else unreadable is an error.
 */
import { hash, randomUUID } from 'node:crypto';
import { appendFileSync, closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { z } from 'zod';
import {
  type BatchManifest,
  type Engine,
  type SampleRequest,
  type SampleResult,
  type Store,
  TrainyardError,
  type Trajectory,
} from '../../../src/index.ts';
import { canonicalJson } from '../../../src/loop.ts';

/** `content`, `prompt` and `result` are digests: of the whole record, of the ids, and of ids with log-probabilities. */
const callSchema = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('append'), rolloutId: z.string(), content: z.string() }),
  z.object({ kind: z.literal('commit'), step: z.int(), content: z.string() }),
  z.object({ kind: z.literal('sample'), seed: z.int(), prompt: z.string() }),
]);

const entrySchema = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('process'), process: z.string(), pid: z.int() }),
  z.object({ kind: z.literal('invoked'), op: z.string(), call: callSchema }),
  z.object({
    kind: z.literal('ok'),
    op: z.string(),
    sampled: z.object({ result: z.string(), policyVersion: z.int() }).optional(),
  }),
  z.object({ kind: z.literal('failed'), op: z.string(), error: z.string() }),
]);

type HistoryEntry = z.infer<typeof entrySchema>;
type Call = z.infer<typeof callSchema>;
type Sampled = NonNullable<(HistoryEntry & { kind: 'ok' })['sampled']>;

export interface Operation {
  readonly call: Call;
  readonly state: 'ok' | 'failed' | 'unknown';
  readonly sampled: Sampled | undefined;
}

interface ReadHistory {
  readonly processes: number;
  /** In the order of invocation. */
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
    // A process may also be killed while it writes its first line, which leaves two torn lines in a row.
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

/** Ignores the order of keys and whether a field is absent or undefined. Compares typed arrays bit by bit. */
export function digestOf(value: unknown): string {
  return hash('sha256', canonicalJson(value), 'base64url');
}

/** Gets whole lines. Must have stored the text when it returns. */
export type HistorySink = (text: string) => void;

export interface History {
  /** Wraps a store so that its appends and commits are recorded. */
  store(store: Store): Store;
  /** Wraps an engine so that its samples are recorded. */
  engine(engine: Engine): Engine;
}

/**
 * Starts a process's part of the history; processes must write one after another. Lines are written synchronously: `invoked` before the
 * operation starts, `ok` or `failed` before the caller learns of it. So the history holds whatever a caller was told, even if the process
 * is killed at the next instruction. Reads are not recorded. Results are passed on unchanged.
 */
export function recordHistory(sink: HistorySink): History {
  const process = randomUUID().slice(0, 8);
  const write = (entry: HistoryEntry): void => sink(`${JSON.stringify(entry)}\n`);
  let operations = 0;
  write({ kind: 'process', process, pid: globalThis.process.pid });

  async function recorded<T>(call: Call, run: () => Promise<T>, sampledIn?: (result: T) => Sampled): Promise<T> {
    const op = `${process}-${++operations}`;
    write({ kind: 'invoked', op, call });
    let result: T;
    try {
      result = await run();
    } catch (thrown) {
      write({ kind: 'failed', op, error: thrown instanceof TrainyardError ? thrown.code : String(thrown) });
      throw thrown;
    }
    const sampled = sampledIn?.(result);
    write({ kind: 'ok', op, ...(sampled === undefined ? {} : { sampled }) });
    return result;
  }

  return {
    store: (store) =>
      overlaid(store, {
        append: (trajectory) => recorded(appendOf(trajectory), () => store.append(trajectory)),
        commit: (manifest) => recorded(commitOf(manifest), () => store.commit(manifest)),
      }),
    engine: (engine) =>
      overlaid(engine, {
        sample: (request, signal, onTokens) =>
          recorded(sampleOf(request), () => engine.sample(request, signal, onTokens), sampledBy),
      }),
  };
}

export function overlaid<T extends object>(whole: T, changes: Partial<T>): T {
  return new Proxy(whole, {
    get(target, key) {
      const value = Reflect.get(key in changes ? changes : target, key) as unknown;
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}

/** Appends to a file, which survives the process. Ends a torn last line that an earlier process left. */
export function historyFile(path: string): HistorySink {
  const file = openSync(path, 'a+');
  const { size } = fstatSync(file);
  const last = Buffer.alloc(1);
  if (size > 0) readSync(file, last, 0, 1, size - 1);
  closeSync(file);
  if (size > 0 && last.toString() !== '\n') appendFileSync(path, '\n');
  return (text) => appendFileSync(path, text);
}

const appendOf = (trajectory: Trajectory): Call => ({
  kind: 'append',
  rolloutId: trajectory.rolloutId,
  content: digestOf(trajectory),
});
const commitOf = (manifest: BatchManifest): Call => ({ kind: 'commit', step: manifest.step, content: digestOf(manifest) });
const sampleOf = ({ seed, promptIds }: SampleRequest): Call => ({ kind: 'sample', seed, prompt: digestOf(promptIds) });
const sampledBy = ({ ids, logprobs, policyVersion }: SampleResult): Sampled => ({
  result: digestOf([ids, logprobs]),
  policyVersion,
});
