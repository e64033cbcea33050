/** Rollouts of a local backend in time: deadlines, how many at once, status and cancelling. */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { until } from '../../../test/fixtures/gateway/streams.ts';
import { ask, backendOf, execute, policy, request, running } from '../../../test/fixtures/rollout-server/local-rollouts.ts';
import type { WorkflowContext } from '../../core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../core/define.ts';
import type { LocalBackendOptions } from './local-backend.ts';

const patient = (ctx: WorkflowContext): Promise<unknown> => sleep(5000, undefined, { signal: ctx.signal });
const never = <T>(): Promise<T> => new Promise(() => undefined);
const one = { concurrency: { maxConcurrent: 1 } };

describe('a deadline', () => {
  const blocking = async (): Promise<void> => {
    const end = performance.now() + 80;
    while (performance.now() < end);
  };
  it.each<[string, (ctx: WorkflowContext) => Promise<unknown>]>([
    ['minds its signal', patient],
    ['does not mind its signal', never],
    ['swallows its abort', (ctx) => patient(ctx).catch(() => undefined)],
    ['blocks the event loop', blocking],
  ])('ends a workflow that %s', async (_, run) => {
    const { completed } = await execute(running(run), { agentTimeoutSec: 0.05 });
    expect(completed).toEqual([{ status: 'failure', errCategory: 'timeout', errMessage: 'workflow exceeded its 0.1s deadline' }]);
  });

  it('counts time in the queue and says how much it was, also where it ends later', async () => {
    const { promise: gate, resolve: open } = Promise.withResolvers<void>();
    const backend = running((ctx) => (ctx.rolloutId === 'first' ? gate : never()), { workflowConfig: one });
    const first = execute(backend, { rolloutId: 'first' });
    const queued = execute(backend, { rolloutId: 'queued', agentTimeoutSec: 0.2 });
    const later = execute(backend, { rolloutId: 'later', agentTimeoutSec: 0.5 });
    const errMessage = (seconds: string) =>
      expect.stringMatching(`^workflow exceeded its ${seconds}s deadline \\(0\\.\\ds of it spent queued\\)$`);
    expect((await queued).completed[0]).toMatchObject({ errCategory: 'timeout', errMessage: errMessage('0.2') });
    open();
    expect((await later).completed[0]).toMatchObject({ errMessage: errMessage('0.5') });
    expect((await first).completed[0]!.status).toBe('success');
    expect(backend.health()).toMatchObject({ concurrency: { queued: 0, running: 0 } });
  });

  it.each([0, -1])('of %s is over already', async (agentTimeoutSec) => {
    const { completed } = await execute(
      running(() => expect.fail('it ran')),
      { agentTimeoutSec },
    );
    expect(completed[0]).toMatchObject({ errCategory: 'timeout' });
  });

  it('of the grader is its own', async () => {
    const slow = running(async (ctx) => {
      await sleep(600);
      await ask(ctx);
    });
    expect((await execute(slow, { graderTimeoutSec: 0.5 })).graded[0]!.status).toBe('success');
    const { completed, graded } = await execute(backendOf({ grader: defineGrader(never<number>) }), { graderTimeoutSec: 0.05 });
    expect(completed[0]!.status).toBe('success');
    const failure = { status: 'failure', errCategory: 'timeout', errMessage: 'grader exceeded its 0.1s deadline' };
    expect(graded[0]).toMatchObject(failure);
  });

  it('is there even where none was asked for, and refused where it is no time', async () => {
    const { completed } = await execute(running(patient, { longestSec: 0.05 }), { agentTimeoutSec: null });
    expect(completed[0]).toMatchObject({ errCategory: 'timeout' });
    await expect(execute(running(patient), { agentTimeoutSec: Number.NaN })).rejects.toThrow('agent_timeout_sec is NaN');
  });
});

