import { expect, it } from 'vitest';
import { TrainyardError } from '../core/errors.ts';
import { HTTP_LIMITS, WrongKeys } from './guard.ts';

const wrong = new TrainyardError('SESSION_UNKNOWN', 'wrong');
const other = new TrainyardError('SESSION_SEALED', 'over');

it('wrong keys of one address are counted, and forgiven with time; nothing else is', () => {
  const time = { now: 0 };
  const keys = new WrongKeys({ now: () => time.now });
  const passed = (address: string | undefined, times: number, thrown = wrong): number =>
    Array.from({ length: times }, () => keys.count(thrown, address)).filter((said) => said === thrown).length;
  expect(passed('a', HTTP_LIMITS.wrongKeys + 50)).toBe(HTTP_LIMITS.wrongKeys);
  expect(passed('b', 5)).toBe(5);
  expect(passed(undefined, 500)).toBe(500);
  expect(passed('a', 500, other)).toBe(500);
  expect(keys.count(wrong, 'a')).toMatchObject({ row: { status: 429, code: 'too_many_wrong_keys' } });
  time.now += 1000;
  expect(passed('a', 50)).toBe(HTTP_LIMITS.wrongKeysPerSecond);
  time.now += 3_600_000;
  expect(passed('a', HTTP_LIMITS.wrongKeys + 50)).toBe(HTTP_LIMITS.wrongKeys);
});
