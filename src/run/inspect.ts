/**
 * Inspects and curates a store: rollout summaries, single rollouts turn by turn with the cause of each fork, and exclusions from training.
 * Works on a run in progress too, whose next batch honors new marks. Steps already taken stay trained.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import type { Store } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { FilterRow } from '../core/filter.ts';
import { defined } from '../core/json.ts';
import { exclusionsIn, placeOf, summaryOf } from '../core/turns.ts';
import type { BatchManifest, Exclusion, Mark, Message, RolloutSummary, Trajectory, Turn } from '../core/types.ts';
import { stitch } from '../tokens/stitch.ts';

export type RolloutLine = ReturnType<typeof rolloutLine>;

/** A rollout in a list: what the store says of it, and what steps and marks do. */
export type RolloutRow = FilterRow;

/** Throws FILE_NOT_FOUND. `path`: of the store, for the message. */
export async function rolloutIn(store: Store, path: string, rolloutId: string): Promise<Trajectory> {
  const found = await store.read(rolloutId);
  if (found !== undefined) return found;
  throw new TrainyardError(
    'FILE_NOT_FOUND',
    `${path} holds no rollout ${JSON.stringify(rolloutId)}`,
    `list them: trainyard show ${path}; rollouts are kept when they end`,
  );
}

export async function stepsIn(store: Store): Promise<ReadonlyMap<string, number>> {
  return stepsBy(await store.manifests());
}

function stepsBy(manifests: readonly BatchManifest[]): ReadonlyMap<string, number> {
  return new Map(manifests.flatMap(({ step, rolloutIds }) => rolloutIds.map((id) => [id, step] as const)));
}

/** Marks in force, by rollout. */
export async function exclusionsOf(store: Store): Promise<ReadonlyMap<string, readonly Mark[]>> {
  return exclusionsBy(await store.marks());
}

function exclusionsBy(marks: readonly Mark[]): ReadonlyMap<string, readonly Mark[]> {
  return Map.groupBy(exclusionsIn(marks), ({ rolloutId }) => rolloutId);
}

/** What steps and marks say of a rollout, added to what the store does. */
export function rowOf(
  summary: RolloutSummary,
  steps: ReadonlyMap<string, number>,
  exclusions: ReadonlyMap<string, readonly Mark[]>,
): RolloutRow {
  const marks = exclusions.get(summary.rolloutId) ?? [];
  return {
    ...summary,
    step: steps.get(summary.rolloutId) ?? null,
    excluded: marks.find(({ turn }) => turn === undefined)?.reason ?? null,
    excludedTurns: Object.fromEntries(marks.flatMap(({ turn, reason }) => (turn === undefined ? [] : [[turn, reason]]))),
  };
}

export function rolloutLine(row: RolloutRow, trajectory: Trajectory) {
  const { rolloutId, taskId, purpose, outcome, limit, reward, parts, metrics, turns } = row;
  const { step, forks, abandoned, failedCalls, excluded, excludedTurns } = row;
  return {
    rolloutId,
    taskId,
    purpose,
    outcome: limit === null ? outcome : `${outcome} (${limit})`,
    reward,
    ...defined({ parts, metrics }),
    turns,
    /** Training rows it yields or would yield. Null if it cannot be trained (greedy sampling, for example). */
    samples: samplesOf(trajectory),
    step,
    forks,
    abandoned,
    failedCalls,
    excluded,
    excludedTurns,
  };
}

/** Rollouts read at first in one go, and milliseconds that one go should take: the event loop has other work. */
const FIRST_CHUNK = 100;
const CHUNK_MS = 20;

/** The rollouts of a store in a list, in append order, kept up to date by reading only what is new. */
export class RolloutIndex {
  readonly #store: Store;
  readonly #rows: RolloutRow[] = [];
  readonly #places = new Map<string, number>();
  readonly #steps = new Map<string, number>();
  #exclusions: ReadonlyMap<string, readonly Mark[]> = new Map();
  #step = 0;
  #marks = 0;
  #total = 0;
  #chunk = FIRST_CHUNK;
  #updating: Promise<void> | undefined;
  /** Changes with the rows. */
  version = 0;

