/**
 * Records as a store keeps them: a deep copy in canonical form, taken when the call is made, and its conversion to and from rows. So
 * neither side can change the other's data later, and equal records have equal encodings. Knows no SQL.
 *
 * Canonical: sorted keys, except in tools, whose schemas templates write in their order; no undefined properties, 0 for -0; token ids and log-probabilities bit for bit. Values that JSON cannot hold
 * throw STORE_FAILED before anything is written; they never become null. Rows hold JSON text, BLOBs of little-endian 32-bit values, and a
 * digest over both that identifies equal records and detects damage on reading.
 */
import { endianness } from 'node:os';
import type { z } from 'zod';
import type { TrajectoryFilter } from '../core/contracts.ts';
import { kindOf } from '../core/describe.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { digestBytes } from '../core/json.ts';
import type { Summarised } from '../core/turns.ts';
import type { BatchManifest, Mark, Trajectory, Turn } from '../core/types.ts';
import { filterSchema, manifestSchema, markSchema, misfitOf, trajectorySchema } from './schemas.ts';

/** Far below what overflows a JSON parser's stack. Also stops cycles. */
const MAX_DEPTH = 500;

// These return private copies, and throw STORE_FAILED for an invalid record.

export function keepTrajectory(trajectory: Trajectory): Trajectory {
  return kept(`trajectory ${JSON.stringify(trajectory.rolloutId)}`, trajectorySchema, (trail) => {
    const { turns, ...rest } = trajectory;
    const tokens = turns.reduce((sum, turn) => sum + tokensIn(turn), 0);
    const room = { buffer: new ArrayBuffer(4 * tokens), used: 0 };
    return { ...plainObject(rest, trail), turns: turns.map((turn, position) => keepTurn(turn, trail, position, room)) };
  });
}

export function keepManifest(manifest: BatchManifest): BatchManifest {
  return kept(`manifest of step ${manifest.step}`, manifestSchema, (trail) => plainObject(manifest, trail));
}

export function keepMark(mark: Mark): Mark {
  return kept(`mark of rollout ${JSON.stringify(mark.rolloutId)}`, markSchema, (trail) => plainObject(mark, trail));
}

function kept<T>(what: string, schema: z.ZodType<T>, copyOf: (trail: Trail) => object): T {
  const copy = copyOf({ at: [what], copies: new Map() });
  const misfit = misfitOf(schema, copy);
  if (misfit !== undefined) throw unfit(`${what} cannot be kept: ${misfit}`);
  return copy as T;
}

/** Throws USAGE unless the limit is a non-negative integer: SQL would read a negative one as "no limit". */
export function checkFilter(filter: TrajectoryFilter): void {
  const misfit = misfitOf(filterSchema, filter);
  const hint = 'pass a limit of 0 or more, or none';
  if (misfit !== undefined) throw new TrainyardError('USAGE', `a trajectory filter is malformed: ${misfit}`, { hint });
}

interface Trail {
  /** Current path in the record, for messages. Joined only on an error. */
  readonly at: (string | number)[];
  /** Consecutive turns repeat earlier messages as the same objects: each is copied once, and the copies share it too. */
  readonly copies: Map<object, unknown>;
}

/** The tokens of all turns of a record share one buffer: thousands of small ones are slow to make, to hand to a thread and to collect. */
interface Room {
  readonly buffer: ArrayBuffer;
  used: number;
}

function keepTurn(turn: Turn, trail: Trail, position: number, room: Room): object {
  const { promptIds, sampledIds, logprobs, ...words } = turn;
  trail.at.push('turns', position);
  const plain = plainObject(words, trail) as Record<string, unknown>;
  trail.at.length -= 2;
  plain['promptIds'] = copyInto(room, promptIds);
  plain['sampledIds'] = copyInto(room, sampledIds);
  plain['logprobs'] = copyInto(room, logprobs);
  return plain;
}

const tokensIn = ({ promptIds, sampledIds, logprobs }: Turn): number => promptIds.length + sampledIds.length + logprobs.length;

/** What is no such array is left to the check, which refuses it. */
function copyInto(room: Room, values: Int32Array | Float32Array): Int32Array | Float32Array {
  if (!(values instanceof Int32Array || values instanceof Float32Array)) return values;
  const Numbers = values instanceof Int32Array ? Int32Array : Float32Array;
  const copy = new Numbers(room.buffer, room.used, values.length);
  copy.set(values);
  room.used += copy.byteLength;
  return copy;
}

