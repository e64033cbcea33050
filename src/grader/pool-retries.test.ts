import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { inputFor } from '../../test/fixtures/grader/input-for.ts';
import type { Order } from '../../test/fixtures/grader/obedient.ts';
import { eventually, living, saidIn } from '../../test/fixtures/grader/processes.ts';
import type { Grade } from '../core/types.ts';
import { type GraderPool, type GraderPoolOptions, openGraderPool } from './pool.ts';

const module = new URL('../../test/fixtures/grader/obedient.ts', import.meta.url).href;
const folder = mkdtempSync(join(tmpdir(), 'grader-retries-'));
const opened: GraderPool[] = [];
let files = 0;

afterEach(async () => {
  for (const pool of opened.splice(0)) await pool[Symbol.asyncDispose]();
});
afterAll(() => rmSync(folder, { recursive: true }));

async function open(options: Partial<GraderPoolOptions> = {}): Promise<GraderPool> {
  const pool = await openGraderPool({ module, exportName: 'obedient', workers: 1, ...options });
  opened.push(pool);
  return pool;
}

const newFile = (): string => join(folder, String(files++));
const ask = (pool: GraderPool, order: Order): Promise<Grade> => pool.grade(inputFor('0', order));

describe('a grading that failed', () => {
  it('is tried again, in another process where there is one', async () => {
    const pool = await open({ workers: 2, retries: 1 });
    const onceFile = newFile();
    const grade = await ask(pool, { do: 'fail once', onceFile });
    expect(grade).toMatchObject({ kind: 'graded' });
    const first = Number(readFileSync(onceFile, 'utf8'));
    expect(grade.kind === 'graded' && grade.reward.value).not.toBe(first);
    expect(pool.counts).toEqual({ gradings: 1, attempts: 2 });
  });

  it('is tried again by the same process where there is no other', async () => {
    const pool = await open({ workers: 1, retries: 1 });
    const onceFile = newFile();
    expect(await ask(pool, { do: 'fail once', onceFile })).toEqual({
      kind: 'graded',
      reward: { value: Number(readFileSync(onceFile, 'utf8')) },
    });
  });

  it('for good names the reason of every attempt', async () => {
    const pool = await open({ retries: 1, deadlineMs: 700 });
    expect(await ask(pool, { do: 'hang once, then exit', onceFile: newFile() })).toEqual({
      kind: 'failed',
      code: 'GRADER_FAILED',
      message:
        "tried 2 times: the grader did not answer within 700 ms; then the grader's process exited with code 3 before it answered",
    });
    expect(await ask(await open({ retries: 2 }), { do: 'throw' })).toMatchObject({
      code: 'GRADER_FAILED',
      message: expect.stringMatching(/^tried 3 times, each time: the grader threw Error: no such unit/),
    });
  });

  it('is not tried again where none was asked for', async () => {
    const pool = await open();
    expect(await ask(pool, { do: 'throw' })).toMatchObject({ message: expect.stringMatching(/^the grader threw/) });
    expect(pool.counts).toEqual({ gradings: 1, attempts: 1 });
  });

  it('on purpose, or with a result that is no reward, is not tried again', async () => {
    const pool = await open({ retries: 3 });
    expect(await ask(pool, { do: 'cannot score' })).toEqual({
      kind: 'failed',
      code: 'GRADER_UNSCORABLE',
      message: 'no reference',
    });
    expect(await ask(pool, { do: 'reject' })).toEqual({ kind: 'ungraded', why: 'nothing here' });
    expect(await ask(pool, { do: 'return NaN' })).toMatchObject({ code: 'GRADER_BAD_REWARD' });
    expect(pool.counts).toEqual({ gradings: 3, attempts: 3 });
  });

  it('needs a number of retries and a limit that mean something', async () => {
    for (const wrong of [{ retries: -1 }, { retries: 0.5 }, { memoryMb: 1 }, { memoryMb: Number.NaN }]) {
      await expect(open(wrong)).rejects.toMatchObject({ code: 'USAGE' });
    }
  });
});

describe('the memory of a grading process', () => {
  it('is limited, buffers included, and the failure says so', async () => {
    const pool = await open({ memoryMb: 128 });
    expect(await ask(pool, { do: 'fill buffers' })).toEqual({
      kind: 'failed',
      code: 'GRADER_FAILED',
      message: expect.stringMatching(/^the grader's process used more than 128 MB of memory/),
    });
    expect(await ask(pool, { do: 'answer 1' })).toMatchObject({ reward: { value: 1 } });
  });

  it('is limited for the heap too', async () => {
    const pool = await open({ memoryMb: 128 });
    expect(await ask(pool, { do: 'use up the heap' })).toMatchObject({
      code: 'GRADER_FAILED',
      message: expect.stringMatching(/heap out of memory|more than 128 MB/),
    });
  });
});

describe('two users of the same grader', () => {
  it('share its processes, which end with the last of them', async () => {
    const [one, two] = await Promise.all([open(), open({ retries: 2, deadlineMs: 5_000 })]);
    const pidFile = newFile();
    const [a, b] = [
      await ask(one, { do: 'answer with a number of the process', pidFile }),
      await ask(two, { do: 'answer with a number of the process' }),
    ];
    expect(a).toEqual(b);
    const said = await saidIn(pidFile);
    await one[Symbol.asyncDispose]();
    expect(living(said)).toHaveLength(2);
    expect(await ask(one, { do: 'answer 1' })).toMatchObject({ code: 'CANCELLED' });
    expect(await ask(two, { do: 'answer with a number of the process' })).toEqual(b);
    await two[Symbol.asyncDispose]();
    expect(await eventually(() => living(said).length === 0)).toBe(true);
  });

  it('each have their own deadline', async () => {
    const [patient, hasty] = [await open({ deadlineMs: 20_000 }), await open({ deadlineMs: 300 })];
    expect(await ask(hasty, { do: 'never resolve' })).toMatchObject({ message: expect.stringMatching(/300 ms/) });
    expect(await ask(patient, { do: 'answer 1' })).toMatchObject({ reward: { value: 1 } });
  });

  it('lose only their own gradings when they leave', async () => {
    const [one, two] = [await open({ workers: 2 }), await open({ workers: 2 })];
    const pidFile = newFile();
    const [lost, kept] = [ask(one, { do: 'never resolve', pidFile }), ask(two, { do: 'answer later with parts' })];
    await saidIn(pidFile);
    await one[Symbol.asyncDispose]();
    expect(await lost).toMatchObject({ code: 'CANCELLED' });
    expect(await kept).toMatchObject({ reward: { value: 0.5 } });
    // What the one left behind is killed, and its process replaced.
    const pair = await Promise.all([ask(two, { do: 'answer 1' }), ask(two, { do: 'answer 1' })]);
    expect(pair).toMatchObject([{ reward: { value: 1 } }, { reward: { value: 1 } }]);
  });

  it('have processes of their own where the limits differ', async () => {
    const [one, two] = [await open(), await open({ memoryMb: 512 })];
    const order = { do: 'answer with a number of the process' } as const;
    expect(await ask(one, order)).not.toEqual(await ask(two, order));
  });

  it('may close while the other still waits for the processes', async () => {
    const leaving = new AbortController();
    const opening = open({ signal: leaving.signal });
    const other = open();
    leaving.abort();
    await expect(opening).rejects.toMatchObject({ code: 'CANCELLED' });
    expect(await ask(await other, { do: 'answer 1' })).toMatchObject({ reward: { value: 1 } });
  });
});
