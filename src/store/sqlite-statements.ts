/**
 * The SQL of the SQLite store: its prepared statements, the WHERE clause of a filter, and typed access to the columns of a row.
 *
 * Values are always bound, never spliced into the text.
 */
import type { DatabaseSync, SQLOutputValue, StatementSync } from 'node:sqlite';
import type { TrajectoryFilter } from '../core/contracts.ts';
import { DecodeError } from './codec.ts';

export type Row = Readonly<Record<string, SQLOutputValue>>;

export class Statements {
  readonly trajectory: StatementSync;
  readonly turns: StatementSync;
  readonly insertTrajectory: StatementSync;
  readonly insertTurn: StatementSync;
  readonly manifests: StatementSync;
  readonly lastManifest: StatementSync;
  readonly stepOf: StatementSync;
  readonly insertManifest: StatementSync;
  readonly insertMember: StatementSync;
  readonly hasTurn: StatementSync;
  readonly marks: StatementSync;
  readonly insertMark: StatementSync;

  constructor(database: DatabaseSync) {
    this.trajectory = database.prepare('SELECT seq, record, digest FROM trajectories WHERE rollout_id = ?');
    this.turns = database.prepare(
      'SELECT words, prompt_ids, sampled_ids, logprobs FROM turns WHERE trajectory = ? ORDER BY position',
    );
    this.insertTrajectory = database.prepare(
      'INSERT INTO trajectories (rollout_id, group_id, task_id, purpose, outcome, record, digest) VALUES (?, ?, ?, ?, ?, ?, ?)',
    );
    this.insertTurn = database.prepare(
      'INSERT INTO turns (trajectory, position, words, prompt_ids, sampled_ids, logprobs) VALUES (?, ?, ?, ?, ?, ?)',
    );
    this.manifests = database.prepare('SELECT record, digest FROM manifests ORDER BY step');
    this.lastManifest = database.prepare('SELECT record, digest FROM manifests ORDER BY step DESC LIMIT 1');
    this.stepOf = database.prepare('SELECT step FROM manifest_rollouts WHERE rollout_id = ?');
    this.insertManifest = database.prepare('INSERT INTO manifests (step, record, digest) VALUES (?, ?, ?)');
    this.insertMember = database.prepare('INSERT INTO manifest_rollouts (rollout_id, step) VALUES (?, ?)');
    this.hasTurn = database.prepare("SELECT 1 FROM turns WHERE trajectory = ? AND json_extract(words, '$.index') = ?");
    this.marks = database.prepare('SELECT record, digest FROM marks ORDER BY seq');
    this.insertMark = database.prepare('INSERT INTO marks (rollout_id, record, digest) VALUES (?, ?, ?)');
  }
}

/** The rows of `trajectories` that a filter means, in the order of appending. */
export function selection(filter: TrajectoryFilter): { readonly where: string; readonly values: readonly (string | number)[] } {
  const conditions: string[] = [];
  const values: (string | number)[] = [];
  const columns = { purpose: filter.purpose, group_id: filter.groupId, task_id: filter.taskId, outcome: filter.outcome };
  for (const [column, value] of Object.entries(columns)) {
    if (value === undefined) continue;
    conditions.push(`${column} = ?`);
    values.push(value);
  }
  if (filter.trained !== undefined) {
    conditions.push(`rollout_id ${filter.trained ? '' : 'NOT '}IN (SELECT rollout_id FROM manifest_rollouts)`);
  }
  const where = conditions.length === 0 ? '' : `WHERE ${conditions.join(' AND ')}`;
  if (filter.limit === undefined) return { where: `${where} ORDER BY seq`, values };
  return { where: `${where} ORDER BY seq LIMIT ?`, values: [...values, filter.limit] };
}

export function textIn(row: Row, column: string): string {
  const value = row[column];
  if (typeof value !== 'string') throw new DecodeError(`column ${column} holds ${typeof value}, expected text`);
  return value;
}

export function blobIn(row: Row, column: string): Uint8Array {
  const value = row[column];
  if (!(value instanceof Uint8Array)) throw new DecodeError(`column ${column} holds ${typeof value}, expected bytes`);
  return value;
}

export function integerIn(row: Row | undefined, column: string): number {
  const value = row?.[column];
  if (typeof value !== 'number') throw new DecodeError(`column ${column} holds ${typeof value}, expected an integer`);
  return value;
}