describe('concurrency', () => {
  it.each<[Partial<LocalBackendOptions>, number | null]>([
    [{}, 4],
    [{ workflowConfig: { name: 'x' } }, null],
    [{ workflowConfig: { concurrency: { maxConcurrent: null } } }, null],
    [{ workflowConfig: { concurrency: { maxConcurrent: 2 } } }, 2],
    [{ workflow: defineWorkflow(async () => {}, { concurrency: 3 }) }, 3],
  ])('of %j is %j', (options, most) => {
    expect(backendOf(options).health()).toMatchObject({ concurrency: { max_concurrent: most } });
  });

  /** Counts who is inside at once. */
  function room() {
    const seen = { inside: 0, most: 0 };
    const enter = async (): Promise<void> => {
      seen.most = Math.max(seen.most, ++seen.inside);
      await sleep(5);
      seen.inside--;
    };
    return { seen, enter };
  }

  it('covers workflow, callback and grader, and is given back after a failure', async () => {
    const { seen, enter } = room();
    const run = async (ctx: WorkflowContext): Promise<void> => {
      await enter();
      await ask(ctx);
      if (ctx.rolloutId === 'r2') throw new Error('one of them');
    };
    const backend = running(run, { workflowConfig: one, grader: defineGrader(() => enter().then(() => 1)) });
    const tell = { completed: enter, graded: enter, fetch: policy, warn: () => undefined };
    await Promise.all(['r1', 'r2', 'r3'].map((rolloutId) => backend.execute(request({ rolloutId }), tell)));
    expect(seen.most).toBe(1);
    expect(backend.health()).toEqual({ status: 'ok', concurrency: { max_concurrent: 1, queued: 0, running: 0 } });
  });

  it('of graders is kept too', async () => {
    const { seen, enter } = room();
    const grader = { ...defineGrader(() => enter().then(() => 1)), concurrency: 1 };
    const backend = backendOf({ workflowConfig: {}, grader });
    await Promise.all(['a', 'b', 'c'].map((rolloutId) => execute(backend, { rolloutId })));
    expect(seen.most).toBe(1);
  });
});

describe('status and cancelling', () => {
  it('follow a rollout from the queue to its end', async () => {
    const { promise: gate, resolve: open } = Promise.withResolvers<void>();
    const { promise: judged, resolve: judge } = Promise.withResolvers<number>();
    const run = (ctx: WorkflowContext) => gate.then(() => ask(ctx)).then(() => undefined);
    const backend = running(run, { workflowConfig: one, grader: defineGrader(() => judged) });
    expect(backend.status('a')).toEqual({ status: 'unknown', reward: null, errMessage: null });
    const both = Promise.all([execute(backend, { rolloutId: 'a' }), execute(backend, { rolloutId: 'b' })]);
    await until(() => backend.status('a').status === 'running');
    expect(backend.status('b').status).toBe('queued');
    expect(backend.health()).toMatchObject({ concurrency: { queued: 1, running: 1 } });
    open();
    await until(() => backend.status('a').status === 'grading');
    judge(0.5);
    await both;
    expect(backend.status('a')).toEqual({ status: 'success', reward: 0.5, errMessage: null });
  });

  it('choose by ids, by prefix or all, and say what became of each', async () => {
    const backend = running(patient, { workflowConfig: one });
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
    const backend = backendOf({ grader: defineGrader(never<number>) });
    const executing = execute(backend);
    await until(() => backend.status('r1').status === 'grading');
    expect(backend.cancel({ ids: ['r1'] })).toEqual({ r1: 'cancelled_running' });
    const { completed, graded } = await executing;
    expect(completed.map(({ status }) => status)).toEqual(['success']);
    expect(graded.map(({ errMessage }) => errMessage)).toEqual(['the rollout was cancelled']);
    expect(backend.status('r1').status).toBe('cancelled');
  });

  it('tell a full backend', async () => {
    const backend = running(patient, { capacity: 1 });
    expect(backend.hasCapacity()).toBe(true);
    const first = execute(backend);
    expect(backend.hasCapacity()).toBe(false);
    await expect(execute(backend)).rejects.toThrow('is under way');
    await backend[Symbol.asyncDispose]();
    expect((await first).completed[0]!.errMessage).toBe('the rollout was cancelled');
    expect(backend.hasCapacity()).toBe(true);
  });
});
