/**
 * Kept records ⇄ rows: words as canonical JSON text, token ids and log-probabilities as BLOBs of little-endian 32-bit values,
 * and a digest over all of it, by which equal records are recognised and a damaged one is found out when read.
 *
 * Knows no SQL. Encodes only what `keep.ts` returned: equal encodings need its canonical key order.
 */
import { endianness } from 'node:os';
import type { z } from 'zod';
import { messageOf } from '../core/errors.ts';
import { digestBytes } from '../core/json.ts';
import type { BatchManifest, Mark, Trajectory, Turn } from '../core/types.ts';
import { manifestSchema, markSchema, misfitOf, trajectorySchema } from './schemas.ts';

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

/** Of a manifest or a mark. */
export interface EncodedRecord {
  readonly record: string;
  readonly digest: Uint8Array;
}

/** Says what is wrong with bytes that were read; the store adds which file. */
export class DecodeError extends Error {
  override readonly name = 'DecodeError';
}

export function encodeTrajectory(kept: Trajectory): EncodedTrajectory {
  const { turns, ...rest } = kept;
  const record = JSON.stringify(rest);
  const encoded = turns.map(encodeTurn);
  return { record, turns: encoded, digest: digestBytes(piecesOf(record, encoded)) };
}

export function decodeTrajectory(encoded: EncodedTrajectory): Trajectory {
  if (!sameBytes(digestBytes(piecesOf(encoded.record, encoded.turns)), encoded.digest)) {
    throw new DecodeError('a trajectory does not match its digest');
  }
  const { abandoned, ...record } = parseObject(encoded.record) as { readonly abandoned?: readonly object[] };
  // As calls without an answer were kept once, without their roles and places.
  const unanswered = abandoned?.map((call) => ({ role: 'default', turnsBefore: 0, ...call }));
  const decoded = { ...record, ...(unanswered && { unanswered }), turns: encoded.turns.map(decodeTurn) };
  const misfit = misfitOf(trajectorySchema, decoded);
  if (misfit !== undefined) throw new DecodeError(`a trajectory is malformed: ${misfit}`);
  return decoded as unknown as Trajectory;
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

function decodeRecord<T>(encoded: EncodedRecord, what: string, schema: z.ZodType<T>): T {
  if (!sameBytes(digestBytes([encoded.record]), encoded.digest)) throw new DecodeError(`${what} does not match its digest`);
  const decoded = parseObject(encoded.record);
  const misfit = misfitOf(schema, decoded);
  if (misfit !== undefined) throw new DecodeError(`${what} is malformed: ${misfit}`);
  return decoded as T;
}

export function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  return Buffer.compare(a, b) === 0;
}

/** A view where the machine is little-endian, a swapped copy elsewhere. Swapping bytes leaves every bit pattern intact. */
export function bytesOf(values: Int32Array | Float32Array): Uint8Array {
  const bytes = Buffer.from(values.buffer, values.byteOffset, values.byteLength);
  return endianness() === 'LE' ? bytes : Buffer.from(bytes).swap32();
}

export function int32Of(bytes: Uint8Array): Int32Array {
  return new Int32Array(alignedWords(bytes));
}

export function float32Of(bytes: Uint8Array): Float32Array {
  return new Float32Array(alignedWords(bytes));
}

/** A copy in a buffer of its own: a BLOB may start at any byte offset, a typed array only at a multiple of four. */
function alignedWords(bytes: Uint8Array): ArrayBuffer {
  if (bytes.byteLength % 4 !== 0) throw new DecodeError(`found ${bytes.byteLength} bytes of 32-bit values`);
  const copy = new Uint8Array(bytes);
  if (endianness() === 'BE') Buffer.from(copy.buffer).swap32();
  return copy.buffer;
}

function encodeTurn(turn: Turn): EncodedTurn {
  const { promptIds, sampledIds, logprobs, ...words } = turn;
  return {
    words: JSON.stringify(words),
    promptIds: bytesOf(promptIds),
    sampledIds: bytesOf(sampledIds),
    logprobs: bytesOf(logprobs),
  };
}

function decodeTurn(encoded: EncodedTurn): object {
  return {
    ...parseObject(encoded.words),
    promptIds: int32Of(encoded.promptIds),
    sampledIds: int32Of(encoded.sampledIds),
    logprobs: float32Of(encoded.logprobs),
  };
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
