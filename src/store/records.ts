/**
 * Records as a store keeps them: text and bytes in canonical form, taken when the call is made, and read back. So neither side can change
 * the other's data later, and equal records have equal encodings. Knows no SQL.
 *
 * Canonical: sorted keys, except in tools, whose schemas templates write in their order; no undefined properties, 0 for -0; token ids and
 * log-probabilities bit for bit. Values that JSON cannot hold throw STORE_FAILED before anything is written; they never become null. Rows hold
 * JSON text, BLOBs of little-endian 32-bit values, and a digest over both that identifies equal records and detects damage on reading.
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

// Both return a private copy, and throw STORE_FAILED for an invalid record.

export function keepManifest(manifest: BatchManifest): BatchManifest {
  return kept(`manifest of step ${manifest.step}`, manifestSchema, manifest);
}

export function keepMark(mark: Mark): Mark {
  return kept(`mark of rollout ${JSON.stringify(mark.rolloutId)}`, markSchema, mark);
}

function kept<T>(what: string, schema: z.ZodType<T>, record: T): T {
  const copy = JSON.parse(textOf(record, trailOf(what))) as T;
  checkFits(what, schema, copy);
  return copy;
}

function checkFits(what: string, schema: z.ZodType, record: unknown): void {
  const misfit = misfitOf(schema, record);
  if (misfit !== undefined) throw unfit(`${what} cannot be kept: ${misfit}`);
}

/** Throws USAGE unless the limit is a non-negative integer: SQL would read a negative one as "no limit". */
export function checkFilter(filter: TrajectoryFilter): void {
  const misfit = misfitOf(filterSchema, filter);
  const hint = 'pass a limit of 0 or more, or none';
  if (misfit !== undefined) throw new TrainyardError('USAGE', `a trajectory filter is malformed: ${misfit}`, hint);
}

interface Trail {
  /** Current path in the record, for messages. Joined only on an error. */
  readonly at: (string | number)[];
  /** Consecutive turns repeat earlier messages as the same objects: each is written once. */
  readonly texts: Map<object, string>;
}

const trailOf = (what: string): Trail => ({ at: [what], texts: new Map() });

/** The names that nearly all records have, as JSON. */
const NAMES: ReadonlyMap<string, string> = new Map(
  [
    'rolloutId',
    'groupId',
    'taskId',
    'purpose',
    'outcome',
    'kind',
    'grade',
    'reward',
    'value',
    'startedAt',
    'endedAt',
    'output',
    'index',
    'after',
    'thread',
    'role',
    'trainable',
    'policyVersion',
    'stopReason',
    'sampling',
    'requested',
    'effective',
    'seed',
    'temperature',
    'topP',
    'topK',
    'maxTokens',
    'request',
    'dialect',
    'messages',
    'tools',
    'response',
    'content',
    'tool_calls',
    'id',
    'type',
    'function',
    'name',
    'arguments',
    'tool_call_id',
    'description',
    'parameters',
    'properties',
    'required',
  ].map((name) => [name, `${JSON.stringify(name)}:`]),
);

/** The canonical text of a list or an object. Throws STORE_FAILED for what JSON cannot hold. */
function textOf(value: unknown, trail: Trail): string {
  if (trail.at.length > MAX_DEPTH) {
    throw unfit(`${trail.at.slice(0, 6).join('.')}… is nested deeper than ${MAX_DEPTH} levels, or contains itself`);
  }
  const isList = Array.isArray(value);
  if (!isList && Object.prototype.toString.call(value) !== '[object Object]') throw noJson(value, trail);
  const source = value as Readonly<Record<string | number, unknown>>;
  const known = trail.texts.get(source);
  if (known !== undefined) return known;
  let keys: ArrayLike<string> | undefined;
  if (!isList) keys = isInTools(trail) ? Object.keys(source) : sortedKeys(source);
  const size = (keys ?? (value as readonly unknown[])).length;
  let text = '';
  for (let i = 0; i < size; i++) {
    const key = keys?.[i] ?? i;
    const inner = source[key];
    if (inner === undefined && !isList) continue;
    let plain: string;
    if (typeof inner === 'string') plain = JSON.stringify(inner);
    else if (inner === null || typeof inner === 'boolean' || Number.isFinite(inner)) plain = inner === 0 ? '0' : `${inner}`;
    else {
      trail.at.push(key);
      plain = textOf(inner, trail);
      trail.at.pop();
    }
    const before = isList ? '' : (NAMES.get(key as string) ?? `${JSON.stringify(key)}:`);
    text += text === '' ? before + plain : `,${before}${plain}`;
  }
  text = isList ? `[${text}]` : `{${text}}`;
  // Only once complete, so that a cycle does not find itself here.
  trail.texts.set(source, text);
  return text;
}

