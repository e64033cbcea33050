import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import { eventually, isRunning } from '../../test/fixtures/grader/processes.ts';
import { openProcessPool, type ProcessPool } from './process-pool.ts';

const test = {
  kind: 'test',
  script: new URL('../../test/fixtures/processes/served.ts', import.meta.url),
  words: { whose: 'it', starting: '', code: 'USAGE', late: { code: 'USAGE', what: '' }, hint: '' },
} as const;
const folder = sharedFolder();

const open = (closedFile = join(folder, 'unnamed')): Promise<ProcessPool> =>
  openProcessPool({ program: { ...test, args: [closedFile] }, workers: 1 });

async function pidOf(pool: ProcessPool): Promise<number> {
  const answer = await pool.call('pid');
  if (answer.kind !== 'answered') throw new Error(answer.kind);
  return answer.value as number;
}

it('the code that processes import stays what the first ones imported: one that would import other code is not used', async () => {
  const digests = { 'grader.ts': 'as it was' };
  const program = { ...test, args: [join(folder, 'edited')], sources: async () => ({ ...digests }) };
  await using pool = await openProcessPool({ program, workers: 1 });
  expect(await pool.call('exit')).toMatchObject({ kind: 'ended' });
  expect(await pool.call('hello')).toEqual({ kind: 'answered', value: 'hello' });
  digests['grader.ts'] = 'edited';
  expect(await pool.call('hello')).toEqual({ kind: 'answered', value: 'hello' });
  await pool.call('exit');
  const message = expect.stringMatching(/started: grader.ts has changed since the run began; put it back/);
  expect(await pool.call('hello')).toMatchObject({ kind: 'unusable', error: { message } });
});

describe('a call', () => {
  it('tells what it noted before it answers, also where it crashes; then its process is replaced', async () => {
    await using pool = await open();
    const notes: unknown[] = [];
    const onNote = (note: unknown): void => void notes.push(note);
    expect(await pool.call('exit', { onNote })).toEqual({ kind: 'ended', how: 'exited with code 4' });
    expect(await pool.call('hello', { onNote })).toEqual({ kind: 'answered', value: 'hello' });
    expect(notes).toEqual(['began exit', 'began hello']);
  });

  it('that is answered in its name does no harm to the next, and its process is asked nothing more', async () => {
    await using pool = await open();
    const pid = await pidOf(pool);
    expect(await pool.call('answer twice')).toEqual({ kind: 'answered', value: 'forged' });
    expect(await pool.call('after that')).toEqual({ kind: 'answered', value: 'unharmed' });
    expect(await pidOf(pool)).not.toBe(pid);
  });

  it('that shall not go to one process waits for another, and takes it where there is no other', async () => {
    await using pool = await openProcessPool({ program: { ...test, args: [join(folder, 'two')] }, workers: 2 });
    const begun: number[] = [];
    const onBegun = (by: number): void => void begun.push(by);
    await pool.call('hello', { onBegun });
    const first = begun[0]!;
    for (let call = 0; call < 4; call += 1) await pool.call('hello', { onBegun, notBy: first });
    expect(new Set(begun).size).toBe(2);
    expect(begun.slice(1)).not.toContain(first);
    await using single = await open();
    const alone: number[] = [];
    await single.call('hello', { onBegun: (by) => alone.push(by) });
    expect(await single.call('hello', { notBy: alone[0] })).toEqual({ kind: 'answered', value: 'hello' });
  });

  it('that is given up may still answer, and its process goes on', async () => {
    await using pool = await open();
    const pid = await pidOf(pool);
    const given = new AbortController();
    const answer = pool.call('until aborted', { signal: given.signal, onNote: () => given.abort(new Error('enough')) });
    expect(await answer).toEqual({ kind: 'answered', value: 'enough' });
    expect(await pidOf(pool)).toBe(pid);
  });

  it('that is given up and goes on is killed, and its process is replaced', async () => {
    await using pool = await open();
    const pid = await pidOf(pool);
    const given = new AbortController();
    const answer = pool.call('ignore the signal', { signal: given.signal, onNote: () => given.abort() });
    expect(await answer).toEqual({ kind: 'aborted' });
    expect(await eventually(() => !isRunning(pid))).toBe(true);
    expect(await pidOf(pool)).not.toBe(pid);
  });

  it('that is given up while it waits is never begun', async () => {
    await using pool = await open();
    const [first, second] = [new AbortController(), new AbortController()];
    const notes: unknown[] = [];
    const busy = pool.call('until aborted', { signal: first.signal });
    const waiting = pool.call('hello', { signal: second.signal, onNote: (note) => notes.push(note) });
    second.abort();
    expect(await waiting).toEqual({ kind: 'aborted' });
    expect(await pool.call('hello', { signal: AbortSignal.abort() })).toEqual({ kind: 'aborted' });
    first.abort(new Error('enough'));
    expect(await busy).toMatchObject({ kind: 'answered' });
    expect(notes).toEqual([]);
  });

  it('after the pool was closed says so', async () => {
    const pool = await open();
    const running = pool.call('ignore the signal');
    await pool[Symbol.asyncDispose]();
    expect(await running).toEqual({ kind: 'closed' });
    expect(await pool.call('hello')).toEqual({ kind: 'closed' });
  });
});

it.each(['idle', 'busy'])('closing a pool lets its processes close what they hold when they are %s', async (how) => {
  const file = join(folder, how);
  const pool = await open(file);
  const pid = await pidOf(pool);
  if (how === 'busy') void pool.call('ignore the signal');
  await pool[Symbol.asyncDispose]();
  expect([existsSync(file), isRunning(pid)]).toEqual([true, false]);
});
