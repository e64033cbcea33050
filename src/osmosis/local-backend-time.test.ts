/** Rollouts of a local backend in time: deadlines, how many at once, status and cancelling. */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { until } from '../../test/fixtures/gateway/streams.ts';
import { ask, backendOf, execute, policy, request, running } from '../../test/fixtures/rollout-server/local-rollouts.ts';
import type { WorkflowContext } from '../core/contracts.ts';
import { defineGrader, defineWorkflow } from '../core/define.ts';
import type { LocalBackendOptions } from './local-backend.ts';

describe('a deadline', () => {
  const patient = async (ctx: WorkflowContext): Promise<unknown> => await sleep(5000, undefined, { signal: ctx.signal });

  it('ends a workflow that minds its signal, and one that does not', async () => {
    const deaf = (): Promise<unknown> => new Promise(() => undefined);
    for (const run of [patient, deaf]) {
      const { completed } = await execute(running(run), { agentTimeoutSec: 0.05 });
      expect(completed).toEqual([
        { status: 'failure', errCategory: 'timeout', errMessage: 'workflow exceeded its 0.1s deadline' },
      ]);
    }
  });

  it('holds where the abort was swallowed or the event loop was blocked', async () => {
    const swallowing = async (ctx: WorkflowContext): Promise<void> => void (await patient(ctx).catch(() => undefined));
    const blocking = async (): Promise<void> => {
      const end = performance.now() + 80;
      while (performance.now() < end);
    };
    for (const run of [swallowing, blocking]) {
      const { completed } = await execute(running(run), { agentTimeoutSec: 0.05 });
      expect(completed[0]).toMatchObject({ status: 'failure', errCategory: 'timeout' });
    }
  });

  it('counts time in the queue and says how much it was', async () => {
    const { promise: gate, resolve: open } = Promise.withResolvers<void>();
    const backend = running(() => gate, { workflowConfig: { concurrency: { maxConcurrent: 1 } } });
    const first = execute(backend, { rolloutId: 'first' });
    const { completed } = await execute(backend, { rolloutId: 'second', agentTimeoutSec: 0.2 });
    expect(completed[0]).toMatchObject({
      errCategory: 'timeout',
      errMessage: expect.stringMatching(/^workflow exceeded its 0\.2s deadline \(0\.\ds of it spent queued\)$/),
    });
    open();
    expect((await first).completed[0]!.status).toBe('success');
    expect(backend.health()).toMatchObject({ concurrency: { queued: 0, running: 0 } });
  });

  it.each([0, -1])('of %s is over already', async (agentTimeoutSec) => {
    let ran = false;
    const { completed } = await execute(
      running(async () => {
        ran = true;
      }),
      { agentTimeoutSec },
    );
    expect(completed[0]).toMatchObject({ errCategory: 'timeout' });
    expect(ran).toBe(false);
  });

  it('of the grader is its own', async () => {
    const slow = running(async (ctx) => {
      await sleep(80);
      await ask(ctx);
    });
    expect((await execute(slow, { graderTimeoutSec: 0.06 })).graded[0]!.status).toBe('success');
    const hung = backendOf({ grader: defineGrader(() => new Promise<number>(() => undefined)) });
    const { completed, graded } = await execute(hung, { graderTimeoutSec: 0.05 });
    expect(completed[0]!.status).toBe('success');
    expect(graded[0]).toMatchObject({
      status: 'failure',
      errCategory: 'timeout',
      errMessage: 'grader exceeded its 0.1s deadline',
    });
  });

  it('is there even where none was asked for', async () => {
    const { completed } = await execute(running(patient, { longestSec: 0.05 }), { agentTimeoutSec: null });
    expect(completed[0]).toMatchObject({ errCategory: 'timeout' });
  });

  it('that is no time is refused', async () => {
    await expect(execute(running(patient), { agentTimeoutSec: Number.NaN })).rejects.toThrow('agent_timeout_sec is NaN');
  });
});

