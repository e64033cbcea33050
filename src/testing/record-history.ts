/**
 * Writes down everything that is asked of a store and an engine, so that `checkHistory` can tell afterwards whether they kept
 * their promises.
 *
 * Each line is written synchronously: `invoked` before the operation starts, `ok` or `failed` before the caller learns of it. So
 * whatever a caller was told is in the history, also when the process is killed at the next instruction. Reads are passed
 * through unrecorded, and nothing is changed on the way.
 */

import { randomUUID } from 'node:crypto';
import { appendFileSync, closeSync, fstatSync, openSync, readSync } from 'node:fs';
import type { Store } from '../core/contracts.ts';
import { engineWith } from '../core/engine.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Engine, SampleRequest, SampleResult } from '../core/policy.ts';
import type { BatchManifest, Trajectory } from '../core/types.ts';
import { type Call, digestOf, type HistoryEntry, type Sampled } from './history.ts';

/** Takes a text that ends with a line; has kept it when it returns. */
export type HistorySink = (text: string) => void;

export interface History {
  /** The same store, recorded. */
  store(store: Store): Store;
  /** The same engine, recorded. */
  engine(engine: Engine): Engine;
}

/** Starts a process's part of the history. Processes that write to one history do so one after another. */
export function recordHistory(sink: HistorySink): History {
  const process = randomUUID().slice(0, 8);
  const write = (entry: HistoryEntry): void => sink(`${JSON.stringify(entry)}\n`);
  let operations = 0;
  write({ kind: 'process', process, pid: globalThis.process.pid });

  async function recorded<T>(call: Call, run: () => Promise<T>, sampledIn: (result: T) => Sampled | undefined): Promise<T> {
    const op = `${process}-${++operations}`;
    write({ kind: 'invoked', op, call });
    let result: T;
    try {
      result = await run();
    } catch (thrown) {
      write({ kind: 'failed', op, error: thrown instanceof TrainyardError ? thrown.code : messageOf(thrown) });
      throw thrown;
    }
    const sampled = sampledIn(result);
    write({ kind: 'ok', op, ...(sampled === undefined ? {} : { sampled }) });
    return result;
  }

  const nothing = (): undefined => undefined;
  return {
    store: (store) => ({
      append: (trajectory) => recorded(appendCall(trajectory), () => store.append(trajectory), nothing),
      commit: (manifest) => recorded(commitCall(manifest), () => store.commit(manifest), nothing),
      read: (rolloutId) => store.read(rolloutId),
      query: (filter) => store.query(filter),
      count: (filter) => store.count(filter),
      manifests: () => store.manifests(),
      mark: (marks) => store.mark(marks),
      marks: () => store.marks(),
      [Symbol.asyncDispose]: () => store[Symbol.asyncDispose](),
    }),
    engine: (engine) =>
      engineWith(engine, (request, signal, onTokens) =>
        recorded(sampleCall(request), () => engine.sample(request, signal, onTokens), sampledBy),
      ),
  };
}

/** A history in this file, which survives the process. What an earlier process left unfinished is ended with its line. */
export function historyFile(path: string): HistorySink {
  const file = openSync(path, 'a+');
  const { size } = fstatSync(file);
  const last = Buffer.alloc(1);
  if (size > 0) readSync(file, last, 0, 1, size - 1);
  closeSync(file);
  if (size > 0 && last.toString() !== '\n') appendFileSync(path, '\n');
  return (text) => appendFileSync(path, text);
}

function appendCall(trajectory: Trajectory): Call {
  const { rolloutId, groupId, purpose } = trajectory;
  const turns = trajectory.turns.map(({ sampling, policyVersion, promptIds, sampledIds, logprobs }) => ({
    seed: sampling.seed,
    policyVersion,
    prompt: digestOf(promptIds),
    result: digestOf([sampledIds, logprobs]),
  }));
  return { kind: 'append', rolloutId, groupId, purpose, content: digestOf(trajectory), turns };
}

function commitCall(manifest: BatchManifest): Call {
  const { step, policyVersion, rolloutIds } = manifest;
  return { kind: 'commit', step, policyVersion, rolloutIds: [...rolloutIds], content: digestOf(manifest) };
}

function sampleCall({ seed, promptIds }: SampleRequest): Call {
  return { kind: 'sample', seed, prompt: digestOf(promptIds) };
}

function sampledBy({ ids, logprobs, policyVersion }: SampleResult): Sampled {
  return { result: digestOf([ids, logprobs]), policyVersion };
}
