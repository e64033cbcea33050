/**
 * Writes a run's numbers as TensorBoard event files, while it goes or from its events.jsonl afterwards: every number of `step-end`,
 * `eval-end` and `sft-step`, under `train/`, `eval/` and `sft/`. A file is a sequence of TFRecords, each a protobuf `Event` with one scalar
 * `Summary`, written by hand: the format is small and frozen. Nothing is read back.
 */
import { mkdirSync, openSync, writeSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Emit, LoggedEvent } from '../core/events.ts';
import { isObject } from '../core/json.ts';
import { eventsIn } from '../run/directory.ts';

type Scalars = ReadonlyMap<string, number>;

/** Also writes event files to the folder, or to `tensorboard` in the directory of each run that starts. */
export function withTensorBoard(emit: Emit, folder: string | true): Emit {
  let write = folder === true ? undefined : openEventFile(folder);
  return (event) => {
    if (folder === true && 'run' in event && event.type.endsWith('-start') && event.run !== null) {
      write = openEventFile(join(event.run, 'tensorboard'));
    }
    write?.({ ...event, at: Date.now() });
    emit(event);
  };
}

/** Writes what a run has reported so far into a new file. Returns the number of values. Throws FILE_NOT_FOUND if there are none. */
export function exportTensorBoard(run: string, folder: string): number {
  const events = eventsIn(run);
  if (events.every((event) => scalarsOf(event) === undefined)) {
    throw new TrainyardError('FILE_NOT_FOUND', `${run} holds no events with numbers`, 'give the directory of a run');
  }
  const write = openEventFile(folder);
  return events.reduce((sum, event) => sum + write(event), 0);
}

let files = 0;

/** The returned function writes an event's numbers and returns how many it has. */
function openEventFile(folder: string): (event: LoggedEvent) => number {
  try {
    mkdirSync(folder, { recursive: true });
    const name = `events.out.tfevents.${Math.floor(Date.now() / 1000)}.${hostname()}.${process.pid}.${files++}`;
    const file = openSync(join(folder, name), 'ax');
    const write = (event: Uint8Array): number => writeSync(file, record(event));
    write(eventOf(Date.now(), 0, bytes(3, 'brain.Event:2')));
    return (event) => {
      const { step, values } = scalarsOf(event) ?? { step: 0, values: new Map<string, number>() };
      const all = [...values].map(([tag, value]) => bytes(1, Buffer.concat([bytes(1, tag), float(2, value)])));
      if (all.length > 0) write(eventOf(event.at, step, bytes(5, Buffer.concat(all))));
      return all.length;
    };
  } catch (cause) {
    throw new TrainyardError('USAGE', `cannot write TensorBoard files to ${folder}: ${messageOf(cause)}`, {
      cause,
      hint: 'give --tensorboard a folder that can be written to',
    });
  }
}

function scalarsOf(event: LoggedEvent): { readonly step: number; readonly values: Scalars } | undefined {
  if (event.type === 'eval-end') return { step: event.step, values: numbersIn(event.score, 'eval') };
  if (event.type !== 'step-end' && event.type !== 'sft-step') return undefined;
  const { step, at: _, ...report } = event;
  return { step, values: numbersIn(report, event.type === 'step-end' ? 'train' : 'sft') };
}

/** Numbers by their path, such as `train/parts/format`; of an interval, `train/rewardCi/low` and `/high`. */
function numbersIn(value: object, path: string): Scalars {
  const found = Object.entries(value).flatMap(([name, own]): (readonly [string, number])[] => {
    const at = `${path}/${name}`;
    if (typeof own === 'number') return Number.isFinite(own) ? [[at, own]] : [];
    if (Array.isArray(own)) return [...numbersIn({ low: own[0], high: own[1] }, at)];
    return isObject(own) ? [...numbersIn(own, at)] : [];
  });
  return new Map(found);
}

/** A protobuf `Event`: `wall_time` in seconds, `step`, and what happened. */
function eventOf(at: number, step: number, what: Uint8Array): Uint8Array {
  const time = Buffer.alloc(9, 1 * 8 + 1);
  time.writeDoubleLE(at / 1000, 1);
  return Buffer.concat([time, Uint8Array.of(2 * 8), varint(step), what]);
}

function varint(value: number): Uint8Array {
  const rest = Math.floor(value / 128);
  return rest === 0 ? Uint8Array.of(value) : Uint8Array.of((value % 128) + 128, ...varint(rest));
}

function bytes(field: number, given: string | Uint8Array): Uint8Array {
  const value = typeof given === 'string' ? Buffer.from(given) : given;
  return Buffer.concat([Uint8Array.of(field * 8 + 2), varint(value.length), value]);
}

function float(field: number, value: number): Uint8Array {
  const written = Buffer.alloc(5, field * 8 + 5);
  written.writeFloatLE(value, 1);
  return written;
}

/** A TFRecord: the length, its checksum, the data, its checksum. */
function record(data: Uint8Array): Uint8Array {
  const framed = Buffer.alloc(12 + data.length + 4);
  framed.writeBigUInt64LE(BigInt(data.length));
  framed.writeUInt32LE(masked(crc32c(framed.subarray(0, 8))), 8);
  framed.set(data, 12);
  framed.writeUInt32LE(masked(crc32c(data)), 12 + data.length);
  return framed;
}

/** Castagnoli's polynomial, reflected; `node:zlib` has only the other CRC-32. */
export function crc32c(data: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of data) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0x82f63b78 : 0);
  }
  return (crc ^ 0xffffffff) >>> 0;
}

/** Of a checksum that is stored beside its data. */
function masked(crc: number): number {
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}
