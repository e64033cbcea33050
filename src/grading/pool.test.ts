import { AsyncLocalStorage } from 'node:async_hooks';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import { inputFor } from '../../test/fixtures/grader/input-for.ts';
import type { Order } from '../../test/fixtures/grader/obedient.ts';
import { eventually, living, saidIn } from '../../test/fixtures/grader/processes.ts';
import { refusal } from '../../test/fixtures/refusal.ts';
import { limitsMemory } from '../../test/fixtures/system.ts';
import type { GraderRunner } from '../core/contracts.ts';
import type { Grade } from '../core/types.ts';
import { type GraderPoolOptions, openGraderPool } from './pool.ts';

const module = new URL('../../test/fixtures/grader/obedient.ts', import.meta.url).href;
const folder = sharedFolder();
const opened: GraderRunner[] = [];
let files = 0;

afterEach(async () => {
  for (const pool of opened.splice(0)) await pool[Symbol.asyncDispose]();
});

async function open(options: Partial<GraderPoolOptions> = {}): Promise<GraderRunner> {
  const pool = await openGraderPool({ module, exportName: 'obedient', workers: 1, ...options });
  opened.push(pool);
  return pool;
}

const newFile = (): string => join(folder, String(files++));
const ask = (pool: GraderRunner, order: Order['do'], more: Omit<Order, 'do'> = {}): Promise<Grade> =>
  pool.grade(inputFor('0', { do: order, ...more }));

/** A grading under way, and the processes that it said it has. */
async function begun(pool: GraderRunner, order: Order['do']) {
  const pidFile = newFile();
  const grade = ask(pool, order, { pidFile });
  const said = await saidIn(pidFile);
  return { grade, said, isGone: () => eventually(() => living(said).length === 0) };
}

async function processOf(pool: GraderRunner): Promise<number> {
  const grade = await ask(pool, 'answer with a number of the process');
  if (grade.kind !== 'graded') throw new Error(`not graded: ${JSON.stringify(grade)}`);
  return grade.reward.value;
}

const graded = (value: number): Grade => ({ kind: 'graded', reward: { value } });

