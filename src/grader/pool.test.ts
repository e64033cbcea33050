import { AsyncLocalStorage } from 'node:async_hooks';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { inputFor } from '../../test/fixtures/grader/input-for.ts';
import type { Order } from '../../test/fixtures/grader/obedient.ts';
import { eventually, living, saidIn } from '../../test/fixtures/grader/processes.ts';
import type { GraderRunner } from '../core/contracts.ts';
import type { Grade } from '../core/types.ts';
import { type GraderPoolOptions, openGraderPool } from './pool.ts';

const module = new URL('../../test/fixtures/grader/obedient.ts', import.meta.url).href;
const folder = mkdtempSync(join(tmpdir(), 'grader-pool-'));
const opened: GraderRunner[] = [];

afterEach(async () => {
  for (const pool of opened.splice(0)) await pool[Symbol.asyncDispose]();
});
afterAll(() => rmSync(folder, { recursive: true }));

async function open(options: Partial<GraderPoolOptions> = {}): Promise<GraderRunner> {
  const pool = await openGraderPool({ module, exportName: 'obedient', workers: 1, ...options });
  opened.push(pool);
  return pool;
}

const ask = (pool: GraderRunner, order: Order['do'], pidFile?: string): Promise<Grade> =>
  pool.grade(inputFor('0', { do: order, ...(pidFile === undefined ? {} : { pidFile }) }));

async function processOf(pool: GraderRunner): Promise<number> {
  const grade = await ask(pool, 'answer with a number of the process');
  if (grade.kind !== 'graded') throw new Error(`not graded: ${JSON.stringify(grade)}`);
  return grade.reward.value;
}

const graded = (value: number): Grade => ({ kind: 'graded', reward: { value } });

function keepBusy(ms: number): void {
  for (const end = performance.now() + ms; performance.now() < end; );
}