function plainObject(value: object, trail: Trail): object {
  const source = value as Readonly<Record<string, unknown>>;
  const copy: Record<string, unknown> = {};
  for (const key of isInTools(trail) ? Object.keys(source) : sortedKeys(source)) {
    const inner = source[key];
    if (inner === undefined) continue;
    const plain = plainInside(inner, trail, key);
    // Assignment would set the prototype.
    if (key === '__proto__')
      Object.defineProperty(copy, key, { value: plain, enumerable: true, writable: true, configurable: true });
    else copy[key] = plain;
  }
  return copy;
}

/** Whether this is one of a turn's tools, or inside one. */
const isInTools = ({ at }: Trail): boolean => at[4] === 'tools' && at[3] === 'request' && at[1] === 'turns';

/** Up to this many keys, the insertion sort below is faster. */
const FEW = 24;

/** Sorts by code units, like `sort`, which would allocate more garbage for a record's hundred small objects than the record itself. */
function sortedKeys(source: object): readonly string[] {
  const keys = Object.keys(source);
  if (keys.length > FEW) return keys.sort();
  for (let i = 1; i < keys.length; i++) {
    const key = keys[i]!;
    let place = i;
    for (; place > 0 && keys[place - 1]! > key; place--) keys[place] = keys[place - 1]!;
    keys[place] = key;
  }
  return keys;
}

function plainInside(value: unknown, trail: Trail, key: string | number): unknown {
  trail.at.push(key);
  const plain = plainJson(value, trail);
  trail.at.pop();
  return plain;
}

function plainJson(value: unknown, trail: Trail): unknown {
  if (value === null || typeof value === 'string' || typeof value === 'boolean') return value;
  if (typeof value === 'number' && Number.isFinite(value)) return value === 0 ? 0 : value;
  if (trail.at.length > MAX_DEPTH) {
    throw unfit(`${trail.at.slice(0, 6).join('.')}… is nested deeper than ${MAX_DEPTH} levels, or contains itself`);
  }
  if (typeof value === 'object') return trail.copies.get(value) ?? copied(value, trail);
  throw noJson(typeof value === 'number' ? String(value) : kindOf(value), trail);
}

function copied(value: object, trail: Trail): unknown {
  const isList = Array.isArray(value);
  if (!isList && kindOf(value) !== 'Object') throw noJson(kindOf(value), trail);
  const copy = isList ? Array.from(value, (inner, position) => plainInside(inner, trail, position)) : plainObject(value, trail);
  // Only once complete, so that a cycle does not find itself here.
  trail.copies.set(value, copy);
  return copy;
}

function noJson(found: string, trail: Trail): TrainyardError {
  return unfit(`${trail.at.join('.')} is ${found}, expected JSON`);
}

function unfit(message: string): TrainyardError {
  return new TrainyardError('STORE_FAILED', message, {
    hint: 'nothing was written; records hold JSON with finite numbers, and one log-probability per sampled id',
  });
}

export interface EncodedTurn {
  readonly words: string;
  readonly promptIds: Uint8Array;
  readonly sampledIds: Uint8Array;
  readonly logprobs: Uint8Array;
}

export interface EncodedTrajectory {
  /** Everything but the turns. */
  readonly record: string;
  readonly turns: readonly EncodedTurn[];
  readonly digest: Uint8Array;
}

export interface EncodedRecord {
  readonly record: string;
  readonly digest: Uint8Array;
}

/** Describes damage in bytes that were read; the store adds the file. */
export class DecodeError extends Error {
  override readonly name = 'DecodeError';
}

export function encodeTrajectory(kept: Trajectory): EncodedTrajectory {
  const { turns, ...rest } = kept;
  const record = JSON.stringify(rest);
  const encoded = turns.map(encodeTurn);
  return { record, turns: encoded, digest: digestBytes(piecesOf(record, encoded)) };
}

export function decodeTrajectory({ record, turns, digest }: EncodedTrajectory): Trajectory {
  checkDigest('a trajectory', piecesOf(record, turns), digest);
  return fitting('a trajectory', trajectorySchema, { ...parseObject(record), turns: turns.map(decodeTurn) });
}

// Records in short, for lists: only these fields are read, and no digest is checked. What cannot be read is damage all the same.