  constructor(store: Store) {
    this.#store = store;
  }

  get rows(): readonly RolloutRow[] {
    return this.#rows;
  }

  /** Rollouts in the store, of which `rows` may still lack some. */
  get total(): number {
    return Math.max(this.#total, this.#rows.length);
  }

  /** Also of a rollout that is not in `rows` yet. */
  rowOf(trajectory: Trajectory): RolloutRow {
    const place = this.#places.get(trajectory.rolloutId);
    return place === undefined ? rowOf(summaryOf(trajectory, 0), this.#steps, this.#exclusions) : this.#rows[place]!;
  }

  /** Reads what is new, in pieces. Called again meanwhile, it waits for the same. */
  update(): Promise<void> {
    this.#updating ??= this.#read().finally(() => {
      this.#updating = undefined;
    });
    return this.#updating;
  }

  async #read(): Promise<void> {
    await this.join();
    if (this.#rows.length === 0) this.#total = await this.#store.count();
    while (true) {
      const began = performance.now();
      const found = await this.#store.summaries(this.#rows.at(-1)?.seq, this.#chunk);
      for (const summary of found) {
        this.#places.set(summary.rolloutId, this.#rows.length);
        this.#rows.push(rowOf(summary, this.#steps, this.#exclusions));
      }
      if (found.length > 0) this.version++;
      if (found.length < this.#chunk) return;
      this.#chunk = Math.max(1, Math.ceil((found.length * CHUNK_MS) / Math.max(1, performance.now() - began)));
      await nextTurn();
    }
  }

  /** Reads what steps and marks say, without reading more rollouts. Both are only ever appended to. */
  async join(): Promise<void> {
    const manifests = await this.#store.manifests(this.#step);
    const marks = await this.#store.marks();
    const changed = manifests.flatMap(({ rolloutIds }) => rolloutIds);
    for (const [id, step] of stepsBy(manifests)) this.#steps.set(id, step);
    this.#step = manifests.at(-1)?.step ?? this.#step;
    if (marks.length > this.#marks) {
      changed.push(...marks.slice(this.#marks).map(({ rolloutId }) => rolloutId));
      this.#exclusions = exclusionsBy(marks);
      this.#marks = marks.length;
    }
    for (const id of changed) {
      const place = this.#places.get(id);
      if (place !== undefined) this.#rows[place] = rowOf(this.#rows[place]!, this.#steps, this.#exclusions);
    }
    if (changed.length > 0) this.version++;
  }
}

export interface Rewritten {
  /** From the turn that the request would have continued. */
  readonly was: Message | null;
  readonly is: Message | null;
}

/** The message at which a turn's request diverges from the turn it forked from. */
export function rewrittenAt({ fork, request }: Turn, turns: readonly Turn[]): Rewritten | null {
  const from = fork?.message === undefined ? undefined : turns.find(({ index }) => index === fork.from);
  if (from === undefined || fork?.message === undefined) return null;
  return { was: [...from.request.messages, from.response][fork.message] ?? null, is: request.messages[fork.message] ?? null };
}

/** The messages that are new in this turn; all of them in a thread's first turn. */
export function newMessages({ index, thread, after, fork, request }: Turn, turns: readonly Turn[]): readonly Message[] {
  const { messages } = request;
  const from =
    turns.find((turn) => turn.index === (after ?? fork?.from)) ??
    turns.findLast((turn) => turn.thread === thread && turn.index < index);
  if (from === undefined) return messages;
  const known = [...from.request.messages, from.response];
  if (after !== undefined) return messages.slice(known.length);
  const differs = messages.findIndex((message, i) => !isDeepStrictEqual(message, known[i]));
  return messages.slice(fork?.message ?? (differs === -1 ? messages.length : differs));
}

function samplesOf({ turns, rolloutId, groupId }: Trajectory): number | null {
  try {
    return stitch(turns, { advantageOf: () => 0, weight: 1, rolloutId, groupId }).length;
  } catch {
    return null;
  }
}

export interface CurationRequest {
  readonly rolloutIds: readonly string[];
  readonly turn?: number | undefined;
  readonly reason?: string | undefined;
  readonly undo?: boolean | undefined;
}

export interface CurationLine extends Mark {
  /** The step that already trained the rollout; curation does not undo that. */
  readonly step: number | null;
  readonly purpose: 'train' | 'eval';
}

const LONGEST_REASON = 2000;

export async function curationIn(store: Store): Promise<readonly CurationLine[]> {
  return await linesOf(store, exclusionsIn(await store.marks()));
}

/** Returns the new marks. Skips places already excluded for the same reason. */
export async function curate(store: Store, request: CurationRequest, now: number = Date.now()): Promise<readonly CurationLine[]> {
  const { turn, undo = false } = request;
  const reason = reasonOf(request);
  const places = [...new Set(request.rolloutIds)].map((rolloutId): Exclusion => ({ rolloutId, ...defined({ turn }) }));
  const inForce = new Map(exclusionsIn(await store.marks()).map((mark) => [placeOf(mark), mark]));
  await checkPlaces(store, places, undo ? inForce : undefined);
  const marks = places
    .filter((place) => undo || inForce.get(placeOf(place))?.reason !== reason)
    .map((place): Mark => ({ ...place, excluded: !undo, reason, at: now }));
  await store.mark(marks);
  return await linesOf(store, marks);
}

function reasonOf({ reason, undo = false }: CurationRequest): string {
  const given = reason?.trim() ?? (undo ? 'taken back' : '');
  if (given !== '' && given.length <= LONGEST_REASON) return given;
  const found = given === '' ? 'none' : `${given.length} characters`;
  throw new TrainyardError(
    'USAGE',
    `reason: expected 1 to ${LONGEST_REASON} characters, found ${found}`,
    'say with --reason why it is not to be trained: it is kept for whoever looks later',
  );
}

/** Null for a rollout that is there and cannot be read: it can be left out all the same. */
function damaged(thrown: unknown): null {
  if (thrown instanceof TrainyardError && thrown.code === 'STORE_FORMAT') return null;
  throw thrown;
}

/** `inForce`: exclusions that may be undone; given only for an undo. */
async function checkPlaces(store: Store, places: readonly Exclusion[], inForce?: ReadonlyMap<string, Mark>): Promise<void> {
  const problems: string[] = [];
  for (const place of places) {
    const { rolloutId, turn } = place;
    const trajectory = await store.read(rolloutId).catch(damaged);
    const name = JSON.stringify(rolloutId);
    if (trajectory === null) continue;
    if (trajectory === undefined) problems.push(`no rollout ${name} is kept`);
    else if (turn !== undefined && !trajectory.turns.some(({ index }) => index === turn)) {
      problems.push(`rollout ${name} has no turn ${turn}, it has ${trajectory.turns.length}, counted from 0`);
    } else if (inForce !== undefined && !inForce.has(placeOf(place))) {
      problems.push(`${turn === undefined ? '' : `turn ${turn} of `}rollout ${name} is not excluded`);
    }
  }
  if (problems.length === 0) return;
  throw new TrainyardError(
    'USAGE',
    problems.join('; '),
    'nothing was written; trainyard show <run> lists rollouts, trainyard curate <run> what is excluded',
  );
}

async function linesOf(store: Store, marks: readonly Mark[]): Promise<readonly CurationLine[]> {
  const steps = await stepsIn(store);
  return await Array.fromAsync(marks, async (mark) => {
    const { purpose = 'train' } = (await store.read(mark.rolloutId).catch(damaged)) ?? {};
    return { ...mark, step: steps.get(mark.rolloutId) ?? null, purpose };
  });
}
