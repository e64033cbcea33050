/**
 * What a store keeps of what it is given: a deep copy in one canonical form, taken when the call is made, so that neither side
 * can change the other's data afterwards and equal records have equal encodings.
 *
 * Canonical: object keys are sorted, undefined properties are absent, -0 is 0. Token ids and log-probabilities are copied
 * bit by bit, whatever they hold. What JSON cannot hold is refused with STORE_FAILED before anything is written; it is never
 * quietly turned into null.
 */
import type { z } from 'zod';
import type { TrajectoryFilter } from '../core/contracts.ts';
import { kindOf } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { BatchManifest, Mark, Trajectory, Turn } from '../core/types.ts';
import { filterSchema, manifestSchema, markSchema, misfitOf, trajectorySchema } from './schemas.ts';

/** Far below what overflows the stack of a JSON parser. A cycle ends here too. */
const MAX_DEPTH = 500;

/** A copy that the caller cannot reach. Throws STORE_FAILED for what is not a trajectory. */
export function keepTrajectory(trajectory: Trajectory): Trajectory {
  return kept(`trajectory ${JSON.stringify(trajectory.rolloutId)}`, trajectorySchema, (trail) => {
    const { turns, ...rest } = trajectory;
    return { ...plainObject(rest, trail), turns: turns.map((turn, position) => keepTurn(turn, trail, position)) };
  });
}

/** A copy that the caller cannot reach. Throws STORE_FAILED for what is not a manifest. */
export function keepManifest(manifest: BatchManifest): BatchManifest {
  return kept(`manifest of step ${manifest.step}`, manifestSchema, (trail) => plainObject(manifest, trail));
}

/** A copy that the caller cannot reach. Throws STORE_FAILED for what is not a mark. */
export function keepMark(mark: Mark): Mark {
  return kept(`mark of rollout ${JSON.stringify(mark.rolloutId)}`, markSchema, (trail) => plainObject(mark, trail));
}

function kept<T>(what: string, schema: z.ZodType<T>, copyOf: (trail: Trail) => object): T {
  const copy = copyOf({ at: [what], copies: new Map() });
  const misfit = misfitOf(schema, copy);
  if (misfit !== undefined) throw unfit(`${what} cannot be kept: ${misfit}`);
  return copy as T;
}

/** Throws USAGE for a limit that is not a whole number: SQL would read a negative one as "no limit". */
export function checkFilter(filter: TrajectoryFilter): void {
  const misfit = misfitOf(filterSchema, filter);
  if (misfit === undefined) return;
  throw new TrainyardError('USAGE', `a trajectory filter is malformed: ${misfit}`, {
    hint: 'pass a limit of 0 or more, or none',
  });
}

interface Trail {
  /** Where in the record the copying is, for the message: pushed and popped on the way, joined only when something is wrong. */
  readonly at: (string | number)[];
  /** Turn after turn repeats what was said before, as the same objects: each is copied once, and the copies share it likewise. */
  readonly copies: Map<object, unknown>;
}

function keepTurn(turn: Turn, trail: Trail, position: number): object {
  const { promptIds, sampledIds, logprobs, ...words } = turn;
  trail.at.push('turns', position);
  const plain = plainObject(words, trail);
  trail.at.length -= 2;
  return {
    ...plain,
    promptIds: promptIds.slice(),
    sampledIds: sampledIds.slice(),
    logprobs: logprobs.slice(),
  };
}

function plainObject(value: object, trail: Trail): object {
  const source = value as Readonly<Record<string, unknown>>;
  const copy: Record<string, unknown> = {};
  for (const key of sortedKeys(source)) {
    const inner = source[key];
    if (inner === undefined) continue;
    const plain = plainInside(inner, trail, key);
    // Assigned, this key would set the prototype; defined, it is an ordinary one.
    if (key === '__proto__')
      Object.defineProperty(copy, key, { value: plain, enumerable: true, writable: true, configurable: true });
    else copy[key] = plain;
  }
  return copy;
}

/** Up to this many, the sort below is the faster one. */
const FEW = 24;

/** By code units, as `sort` does; which for a handful of keys, and there are a hundred such handfuls, makes more garbage than the record. */
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
  // Only when it is whole: what contains itself must not find itself.
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
