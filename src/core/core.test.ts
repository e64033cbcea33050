import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { currentRollout, runInRollout } from './context.ts';
import type { WorkflowContext } from './contracts.ts';
import { defineGrader, defineWorkflow, isGrader, isWorkflow } from './define.ts';
import { boundary, TrainyardError } from './errors.ts';

const contextNamed = (rolloutId: string): WorkflowContext => ({ rolloutId }) as WorkflowContext;

describe('the ambient rollout', () => {
  it('is absent outside a rollout', () => {
    expect(currentRollout()).toBeUndefined();
  });

  it('follows awaits and timers, and keeps concurrent rollouts apart', async () => {
    const seen = await Promise.all(
      ['a', 'b', 'c'].map((name) =>
        runInRollout(contextNamed(name), async () => {
          await sleep(5);
          return currentRollout()?.rolloutId;
        }),
      ),
    );
    expect(seen).toEqual(['a', 'b', 'c']);
  });

  it('nests: the inner rollout sees itself, the outer one is back afterwards', async () => {
    await runInRollout(contextNamed('outer'), async () => {
      await runInRollout(contextNamed('inner'), async () => {
        await sleep(1);
        expect(currentRollout()?.rolloutId).toBe('inner');
      });
      expect(currentRollout()?.rolloutId).toBe('outer');
    });
  });
});

describe('boundary', () => {
  it('wraps a foreign error once, with what was being done and its cause', async () => {
    const cause = new Error('disk on fire');
    const error = await boundary('STORE_FAILED', 'writing', () => {
      throw cause;
    }).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(TrainyardError);
    expect(error).toMatchObject({ code: 'STORE_FAILED', boundary: 'store', message: 'writing: disk on fire', cause });
  });

  it('lets typed errors pass through', async () => {
    const typed = new TrainyardError('USAGE', 'no');
    await expect(boundary('STORE_FAILED', 'writing', () => Promise.reject(typed))).rejects.toBe(typed);
  });
});

describe('defineWorkflow', () => {
  it('takes an async function or an object with an async run, bound to it', async () => {
    expect(defineWorkflow(async function agent() {}).name).toBe('agent');
    const definition = {
      name: 'obj',
      answer: 42,
      async run() {
        return this.answer;
      },
    };
    const workflow = defineWorkflow(definition);
    expect(isWorkflow(workflow)).toBe(true);
    expect(await workflow.run(contextNamed('r'))).toBe(42);
  });

  it.each([
    ['a plain function', () => Promise.resolve()],
    ['nothing', undefined],
    ['an object without run', {}],
    ['a generator', async function* () {}],
  ])('refuses %s with what to do', (_, value) => {
    expect(() => defineWorkflow(value as never)).toThrowError(
      expect.objectContaining({ code: 'WORKFLOW_NOT_ASYNC', hint: expect.stringContaining('async') }),
    );
  });

  it('is told apart from a grader by its symbol alone', () => {
    expect(isGrader(defineGrader(() => 1))).toBe(true);
    expect(isWorkflow(defineGrader(() => 1))).toBe(false);
    expect(isWorkflow({ run: async () => {} })).toBe(false);
  });
});
