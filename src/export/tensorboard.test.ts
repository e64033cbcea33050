import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { temporaryFolder } from '../../test/fixtures/folder.ts';
import type { RunEvent } from '../core/events.ts';
import { crc32c, withTensorBoard } from './tensorboard.ts';

/** Of the protobuf wire format, what these files use: doubles, floats, varints below 2^31 and bytes, by field number. */
function* fieldsOf(data: Buffer): Generator<readonly [field: number, value: number | Buffer]> {
  for (let at = 0; at < data.length; ) {
    const [field, wire] = [data[at]! >> 3, data[at++]! & 7];
    let value = 0;
    if (wire === 0 || wire === 2)
      for (let shift = 0; ; shift += 7) {
        value += (data[at]! & 127) << shift;
        if (data[at++]! < 128) break;
      }
    const from = at;
    at += [0, 8, value, 0, 0, 4][wire]!;
    if (wire === 0) yield [field, value];
    else if (wire === 2) yield [field, data.subarray(from, at)];
    else yield [field, wire === 1 ? data.readDoubleLE(from) : data.readFloatLE(from)];
  }
}

const unmasked = (stored: number): number => {
  const rotated = (stored - 0xa282ead8) >>> 0;
  return ((rotated >>> 17) | (rotated << 15)) >>> 0;
};

function eventsOf(file: Buffer): Buffer[] {
  const events: Buffer[] = [];
  for (let at = 0; at < file.length; ) {
    const length = Number(file.readBigUInt64LE(at));
    const data = file.subarray(at + 12, at + 12 + length);
    expect(unmasked(file.readUInt32LE(at + 8))).toBe(crc32c(file.subarray(at, at + 8)));
    expect(unmasked(file.readUInt32LE(at + 12 + length))).toBe(crc32c(data));
    events.push(data);
    at += 16 + length;
  }
  return events;
}

it('the checksum is CRC-32C, as in RFC 3720', () => {
  expect(crc32c(Buffer.from('123456789'))).toBe(0xe3069283);
  expect(crc32c(Buffer.alloc(32))).toBe(0x8a9136aa);
  expect(crc32c(Buffer.alloc(32, 255))).toBe(0x62a8ab43);
});

it('a run’s steps and evaluations become scalars with their step and time', async () => {
  const run = temporaryFolder();
  const told: RunEvent[] = [];
  const emit = withTensorBoard((event) => told.push(event), true);
  const score = { success: 0.5, meanReward: null, n: 2, failed: 0, ungraded: 0, ci: [0.25, 0.75] };
  const step = { type: 'step-end', step: 300, policyVersion: 300, reward: Number.NaN, loss: -0.5, parts: { format: 1 } };
  for (const event of [{ type: 'run-start', run }, step, { type: 'eval-end', step: 300, score }]) emit(event as RunEvent);
  expect(told.map(({ type }) => type)).toEqual(['run-start', 'step-end', 'eval-end']);
  const folder = join(run, 'tensorboard');
  const [name = '', ...others] = await readdir(folder);
  expect([name, others]).toEqual([expect.stringMatching(/^events\.out\.tfevents\.\d+\./), []]);
  const [version, ...written] = eventsOf(await readFile(join(folder, name))).map((event) => new Map(fieldsOf(event)));
  expect(String(version?.get(3))).toBe('brain.Event:2');
  const scalars = written.flatMap((event) => {
    expect(Math.abs((event.get(1) as number) - Date.now() / 1000)).toBeLessThan(60);
    const values = [...fieldsOf(event.get(5) as Buffer)].map(([, value]) => new Map(fieldsOf(value as Buffer)));
    return values.map((value) => [event.get(2), String(value.get(1)), value.get(2)]);
  });
  expect(scalars).toEqual([
    [300, 'train/policyVersion', 300],
    [300, 'train/loss', -0.5],
    [300, 'train/parts/format', 1],
    [300, 'eval/success', 0.5],
    [300, 'eval/n', 2],
    [300, 'eval/failed', 0],
    [300, 'eval/ungraded', 0],
    [300, 'eval/ci/low', 0.25],
    [300, 'eval/ci/high', 0.75],
  ]);
});
