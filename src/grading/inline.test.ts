import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { inputFor } from '../../test/fixtures/grader/input-for.ts';
import { refuses } from '../../test/fixtures/refusal.ts';
import type { GraderInput, GraderResult } from '../core/contracts.ts';
import { defineGrader, rejected, unscorable } from '../core/define.ts';
import { gradeOnce, inlineGrader } from './inline.ts';

const input = inputFor('7');
const run = (grade: (input: GraderInput) => unknown, deadlineMs = 20_000) =>
  inlineGrader(defineGrader(grade as (input: GraderInput) => GraderResult), { deadlineMs });

describe('an inline grader', () => {
  it('gives its reward and says that it cannot be killed', async () => {
    const runner = run(({ task }) => Number(task.id));
    expect(await runner.grade(input)).toEqual({ kind: 'graded', reward: { value: 7 } });
    expect(runner.warning).toMatch(/inside this process/);
  });

  it('is a failure and no exception, whatever it throws or returns', async () => {
    const throwing = (value: unknown) => () => {
      throw value;
    };
    const acts = [
      throwing(new Error('no')),
      async () => throwing(1)(),
      throwing(null),
      throwing(Symbol('no')),
      throwing(Object.create(null)),
      () => 1n,
    ];
    for (const act of acts) {
      expect(await run(act).grade(input)).toMatchObject({ kind: 'failed', message: expect.any(String) });
    }
  });

  it('that cannot score says why, in so many words at the most', async () => {
    const grade = await run(() => unscorable('x'.repeat(1e6))).grade(input);
    expect(grade).toMatchObject({ code: 'GRADER_UNSCORABLE', message: expect.stringMatching(/^x{2000}…$/) });
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

const sum = defineGrader(({ task, messages }) => {
  const said = messages.at(-1)?.content ?? '';
  if (task.answer === undefined) unscorable('the task has no answer');
  if (said === '') return rejected('nothing was said');
  return { value: Number(said === String(task.answer)), parts: { short: 1 / said.length }, metrics: { letters: said.length } };
});

describe('gradeOnce', () => {
  it('gives what a run would store: graded, ungraded or failed', async () => {
    expect(await gradeOnce(sum, { said: '4', answer: 4 })).toEqual({
      kind: 'graded',
      reward: { value: 1, parts: { short: 1 }, metrics: { letters: 1 } },
    });
    expect(await gradeOnce(sum, { said: '', answer: 4 })).toEqual({ kind: 'ungraded', why: 'nothing was said' });
    const failed = { kind: 'failed', code: 'GRADER_UNSCORABLE', message: 'the task has no answer' };
    expect(await gradeOnce(sum, { said: '4' })).toEqual(failed);
    const broken = defineGrader(() => Number.NaN);
    expect(await gradeOnce(broken, {})).toMatchObject({ kind: 'failed', code: 'GRADER_BAD_REWARD' });
  });

  it('shows the grader what it was told, and a whole conversation of it', async () => {
    let seen: GraderInput | undefined;
    const looking = defineGrader((input) => {
      seen = input;
      return input.turns.length;
    });
    const told = { prompt: 'Add 2 and 2.', said: '4', answer: 4, metadata: { hard: false }, output: [4], taskId: 'sum' };
    await gradeOnce(looking, told);
    const conversation = [
      { role: 'user', content: 'Add 2 and 2.' },
      { role: 'assistant', content: '4' },
    ];
    expect(seen).toEqual({
      task: { id: 'sum', prompt: [conversation[0]], answer: 4, metadata: { hard: false } },
      messages: conversation,
      threads: { default: conversation },
      turns: [{ index: 0, role: 'default', thread: 'default', stopReason: 'stop', response: conversation[1] }],
      ...{ output: [4], result: {}, truncated: undefined, artifactsDir: null },
    });
    const model = { baseURL: 'http://127.0.0.1:1/v1', apiKey: 'k', name: 'judge' };
    const asking = defineGrader((_, ctx) => Number(ctx.model?.name === 'judge'));
    expect(await gradeOnce(asking, { model })).toMatchObject({ reward: { value: 1 } });
  });

  it('holds a grader to its own deadline', async () => {
    const slow = defineGrader({ deadlineMs: 20, grade: () => new Promise<number>(() => {}) });
    expect(await gradeOnce(slow, {})).toMatchObject({ kind: 'failed', code: 'GRADER_TIMEOUT' });
  });

  it('refuses what it does not understand, and says what it does', async () => {
    await refuses(gradeOnce(sum, { sayd: '4' } as never), 'USAGE', /knows no sayd; expected some of said, messages/);
    await expect(gradeOnce(sum, { said: '4', messages: [] })).rejects.toMatchObject({ code: 'USAGE' });
  });
});