function keepBusy(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

describe('a grader that behaves', () => {
  it('is heard, as far as it prints within bounds', async () => {
    const pool = await open();
    const hasty = await open({ deadlineMs: 500 });
    const heard = async (order: Order['do'], by = pool): Promise<string> => {
      let text = '';
      await by.grade(inputFor('0', { do: order }), undefined, (more) => {
        text += more;
      });
      return text;
    };
    expect(await heard('print and answer')).toBe(`seen { n: 1 }\nodd\n${'x'.repeat(8000)}`.slice(0, 8000));
    expect(await heard('answer 1')).toBe('');
    expect(await heard('print now and then', hasty)).toMatch(/^(still here\n)+$/);
  });

  it('gives its reward, with parts, from another process', async () => {
    const pool = await open();
    expect(await ask(pool, 'answer later with parts')).toEqual({
      kind: 'graded',
      reward: { value: 0.5, parts: { style: 0.25, facts: 0.75 } },
    });
    expect(living((await begun(pool, 'answer 1')).said)).not.toContain(process.pid);
  });

  it('can be named by a path as well as by a URL', async () => {
    expect(await ask(await open({ module: fileURLToPath(module) }), 'answer 1')).toEqual(graded(1));
  });

  it('answers each of 200 gradings at once on 2 processes with its own reward', async () => {
    const pool = await open({ exportName: 'echo', workers: 2 });
    const ids = Array.from({ length: 200 }, (_, index) => index);
    expect(await Promise.all(ids.map((id) => pool.grade(inputFor(String(id)))))).toEqual(ids.map(graded));
  });

  it('answers in the async context of who asked', async () => {
    const pool = await open({ exportName: 'echo', workers: 2 });
    const context = new AsyncLocalStorage<string>();
    const seen = ['a', 'b', 'c', 'd'].map((name) =>
      context.run(name, async () => {
        await pool.grade(inputFor('1'));
        return context.getStore();
      }),
    );
    expect(await Promise.all(seen)).toEqual(['a', 'b', 'c', 'd']);
  });

  it('may print anything without anyone taking it for an answer', async () => {
    const pool = await open();
    expect(await ask(pool, 'print garbage')).toEqual(graded(1));
    expect(await ask(pool, 'answer 1')).toEqual(graded(1));
  });

  it('keeps the reward that it gave in time, although this process was too busy to read it', async () => {
    const pool = await open({ deadlineMs: 1_500 });
    const grade = ask(pool, 'answer 1');
    keepBusy(2_500);
    expect(await grade).toEqual(graded(1));
  });

  it('keeps the reward that it gave just before its process exited', async () => {
    const pool = await open();
    const grade = ask(pool, 'answer, then exit');
    // So that the answer and the exit are both there when they are looked at.
    keepBusy(800);
    expect(await grade).toEqual(graded(1));
  });
});

describe('a grader that fails', () => {
  let pool: GraderRunner;
  beforeAll(async () => {
    pool = await openGraderPool({ module, exportName: 'obedient', workers: 1, deadlineMs: 20_000 });
  });
  afterAll(() => pool[Symbol.asyncDispose]());

  it.each<[Order['do'], string, RegExp]>([
    ['throw', 'GRADER_FAILED', /threw Error: no such unit \(at .*obedient\.ts/],
    ['throw something odd', 'GRADER_FAILED', /threw a value that is not an Error: .*Circular/],
    ['reject later outside the call', 'GRADER_FAILED', /exited with code 1, having printed:[\s\S]*left behind/],
    ['exit with 0', 'GRADER_FAILED', /exited with code 0 before it answered; did it call process\.exit\?$/],
    ['exit with 3', 'GRADER_FAILED', /exited with code 3, having printed:\n\[31mdisk on fire\[0m\n/],
    ['kill itself', 'GRADER_FAILED', /killed by SIGKILL/],
    ['open a pool', 'GRADER_FAILED', /opened inside a grading process/],
    ['return NaN', 'GRADER_BAD_REWARD', /returned NaN, expected a finite number/],
    ['return a getter that throws', 'GRADER_FAILED', /not computed/],
  ])('(%s) gives %s and no number, and the next grading succeeds', async (order, code, message) => {
    expect(await ask(pool, order)).toEqual({ kind: 'failed', code, message: expect.stringMatching(message) });
    expect(await ask(pool, 'answer 1')).toEqual(graded(1));
  });

  it('gets no input that cannot be sent', async () => {
    const input = { ...inputFor('0', { do: 'answer 1' }), output: (() => 1) as never };
    expect(await pool.grade(input)).toMatchObject({ code: 'GRADER_FAILED', message: expect.stringMatching(/cannot be sent/) });
    expect(await ask(pool, 'answer 1')).toEqual(graded(1));
  });
});

describe('a grader that hangs', () => {
  for (const order of ['loop forever', 'never resolve'] as const) {
    it(`(${order}) is a timeout, and its slot grades again`, async () => {
      const pool = await open({ deadlineMs: 1_000 });
      expect(await ask(pool, order)).toEqual({
        kind: 'failed',
        code: 'GRADER_TIMEOUT',
        message: expect.stringMatching(/1000 ms/),
      });
      // In a slot that is lost it would never end.
      expect(await ask(pool, 'answer 1')).toEqual(graded(1));
    });
  }

  it('does not hold up the gradings of other processes', async () => {
    const pool = await open({ workers: 2, deadlineMs: 20_000 });
    let hungEnded = false;
    const hung = ask(pool, 'loop forever').finally(() => {
      hungEnded = true;
    });
    for (let call = 0; call < 20; call += 1) expect(await ask(pool, 'answer 1')).toEqual(graded(1));
    expect(hungEnded).toBe(false);
    await pool[Symbol.asyncDispose]();
    expect(await hung).toMatchObject({ code: 'CANCELLED' });
  });
});

describe('a process of the pool', () => {
  it('that exits leaves nothing behind that it spawned', async () => {
    const { grade, isGone } = await begun(await open(), 'exit with 0');
    expect(await grade).toMatchObject({ code: 'GRADER_FAILED' });
    expect(await isGone()).toBe(true);
  });

  it('that dies while idle is replaced', async () => {
    const pool = await open();
    const before = await processOf(pool);
    const { said, isGone } = await begun(pool, 'answer 1');
    for (const pid of living(said)) process.kill(pid, 'SIGKILL');
    expect(await isGone()).toBe(true);
    // A grading that meets the process between its death and our hearing of it may fail; the slot must come back.
    let replaced: Grade | undefined;
    for (let call = 0; call < 20 && replaced?.kind !== 'graded'; call += 1) replaced = await ask(pool, 'answer 1');
    expect(replaced).toEqual(graded(1));
    expect(await processOf(pool)).not.toBe(before);
  });
});

describe('closing the pool', () => {
  it('ends running and queued gradings as cancelled, and every process', async () => {
    const pool = await open({ workers: 2 });
    const running = [await begun(pool, 'loop forever'), await begun(pool, 'never resolve')];
    const queued = [ask(pool, 'answer 1'), ask(pool, 'answer 1')];
    expect(running.flatMap(({ said }) => living(said))).toHaveLength(4);
    await pool[Symbol.asyncDispose]();
    const cancelled = { kind: 'failed', code: 'CANCELLED', message: expect.any(String) };
    expect(await Promise.all([...running.map(({ grade }) => grade), ...queued])).toEqual(Array(4).fill(cancelled));
    for (const { isGone } of running) expect(await isGone()).toBe(true);
    expect(await ask(pool, 'answer 1')).toEqual(cancelled);
    await pool[Symbol.asyncDispose]();
  });

  it('happens when the signal aborts', async () => {
    const controller = new AbortController();
    const pool = await open({ signal: controller.signal });
    const { grade, isGone } = await begun(pool, 'never resolve');
    controller.abort();
    expect(await grade).toMatchObject({ code: 'CANCELLED' });
    expect(await isGone()).toBe(true);
  });

  it('can happen while it opens', async () => {
    const controller = new AbortController();
    const hanging = new URL('../../test/fixtures/grader/hangs-on-import.ts', import.meta.url).href;
    const opening = openGraderPool({ module: hanging, exportName: 'grader', workers: 2, signal: controller.signal });
    setTimeout(() => controller.abort(), 100);
    await expect(opening).rejects.toMatchObject({ code: 'CANCELLED' });
    await expect(open({ signal: AbortSignal.abort() })).rejects.toMatchObject({ code: 'CANCELLED' });
  });
});

describe('a grading that failed', () => {
  it('is tried again, in another process where there is one', async () => {
    const pool = await open({ workers: 2, retries: 1 });
    const onceFile = newFile();
    const grade = await ask(pool, 'fail once', { onceFile });
    expect(grade).toMatchObject({ kind: 'graded' });
    const first = Number(readFileSync(onceFile, 'utf8'));
    expect(grade.kind === 'graded' && grade.reward.value).not.toBe(first);
  });

  it('for good names the reason of every attempt', async () => {
    const pool = await open({ retries: 1, deadlineMs: 1_500 });
    expect(await ask(pool, 'hang once, then exit', { onceFile: newFile() })).toEqual({
      kind: 'failed',
      code: 'GRADER_FAILED',
      message:
        "tried 2 times: the grader did not answer within 1500 ms; then the grader's process exited with code 3 before it answered",
    });
    expect(await ask(await open({ retries: 2 }), 'throw')).toMatchObject(
      refusal('GRADER_FAILED', /^tried 3 times, each time: the grader threw Error: no such unit/),
    );
  });

  it('is not tried again where none was asked for', async () => {
    const pool = await open();
    expect(await ask(pool, 'throw')).toMatchObject({ message: expect.stringMatching(/^the grader threw/) });
  });

  it('on purpose, or with a result that is no reward, is not tried again', async () => {
    const pool = await open({ retries: 3 });
    expect(await ask(pool, 'cannot score')).toEqual({
      kind: 'failed',
      code: 'GRADER_UNSCORABLE',
      message: 'no reference',
    });
    expect(await ask(pool, 'reject')).toEqual({ kind: 'ungraded', why: 'nothing here' });
    expect(await ask(pool, 'return NaN')).toMatchObject({
      code: 'GRADER_BAD_REWARD',
      message: expect.not.stringContaining('tried'),
    });
  });
});

describe('the memory of a grading process', () => {
  it.skipIf(!limitsMemory)('is limited, buffers included, and the failure says so', async () => {
    const pool = await open({ memoryMb: 128 });
    expect(await ask(pool, 'fill buffers')).toEqual({
      kind: 'failed',
      code: 'GRADER_FAILED',
      message: expect.stringMatching(/^the grader's process used more than 128 MB of memory/),
    });
    expect(await ask(pool, 'answer 1')).toEqual(graded(1));
  });

  it('is limited for the heap too', async () => {
    const pool = await open({ memoryMb: 128 });
    expect(await ask(pool, 'use up the heap')).toMatchObject(refusal('GRADER_FAILED', /heap out of memory|more than 128 MB/));
  });
});

describe('two users of the same grader', () => {
  it('share its processes, which end with the last of them', async () => {
    const [one, two] = await Promise.all([open(), open({ retries: 2, deadlineMs: 5_000 })]);
    const { grade, said, isGone } = await begun(one, 'answer with a number of the process');
    expect(await grade).toEqual(graded(await processOf(two)));
    await one[Symbol.asyncDispose]();
    expect(living(said)).toHaveLength(2);
    expect(await ask(one, 'answer 1')).toMatchObject({ code: 'CANCELLED' });
    expect(await grade).toEqual(graded(await processOf(two)));
    await two[Symbol.asyncDispose]();
    expect(await isGone()).toBe(true);
  });

  it('each have their own deadline', async () => {
    const [patient, hasty] = [await open({ deadlineMs: 20_000 }), await open({ deadlineMs: 300 })];
    expect(await ask(hasty, 'never resolve')).toMatchObject({ message: expect.stringMatching(/300 ms/) });
    expect(await ask(patient, 'answer 1')).toEqual(graded(1));
  });

  it('lose only their own gradings when they leave', async () => {
    const [one, two] = [await open({ workers: 2 }), await open({ workers: 2 })];
    const lost = await begun(one, 'never resolve');
    const kept = ask(two, 'answer later with parts');
    await one[Symbol.asyncDispose]();
    expect(await lost.grade).toMatchObject({ code: 'CANCELLED' });
    expect(await kept).toMatchObject({ reward: { value: 0.5 } });
    // What the one left behind is killed, and its process replaced.
    expect(await Promise.all([ask(two, 'answer 1'), ask(two, 'answer 1')])).toEqual([graded(1), graded(1)]);
  });

  it('have processes of their own where the limits differ', async () => {
    const [one, two] = [await open(), await open({ memoryMb: 512 })];
    expect(await processOf(one)).not.toBe(await processOf(two));
  });

  it('may close while the other still waits for the processes', async () => {
    const leaving = new AbortController();
    const opening = open({ signal: leaving.signal });
    const other = open();
    leaving.abort();
    await expect(opening).rejects.toMatchObject({ code: 'CANCELLED' });
    expect(await ask(await other, 'answer 1')).toEqual(graded(1));
  });
});
