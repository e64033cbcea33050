import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { inputFor } from '../../test/fixtures/grader/input-for.ts';
import type { GraderInput, GraderResult } from '../core/contracts.ts';
import { defineGrader, unscorable } from '../core/define.ts';
import { inlineGrader } from './inline.ts';

const input = inputFor('7');
const run = (grade: (input: GraderInput) => unknown, deadlineMs = 20_000) =>
  inlineGrader(defineGrader(grade as (input: GraderInput) => GraderResult), { deadlineMs });

describe('an inline grader', () => {
  it('gives its reward and says that it cannot be killed', async () => {
    const runner = run(({ task }) => Number(task.id));
    expect(await runner.grade(input)).toEqual({ kind: 'graded', reward: { value: 7 } });
    expect(runner.killable).toBe(false);
    expect(runner.warning).toMatch(/inside this process/);
  });

  it('that throws, now or later, is a failure and no number', async () => {
    const failed = { kind: 'failed', code: 'GRADER_FAILED', message: expect.stringMatching(/threw Error: no/) };
    const throwing = () => {
      throw new Error('no');
    };
    expect(await run(throwing).grade(input)).toEqual(failed);
    expect(await run(async () => throwing()).grade(input)).toEqual(failed);
  });

  it('is a failure and no exception, whatever it throws or returns', async () => {
    const throwing = (value: unknown) => () => {
      throw value;
    };
    const acts = [throwing(null), throwing(Symbol('no')), throwing(Object.create(null)), () => 1n];
    for (const act of acts) {
      expect(await run(act).grade(input)).toMatchObject({ kind: 'failed', message: expect.any(String) });
    }
  });

  it('that cannot score says why, in so many words at the most', async () => {
    const grade = await run(() => unscorable('x'.repeat(1e6))).grade(input);
    expect(grade).toMatchObject({ code: 'GRADER_UNSCORABLE', message: expect.stringMatching(/^x{2000}…$/) });
  });

  it('that returns no reward is told what it returned', async () => {
    expect(await run(() => 'good').grade(input)).toMatchObject({
      code: 'GRADER_BAD_REWARD',
      message: expect.stringContaining("'good'"),
    });
  });

  it('that overruns its deadline is a timeout, and its late result, good or bad, is ignored', async () => {
    for (const late of [() => 1, () => Promise.reject(new Error('late'))]) {
      const finished = Promise.withResolvers<void>();
      const runner = run(async () => {
        await sleep(60);
        finished.resolve();
        return late();
      }, 20);
      expect(await runner.grade(input)).toMatchObject({ kind: 'failed', code: 'GRADER_TIMEOUT' });
      await finished.promise;
      await sleep(0);
    }
  });

  it('that changes its input changes only its own copy', async () => {
    const own = inputFor('7');
    const grade = await run(({ task }) => {
      Object.assign(task, { id: 'changed' });
      return task.id.length;
    }).grade(own);
    expect(grade).toMatchObject({ reward: { value: 7 } });
    expect(own.task.id).toBe('7');
  });

  it('gets no input that cannot be copied', async () => {
    const grade = await run(() => 1).grade({ ...input, output: (() => 1) as never });
    expect(grade).toMatchObject({ code: 'GRADER_FAILED', message: expect.stringMatching(/cannot be copied/) });
  });

  it('that is closed answers pending and later gradings as cancelled', async () => {
    const runner = run(() => new Promise(() => {}));
    const pending = runner.grade(input);
    await runner[Symbol.asyncDispose]();
    expect(await pending).toMatchObject({ code: 'CANCELLED' });
    expect(await runner.grade(input)).toMatchObject({ code: 'CANCELLED' });
  });

  it('needs a deadline that a timer can keep', () => {
    for (const deadlineMs of [0, -1, Number.NaN, Number.POSITIVE_INFINITY])
      expect(() => run(() => 1, deadlineMs)).toThrow(/deadlineMs/);
  });
});
