import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import { eventually, isRunning, pidsIn } from '../../test/fixtures/grader/processes.ts';
import { refusal } from '../../test/fixtures/refusal.ts';
import { type FunctionPool, openFunctionPool } from './function-pool.ts';

const module = new URL('../../test/fixtures/processes/functions.ts', import.meta.url).href;
const folder = sharedFolder();

const open = (exportName: string, deadlineMs = 20_000, workers = 1): Promise<FunctionPool> =>
  openFunctionPool({ module, exportName, deadlineMs, workers });

describe('a function called in another process', () => {
  it('gets values as they are, not as JSON; it is imported once and called many times', async () => {
    await using echo = await open('echo');
    const given = [new Map([[1, 'one']]), undefined, Number.NaN, new Float32Array([1.5]), 2n];
    expect(await echo.call(given)).toEqual({ kind: 'answered', value: given });
    await using count = await open('count');
    for (const value of [1, 2, 3]) expect(await count.call([])).toEqual({ kind: 'answered', value });
  });

  it('that throws, crashes or returns what cannot be sent is a failure in words, and the next call succeeds', async () => {
    await using pool = await open('misbehave');
    const failures: readonly [string, string, RegExp][] = [
      ['throw', 'threw', /^misbehave threw TypeError: no such unit \(at .*functions\.ts/],
      ['exit', 'crashed', /exited with code 3, having printed:\ndisk on fire\n before it returned/],
      ['return a function', 'threw', /result cannot be sent to another process/],
    ];
    for (const [how, why, message] of failures) {
      expect(await pool.call([how])).toEqual({ kind: 'failed', why, message: expect.stringMatching(message) });
      expect(await pool.call(['well'])).toEqual({ kind: 'answered', value: 'well' });
    }
    expect(await pool.call([() => 1])).toMatchObject({ why: 'unsendable' });
  });

  it('that hangs is killed with what it spawned, and its slot is used again', async () => {
    await using pool = await open('misbehave', 1_000);
    for (const how of ['loop forever', 'never resolve']) {
      const file = join(folder, how);
      const answer = pool.call([how, file]);
      const pids = await pidsIn(file);
      expect(await answer).toEqual({ kind: 'failed', why: 'timeout', message: expect.stringMatching(/within 1000 ms/) });
      expect(await eventually(() => !pids.some(isRunning))).toBe(true);
      expect(await pool.call(['well'], { deadlineMs: 20_000 })).toEqual({ kind: 'answered', value: 'well' });
    }
  });

  it('must be there', async () => {
    await expect(open('missing')).rejects.toMatchObject(refusal('USAGE', /"missing" .* is not a function; it exports .*add/));
    await expect(open('notAFunction')).rejects.toMatchObject({ code: 'USAGE' });
    await expect(openFunctionPool({ module: './nowhere.ts', exportName: 'a', deadlineMs: 1000 })).rejects.toMatchObject({
      message: expect.stringMatching(/cannot be imported/),
    });
  });
});
