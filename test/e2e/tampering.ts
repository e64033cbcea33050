/** Lies in a run that ended: each changes a copy of its directory as a liar would, with digests that fit. */
import { readFileSync, writeFileSync } from 'node:fs';
import { cp, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { digestBytes } from '../../src/core/json.ts';
import type { BatchManifest, Mark, Trajectory } from '../../src/core/types.ts';
import { encodeRecord, encodeTurn } from '../../src/store/records.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';

type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
type Path = readonly (string | number)[];

/** `field`: of its kind of record, with `*` for places and names. `deletes`: what is missing need not be a lie, but has to be said. */
export interface Lie {
  readonly field: string;
  readonly deletes?: true;
  tell(run: string): Promise<void>;
}

/** What a word may be turned into and still be a record. */
const OTHER: Readonly<Record<string, string>> = {
  ...{ stop: 'length', length: 'stop', train: 'eval', eval: 'train' },
  ...{ system: 'user', user: 'system', tool: 'user', assistant: 'user' },
  ...{ before: 'after', during: 'after', after: 'during', steps: 'max-time', chat: 'responses' },
};

function otherThan(value: Json): Json {
  if (typeof value === 'number') return value + 1;
  if (typeof value === 'boolean') return !value;
  return typeof value === 'string' ? (OTHER[value] ?? `${value}x`) : 0;
}

/** Numbers, texts and flags, with the names of their fields: places in lists, and keys that somebody chose, become `*`. */
function leavesOf(value: Json, chosen: RegExp, path: Path = [], name = ''): { readonly path: Path; readonly name: string }[] {
  if (value instanceof Int32Array || value instanceof Float32Array)
    return value.length === 0 ? [] : [{ path: [...path, 0], name }];
  if (value === null || typeof value !== 'object') return value === null ? [] : [{ path, name }];
  return Object.entries(value).flatMap(([key, inner]) => {
    const isPlace = Array.isArray(value);
    const own = isPlace || chosen.test(name) ? '*' : key;
    return leavesOf(inner, chosen, [...path, isPlace ? Number(key) : key], name === '' ? own : `${name}.${own}`);
  });
}

const CHOSEN = /(parts|metrics|properties|output|metadata|files)$/;

/** One of each field: the last, or the first. */
function fieldsOf(records: readonly Json[], at: 'first' | 'last'): Map<string, { readonly place: number; readonly path: Path }> {
  const found = new Map<string, { place: number; path: Path }>();
  for (const [place, record] of records.entries()) {
    for (const { path, name } of leavesOf(record, CHOSEN)) {
      if (at === 'first' && found.has(name)) continue;
      found.set(name, { place, path });
    }
  }
  return found;
}

function changed<T>(record: T, path: Path, to: (value: Json) => Json = otherThan): T {
  const copy = structuredClone(record);
  let inner = copy as Record<string | number, never>;
  for (const key of path.slice(0, -1)) inner = inner[key]!;
  const last = path.at(-1)!;
  inner[last] = to(inner[last] as unknown as Json) as never;
  return copy;
}

export const eventsOf = (run: string): Json[] => {
  const lines = readFileSync(join(run, 'events.jsonl'), 'utf8').trimEnd().split('\n');
  return lines.map((line) => JSON.parse(line) as Json);
};

export function keepEvents(run: string, events: readonly Json[]): void {
  writeFileSync(join(run, 'events.jsonl'), events.map((event) => `${JSON.stringify(event)}\n`).join(''));
}

export function inStore(run: string, work: (database: DatabaseSync) => void): void {
  using database = new DatabaseSync(join(run, 'store.sqlite'));
  database.exec('PRAGMA foreign_keys = OFF');
  work(database);
}

/** In place of the one with this id. Unlike a store's, this encoding takes what no record may hold. */
export function keepTrajectory(run: string, rolloutId: string, trajectory: Trajectory): void {
  const { turns: said, ...rest } = trajectory;
  const record = JSON.stringify(rest);
  const turns = said.map(encodeTurn);
  const pieces = turns.flatMap((turn) => [turn.words, turn.promptIds, turn.sampledIds, turn.logprobs]);
  const digest = digestBytes([record, ...pieces]);
  inStore(run, (database) => {
    const { seq } = database.prepare('SELECT seq FROM trajectories WHERE rollout_id = ?').get(rolloutId) as {
      readonly seq: number;
    };
    const { rolloutId: id, groupId, taskId, purpose, outcome } = trajectory;
    database
      .prepare(
        'UPDATE trajectories SET rollout_id=?, group_id=?, task_id=?, purpose=?, outcome=?, record=?, digest=? WHERE seq=?',
      )
      .run(id, groupId, taskId, purpose, outcome.kind, record, digest, seq);
    for (const [i, turn] of turns.entries()) {
      const values = [turn.words, turn.promptIds, turn.sampledIds, turn.logprobs] as const;
      database
        .prepare('UPDATE turns SET words=?, prompt_ids=?, sampled_ids=?, logprobs=? WHERE trajectory=? AND position=?')
        .run(...values, seq, i);
    }
  });
}

function keepRecord(run: string, table: 'manifests' | 'marks', place: number, kept: BatchManifest | Mark): void {
  const { record, digest } = encodeRecord(kept);
  inStore(run, (database) => {
    const { id } = database.prepare(`SELECT rowid AS id FROM ${table} ORDER BY rowid LIMIT 1 OFFSET ?`).get(place) as {
      id: number;
    };
    database.prepare(`UPDATE ${table} SET record=?, digest=? WHERE rowid=?`).run(record, digest, id);
  });
}

export async function keepManifest(run: string, place: number, to: (manifest: BatchManifest) => BatchManifest): Promise<void> {
  const store = await openSqliteStore(join(run, 'store.sqlite'));
  const manifest = (await store.manifests())[place]!;
  await store[Symbol.asyncDispose]();
  keepRecord(run, 'manifests', place, to(manifest));
}

/** Every field of every kind of record changed once, and every line of events.jsonl and one row of each table deleted. */
export async function liesIn(run: string): Promise<readonly Lie[]> {
  const lies = await changesIn(run);
  return lies.map((lie) => (lie.deletes ? { ...lie, field: `${lie.field} deleted` } : lie));
}

async function changesIn(run: string): Promise<readonly Lie[]> {
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  const [trajectories, manifests, marks] = [await store.query(), await store.manifests(), await store.marks()];
  const events = eventsOf(run);
  const lies: Lie[] = [];
  for (const type of new Set(events.map((event) => (event as { type: string }).type))) {
    const own = events.flatMap((event, place) => ((event as { type: string }).type === type ? [{ event, place }] : []));
    const records = own.map(({ event }) => event);
    for (const [name, { place, path }] of fieldsOf(records, 'last')) {
      const lie = events.map((event, i) => (i === own[place]!.place ? changed(event, path) : event));
      lies.push({ field: `event.${type}.${name}`, tell: async (copy) => keepEvents(copy, lie) });
    }
    for (const { place } of own) {
      const rest = events.filter((_, i) => i !== place);
      lies.push({ field: `event.${type}`, deletes: true, tell: async (copy) => keepEvents(copy, rest) });
    }
  }
  lies.push({ field: 'events.jsonl', deletes: true, tell: (copy) => rm(join(copy, 'events.jsonl')) });
  for (const [name, { place, path }] of fieldsOf(manifests as never, 'last')) {
    const tell: Lie['tell'] = async (copy) => keepRecord(copy, 'manifests', place, changed(manifests[place]!, path));
    lies.push({ field: `manifest.${name}`, tell });
  }
  for (const [name, { place, path }] of fieldsOf(marks as never, 'last')) {
    lies.push({ field: `mark.${name}`, tell: async (copy) => keepRecord(copy, 'marks', place, changed(marks[place]!, path)) });
  }
  const trained = new Set(manifests.flatMap(({ rolloutIds }) => rolloutIds));
  const kinds = {
    trained: trajectories.filter(({ rolloutId }) => trained.has(rolloutId)),
    untrained: trajectories.filter(({ rolloutId, purpose }) => purpose === 'train' && !trained.has(rolloutId)),
    evaluated: trajectories.filter(({ purpose }) => purpose === 'eval'),
  };
  for (const [kind, own] of Object.entries(kinds)) {
    for (const [name, { place, path }] of fieldsOf(own as never, 'last')) {
      const was = own[place]!;
      const field = name.startsWith('turns.*.') ? `turn.${name.slice('turns.*.'.length)}` : `rollout.${name}`;
      lies.push({ field: `${kind} ${field}`, tell: async (copy) => keepTrajectory(copy, was.rolloutId, changed(was, path)) });
    }
    const gone = own.at(-1)?.rolloutId ?? '';
    const tell = async (copy: string): Promise<void> =>
      inStore(copy, (database) => {
        database.prepare('DELETE FROM turns WHERE trajectory = (SELECT seq FROM trajectories WHERE rollout_id = ?)').run(gone);
        database.prepare('DELETE FROM trajectories WHERE rollout_id = ?').run(gone);
      });
    if (own.length > 0) lies.push({ field: `${kind} rollout`, deletes: true, tell });
  }
  for (const table of ['manifests', 'manifest_rollouts', 'marks']) {
    const sql = `DELETE FROM ${table} WHERE rowid = (SELECT max(rowid) FROM ${table})`;
    lies.push({ field: table, deletes: true, tell: async (copy) => inStore(copy, (database) => database.exec(sql)) });
  }
  for (const column of ['purpose', 'outcome', 'task_id', 'group_id', 'rollout_id']) {
    const sql = `UPDATE trajectories SET ${column} = ${column} || 'x' WHERE seq = (SELECT max(seq) FROM trajectories)`;
    lies.push({ field: `column ${column}`, tell: async (copy) => inStore(copy, (database) => database.exec(sql)) });
  }
  const labels = `checkpoints/step-${String(manifests.length).padStart(6, '0')}`;
  const label = JSON.parse(readFileSync(join(run, labels, 'checkpoint.json'), 'utf8')) as Json;
  for (const [name, { path }] of fieldsOf([label], 'last')) {
    const text = JSON.stringify(changed(label, path));
    lies.push({ field: `label.${name}`, tell: async (copy) => writeFileSync(join(copy, labels, 'checkpoint.json'), text) });
  }
  lies.push({ field: 'checkpoint', deletes: true, tell: (copy) => rm(join(copy, labels), { recursive: true }) });
  return lies;
}

export type Verdict = 'found' | 'said' | 'not found';

/** `clean`: what is not checked in the run itself. */
export async function verdictOn(
  lie: Lie,
  run: string,
  clean: readonly string[],
  verify: (
    run: string,
  ) => Promise<{ readonly different: number; readonly unchecked: readonly string[]; readonly first: object | null }>,
): Promise<readonly [Verdict, string]> {
  const copy = `${run}-lie`;
  await rm(copy, { recursive: true, force: true });
  await cp(run, copy, { recursive: true });
  try {
    await lie.tell(copy);
    const { different, unchecked, first } = await verify(copy);
    const more = unchecked.filter((one) => !clean.includes(one));
    if (different > 0) return ['found', JSON.stringify(first)];
    return more.length > 0 ? ['said', more.join('; ')] : ['not found', ''];
  } catch (thrown) {
    return ['found', `${(thrown as Error & { code?: string }).code}: ${(thrown as Error).message}`];
  } finally {
    await rm(copy, { recursive: true, force: true });
  }
}