/** Whether this is one of a turn's tools, or inside one. */
const isInTools = ({ at }: Trail): boolean => at[4] === 'tools' && at[3] === 'request' && at[1] === 'turns';

/** Up to this many keys, the insertion sort below is faster. */
const FEW = 24;

/** Sorts by code units, after whole numbers, which come first in every object that was parsed. `sort` would allocate more garbage for a
 * record's hundred small objects than the record itself. */
function sortedKeys(source: object): readonly string[] {
  const keys = Object.keys(source);
  let first = 0;
  while (first < keys.length && isWhole(keys[first]!)) first++;
  if (keys.length > FEW) return [...keys.slice(0, first), ...keys.slice(first).sort()];
  for (let i = first + 1; i < keys.length; i++) {
    const key = keys[i]!;
    let place = i;
    for (; place > first && keys[place - 1]! > key; place--) keys[place] = keys[place - 1]!;
    keys[place] = key;
  }
  return keys;
}

const isWhole = (key: string): boolean => /^\d/.test(key) && String(Number(key) >>> 0) === key && key !== '4294967295';

function noJson(found: unknown, trail: Trail): TrainyardError {
  return unfit(`${trail.at.join('.')} is ${typeof found === 'number' ? found : kindOf(found)}, expected JSON`);
}

function unfit(message: string): TrainyardError {
  return new TrainyardError(
    'STORE_FAILED',
    message,
    'nothing was written; records hold JSON with finite numbers, and one log-probability per sampled id',
  );
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

/** Of the trajectory as it is now: what changes in it later is not written. Throws STORE_FAILED for an invalid one. */
export function encodeTrajectory(trajectory: Trajectory): EncodedTrajectory {
  const what = `trajectory ${JSON.stringify(trajectory.rolloutId)}`;
  const trail = trailOf(what);
  const { turns, ...rest } = trajectory;
  const record = textOf(rest, trail);
  const words = turns.map(({ promptIds, sampledIds, logprobs, ...others }, position) => {
    trail.at.push('turns', position);
    const text = textOf(others, trail);
    trail.at.length -= 2;
    return text;
  });
  // A field that is there and undefined is not in the text: as it will be read, the record may still fit.
  if (misfitOf(trajectorySchema, trajectory) !== undefined) {
    checkFits(what, trajectorySchema, {
      ...JSON.parse(record),
      turns: turns.map(({ promptIds, sampledIds, logprobs }, i) => ({
        ...JSON.parse(words[i]!),
        promptIds,
        sampledIds,
        logprobs,
      })),
    });
  }
  const encoded = withBytes(turns, words);
  return { record, turns: encoded, digest: digestBytes(piecesOf(record, encoded)) };
}

/** The tokens of all turns share one buffer: thousands of small ones are slow to make, to hand to a thread and to collect. */
function withBytes(turns: readonly Turn[], words: readonly string[]): readonly EncodedTurn[] {
  const tokens = turns.reduce((sum, { promptIds, sampledIds }) => sum + promptIds.length + 2 * sampledIds.length, 0);
  const room = Buffer.from(new ArrayBuffer(4 * tokens));
  let used = 0;
  const copyOf = (values: Int32Array | Float32Array): Uint8Array => {
    const copy = room.subarray(used, used + values.byteLength);
    copy.set(bytesOf(values));
    used += values.byteLength;
    return copy;
  };
  return turns.map(({ promptIds, sampledIds, logprobs }, i) => ({
    words: words[i]!,
    promptIds: copyOf(promptIds),
    sampledIds: copyOf(sampledIds),
    logprobs: copyOf(logprobs),
  }));
}

export function decodeTrajectory({ record, turns, digest }: EncodedTrajectory): Trajectory {
  checkDigest('a trajectory', piecesOf(record, turns), digest);
  return fitting('a trajectory', trajectorySchema, { ...parseObject(record), turns: turns.map(decodeTurn) });
}

// Records in short, for lists: only these fields are read, and no digest is checked. What cannot be read is damage all the same.

export const RECORD_IN_SHORT = [
  'rolloutId',
  'groupId',
  'taskId',
  'purpose',
  'outcome',
  'grade',
  'unanswered',
  'startedAt',
  'endedAt',
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