describe('a grader that behaves', () => {
  it('gives its reward, with parts, from another process', async () => {
    const pool = await open();
    expect(pool.killable).toBe(true);
    expect(await ask(pool, 'answer later with parts')).toEqual({
      kind: 'graded',
      reward: { value: 0.5, parts: { style: 0.25, facts: 0.75 } },
    });
    const pidFile = join(folder, 'other');
    await ask(pool, 'answer 1', pidFile);
    expect(living(await saidIn(pidFile))).not.toContain(process.pid);
  });

  it('can be named by a path as well as by a URL', async () => {
    expect(await ask(await open({ module: fileURLToPath(module) }), 'answer 1')).toEqual(graded(1));
  });

  it('is imported once and asked many times by the same process', async () => {
    const pool = await open();
    for (const call of [1, 2, 3]) expect(await ask(pool, 'answer with the number of calls')).toEqual(graded(call));
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
    const pool = await open({ deadlineMs: 400 });
    const grade = ask(pool, 'answer 1');
    keepBusy(1_200);
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

  const failures: readonly [Order['do'], string, RegExp][] = [
    ['throw', 'GRADER_FAILED', /threw Error: no such unit \(at .*obedient\.ts/],
    ['throw undefined', 'GRADER_FAILED', /threw a value that is not an Error: undefined/],
    ['throw something odd', 'GRADER_FAILED', /threw a value that is not an Error: .*Circular/],
    ['reject later outside the call', 'GRADER_FAILED', /exited with code 1, having printed:[\s\S]*left behind/],
    ['exit with 0', 'GRADER_FAILED', /exited with code 0 before it answered; did it call process\.exit\?$/],
    ['exit with 3', 'GRADER_FAILED', /exited with code 3, having printed:\n\[31mdisk on fire\[0m\n/],
    ['kill itself', 'GRADER_FAILED', /killed by SIGKILL/],
    ['open a pool', 'GRADER_FAILED', /opened inside a grading process/],
    ['return NaN', 'GRADER_BAD_REWARD', /returned NaN, expected a finite number/],
    ['return Infinity', 'GRADER_BAD_REWARD', /returned Infinity/],
    ['return a string', 'GRADER_BAD_REWARD', /returned '1', expected a number/],
    ['return nothing', 'GRADER_BAD_REWARD', /returned undefined/],
    ['return a value that is missing', 'GRADER_BAD_REWARD', /\{ score: 1 \}, in which `value` is missing/],
    ['return a part that is NaN', 'GRADER_BAD_REWARD', /part 'style' is NaN/],
    ['return a getter that throws', 'GRADER_FAILED', /not computed/],
  ];
  for (const [order, code, message] of failures) {
    it(`(${order}) gives ${code} and no number, and the next grading succeeds`, async () => {
      expect(await ask(pool, order)).toEqual({ kind: 'failed', code, message: expect.stringMatching(message) });
      expect(await ask(pool, 'answer 1')).toEqual(graded(1));
    });
  }

  it('gets no input that cannot be sent', async () => {
    const input = { ...inputFor('0', { do: 'answer 1' }), output: (() => 1) as never };
    expect(await pool.grade(input)).toMatchObject({ code: 'GRADER_FAILED', message: expect.stringMatching(/cannot be sent/) });
    expect(await ask(pool, 'answer 1')).toEqual(graded(1));
  });
});

describe('a grader that hangs', () => {
  for (const order of ['loop forever', 'never resolve'] as const) {
    it(`(${order}) is a timeout, and its slot grades again`, async () => {
      const pool = await open({ deadlineMs: 300 });
      expect(await ask(pool, order)).toEqual({
        kind: 'failed',
        code: 'GRADER_TIMEOUT',
        message: expect.stringMatching(/300 ms/),
      });
      // Generous: a busy machine must not fail it, a lost slot must.
      const next = await Promise.race([ask(pool, 'answer 1'), eventually(() => false, 10_000)]);
      expect(next).toEqual(graded(1));
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

  it('is killed with what it spawned, also what ignores SIGTERM', async () => {
    const pool = await open({ deadlineMs: 1_000 });
    const pidFile = join(folder, 'hang');
    const grade = ask(pool, 'never resolve', pidFile);
    const said = await saidIn(pidFile);
    expect(living(said)).toHaveLength(2);
    expect(await grade).toMatchObject({ code: 'GRADER_TIMEOUT' });
    expect(await eventually(() => living(said).length === 0)).toBe(true);
  });
});

describe('a process of the pool', () => {
  it('that exits leaves nothing behind that it spawned', async () => {
    const pidFile = join(folder, 'exit');
    const pool = await open();
    expect(await ask(pool, 'exit with 0', pidFile)).toMatchObject({ code: 'GRADER_FAILED' });
    const said = await saidIn(pidFile);
    expect(await eventually(() => living(said).length === 0)).toBe(true);
  });

  it('that dies while idle is replaced', async () => {
    const pool = await open();
    const before = await processOf(pool);
    const pidFile = join(folder, 'idle');
    await ask(pool, 'answer 1', pidFile);
    const said = await saidIn(pidFile);
    for (const pid of living(said)) process.kill(pid, 'SIGKILL');
    expect(await eventually(() => living(said).length === 0)).toBe(true);
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
    const files = [join(folder, 'close-a'), join(folder, 'close-b')];
    const running = files.map((file, index) => ask(pool, index === 0 ? 'loop forever' : 'never resolve', file));
    const queued = [ask(pool, 'answer 1'), ask(pool, 'answer 1')];
    const said = await Promise.all(files.map(saidIn));
    expect(said.flatMap(living)).toHaveLength(4);
    await pool[Symbol.asyncDispose]();
    const cancelled = { kind: 'failed', code: 'CANCELLED', message: expect.any(String) };
    expect(await Promise.all([...running, ...queued])).toEqual([cancelled, cancelled, cancelled, cancelled]);
    expect(await eventually(() => said.flatMap(living).length === 0)).toBe(true);
    expect(await ask(pool, 'answer 1')).toEqual(cancelled);
    await pool[Symbol.asyncDispose]();
  });

  it('happens when the signal aborts', async () => {
    const controller = new AbortController();
    const pool = await open({ signal: controller.signal });
    const pidFile = join(folder, 'signal');
    const pending = ask(pool, 'never resolve', pidFile);
    const said = await saidIn(pidFile);
    expect(living(said)).toHaveLength(2);
    controller.abort();
    expect(await pending).toMatchObject({ code: 'CANCELLED' });
    expect(await eventually(() => living(said).length === 0)).toBe(true);
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