describe('concurrency', () => {
  const max = (options: Partial<LocalBackendOptions>): unknown =>
    (backendOf(options).health()['concurrency'] as { max_concurrent: unknown }).max_concurrent;

  it('is 4 without a config, unlimited with one that does not say, and what it says', () => {
    expect(max({})).toBe(4);
    expect(max({ workflowConfig: { name: 'x' } })).toBeNull();
    expect(max({ workflowConfig: { concurrency: { maxConcurrent: null } } })).toBeNull();
    expect(max({ workflowConfig: { concurrency: { maxConcurrent: 2 } } })).toBe(2);
    expect(max({ workflow: defineWorkflow(async () => {}, { concurrency: 3 }) })).toBe(3);
  });

  it('covers workflow, callback and grader, and is given back after a failure', async () => {
    let inside = 0;
    let most = 0;
    const enter = async (): Promise<void> => {
      most = Math.max(most, ++inside);
      await sleep(5);
      inside--;
    };
    const workflow = defineWorkflow({
      concurrency: 1,
      run: async (ctx) => {
        await enter();
        await ask(ctx);
        if (ctx.rolloutId === 'r2') throw new Error('one of them');
      },
    });
    const grader = defineGrader(async () => {
      await enter();
      return 1;
    });
    const backend = backendOf({ workflow, grader });
    const tell = { completed: enter, graded: enter, fetch: policy, warn: () => undefined };
    await Promise.all(['r1', 'r2', 'r3'].map((rolloutId) => backend.execute(request({ rolloutId }), tell)));
    expect(most).toBe(1);
    expect(backend.health()).toEqual({ status: 'ok', concurrency: { max_concurrent: 1, queued: 0, running: 0 } });
  });

  it('of graders is kept too', async () => {
    let inside = 0;
    let most = 0;
    const grade = async (): Promise<number> => {
      most = Math.max(most, ++inside);
      await sleep(5);
      inside--;
      return 1;
    };
    const backend = backendOf({ workflowConfig: {}, grader: { ...defineGrader(grade), concurrency: 1 } });
    await Promise.all(['a', 'b', 'c'].map((rolloutId) => execute(backend, { rolloutId })));
    expect(most).toBe(1);
  });
});

describe('status and cancelling', () => {
  it('follow a rollout from the queue to its end', async () => {
    const { promise: gate, resolve: open } = Promise.withResolvers<void>();
    const { promise: judged, resolve: judge } = Promise.withResolvers<number>();
    const workflow = defineWorkflow({
      concurrency: 1,
      run: async (ctx) => {
        await gate;
        await ask(ctx);
      },
    });
    const backend = backendOf({ workflow, grader: defineGrader(() => judged) });
    expect(backend.status('a')).toEqual({ status: 'unknown', reward: null, errMessage: null });
    const [a, b] = [execute(backend, { rolloutId: 'a' }), execute(backend, { rolloutId: 'b' })];
    await until(() => backend.status('a').status === 'running');
    expect(backend.status('b').status).toBe('queued');
    expect(backend.health()).toMatchObject({ concurrency: { queued: 1, running: 1 } });
    open();
    await until(() => backend.status('a').status === 'grading');
    judge(0.5);
    await Promise.all([a, b]);
    expect(backend.status('a')).toEqual({ status: 'success', reward: 0.5, errMessage: null });
  });

  it('choose by ids, by prefix or all, and say what became of each', async () => {
    const backend = running((ctx) => sleep(5000, undefined, { signal: ctx.signal }), {
      workflowConfig: { concurrency: { maxConcurrent: 1 } },
    });
    const all = ['a-1', 'a-2', 'b-1'].map((rolloutId) => execute(backend, { rolloutId }));
    await until(() => backend.status('a-1').status === 'running');
    expect(backend.cancel({ ids: ['b-1', 'nobody'] })).toEqual({ 'b-1': 'cancelled_queued', nobody: 'not_found' });
    expect(backend.cancel({ prefix: 'a-' })).toEqual({ 'a-1': 'cancelled_running', 'a-2': 'cancelled_queued' });
    for (const { completed, graded } of await Promise.all(all)) {
      expect(completed).toEqual([{ status: 'failure', errMessage: 'the rollout was cancelled', errCategory: 'agent_error' }]);
      expect(graded).toHaveLength(1);
    }
    expect(backend.status('a-1').status).toBe('cancelled');
    expect(backend.cancel({ all: true })).toEqual({});
  });

  it('end a grading without a second completion', async () => {
    const backend = backendOf({ grader: defineGrader(() => new Promise<number>(() => undefined)) });
    const executing = execute(backend);
    await until(() => backend.status('r1').status === 'grading');
    expect(backend.cancel({ ids: ['r1'] })).toEqual({ r1: 'cancelled_running' });
    const { completed, graded } = await executing;
    expect(completed.map(({ status }) => status)).toEqual(['success']);
    expect(graded.map(({ errMessage }) => errMessage)).toEqual(['the rollout was cancelled']);
    expect(backend.status('r1').status).toBe('cancelled');
  });

  it('tell a full backend', async () => {
    const backend = running((ctx) => sleep(5000, undefined, { signal: ctx.signal }), { capacity: 1 });
    expect(backend.hasCapacity()).toBe(true);
    const one = execute(backend);
    expect(backend.hasCapacity()).toBe(false);
    await expect(execute(backend)).rejects.toThrow('is under way');
    await backend[Symbol.asyncDispose]();
    expect((await one).completed[0]!.errMessage).toBe('the rollout was cancelled');
    expect(backend.hasCapacity()).toBe(true);
  });
});