export const RECORD_IN_SHORT = [
  ...['rolloutId', 'groupId', 'taskId', 'purpose', 'outcome', 'grade', 'unanswered', 'startedAt', 'endedAt'],
] as const;
export const WORDS_IN_SHORT = ['role', 'trainable', 'policyVersion', 'fork', 'usage', 'response.tool_calls'] as const;

/** `values`: those of RECORD_IN_SHORT, as a JSON list. */
export function shortTrajectory(values: string, turns: Summarised['turns']): Summarised {
  const [rolloutId, groupId, taskId, purpose, outcome, grade, unanswered, startedAt, endedAt] = listIn(values);
  const calls = unanswered ?? [];
  return { rolloutId, groupId, taskId, purpose, outcome, grade, unanswered: calls, startedAt, endedAt, turns } as Summarised;
}

export function shortTurn(values: string, length: number): Summarised['turns'][number] {
  const [role, trainable, policyVersion, fork, usage, tool_calls] = listIn(values).map((value) => value ?? undefined);
  const short = { role, trainable, policyVersion, fork, usage, sampledIds: { length }, response: { tool_calls } };
  return short as Summarised['turns'][number];
}

function listIn(text: string): readonly unknown[] {
  return Object.values(parseObject(text));
}

export function encodeRecord(kept: BatchManifest | Mark): EncodedRecord {
  const record = JSON.stringify(kept);
  return { record, digest: digestBytes([record]) };
}

export function decodeManifest(encoded: EncodedRecord): BatchManifest {
  return decodeRecord(encoded, 'a manifest', manifestSchema);
}

export function decodeMark(encoded: EncodedRecord): Mark {
  return decodeRecord(encoded, 'a mark', markSchema);
}

function decodeRecord<T>({ record, digest }: EncodedRecord, what: string, schema: z.ZodType<T>): T {
  checkDigest(what, [record], digest);
  return fitting(what, schema, parseObject(record));
}

function checkDigest(what: string, pieces: readonly (string | Uint8Array)[], digest: Uint8Array): void {
  if (!sameBytes(digestBytes(pieces), digest)) throw new DecodeError(`${what} does not match its digest`);
}

function fitting<T>(what: string, schema: z.ZodType<T>, decoded: object): T {
  const misfit = misfitOf(schema, decoded);
  if (misfit !== undefined) throw new DecodeError(`${what} is malformed: ${misfit}`);
  return decoded as T;
}

export function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  return Buffer.compare(a, b) === 0;
}

/** A view on little-endian machines, else a byte-swapped copy. Either way every bit pattern is preserved. */
function bytesOf(values: Int32Array | Float32Array): Uint8Array {
  const bytes = Buffer.from(values.buffer, values.byteOffset, values.byteLength);
  return endianness() === 'LE' ? bytes : Buffer.from(bytes).swap32();
}

/** Copies, because a BLOB may start at any byte offset, but a typed array needs a multiple of four. */
function alignedWords(bytes: Uint8Array): ArrayBuffer {
  if (bytes.byteLength % 4 !== 0) throw new DecodeError(`found ${bytes.byteLength} bytes of 32-bit values`);
  const copy = new Uint8Array(bytes);
  if (endianness() === 'BE') Buffer.from(copy.buffer).swap32();
  return copy.buffer;
}

export function encodeTurn(turn: Turn): EncodedTurn {
  const { promptIds: prompt, sampledIds: sampled, logprobs, ...words } = turn;
  const bytes = { promptIds: bytesOf(prompt), sampledIds: bytesOf(sampled), logprobs: bytesOf(logprobs) };
  return { words: JSON.stringify(words), ...bytes };
}

export function decodeTurn(encoded: EncodedTurn): Turn {
  return {
    ...parseObject(encoded.words),
    promptIds: new Int32Array(alignedWords(encoded.promptIds)),
    sampledIds: new Int32Array(alignedWords(encoded.sampledIds)),
    logprobs: new Float32Array(alignedWords(encoded.logprobs)),
  } as Turn;
}

function parseObject(text: string): object {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch (cause) {
    throw new DecodeError(`found text that is not JSON: ${messageOf(cause)}`);
  }
  if (typeof parsed !== 'object' || parsed === null) throw new DecodeError('found JSON that is not an object');
  return parsed;
}

function piecesOf(record: string, turns: readonly EncodedTurn[]): readonly (string | Uint8Array)[] {
  return [record, ...turns.flatMap((turn) => [turn.words, turn.promptIds, turn.sampledIds, turn.logprobs])];
}
