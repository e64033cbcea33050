/**
 * Reading parsed JSON of unknown origin, one value at a time, and writing number arrays that JSON can hold. Every reader says where
 * it stands when it finds something else.
 *
 * Plain loops over plain arrays: a batch is millions of numbers, for which a schema is too slow.
 */
import { shown, WireError } from './wire-error.ts';

export type JsonObject = Readonly<Record<string, unknown>>;

export function readObject(value: unknown, where: string): JsonObject {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new WireError(where, 'an object', shown(value));
  return value as JsonObject;
}

export function readArray(value: unknown, where: string): readonly unknown[] {
  if (!Array.isArray(value)) throw new WireError(where, 'an array', shown(value));
  return value;
}

export function readText(value: unknown, where: string): string {
  if (typeof value !== 'string') throw new WireError(where, 'a string', shown(value));
  return value;
}

export function readNumber(value: unknown, where: string): number {
  if (typeof value !== 'number' || !Number.isFinite(value)) throw new WireError(where, 'a number', shown(value));
  return value;
}

export function readInteger(value: unknown, where: string, least = Number.MIN_SAFE_INTEGER): number {
  if (!Number.isSafeInteger(value) || (value as number) < least) {
    const bound = least === Number.MIN_SAFE_INTEGER ? '' : ` of ${least} or more`;
    throw new WireError(where, `an integer${bound}`, shown(value));
  }
  return value as number;
}

/** Null counts as left out: some clients write every field they know. */
export function readMaybe<T>(value: unknown, where: string, read: (value: unknown, where: string) => T): T | undefined {
  return value === undefined || value === null ? undefined : read(value, where);
}

export function readInt32s(value: unknown, where: string): Int32Array {
  const values = readArray(value, where);
  const out = new Int32Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const found = values[i];
    if (typeof found !== 'number' || (found | 0) !== found) {
      throw new WireError(`${where}[${i}]`, 'an integer of 32 bits', shown(found));
    }
    out[i] = found;
  }
  return out;
}

/** `forNull`: what stands for null; without it, null is an error. */
export function readFloats(value: unknown, where: string, forNull?: number): Float32Array {
  const values = readArray(value, where);
  const out = new Float32Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const found = values[i];
    if (found === null && forNull !== undefined) {
      out[i] = forNull;
      continue;
    }
    if (typeof found !== 'number' || !Number.isFinite(Math.fround(found))) {
      throw new WireError(`${where}[${i}]`, 'a number that fits float32', shown(found));
    }
    out[i] = found;
  }
  return out;
}

/** JSON has no NaN and no infinity: written, they become null, and whoever reads null as 0 trains on it. */
export function finiteNumber(value: number, where: string): number {
  if (!Number.isFinite(value)) throw new WireError(where, 'a finite number', String(value));
  return value;
}

export function finiteNumbers(values: Float32Array, where: string): number[] {
  for (let i = 0; i < values.length; i++) {
    if (!Number.isFinite(values[i])) throw new WireError(`${where}[${i}]`, 'a finite number', String(values[i]));
  }
  return Array.from(values);
}
