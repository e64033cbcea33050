import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { currentRollout, runInRollout } from './context.ts';
import type { WorkflowContext } from './contracts.ts';
import { defineWorkflow } from './define.ts';
import { defineGrader } from './define-grader.ts';
import { boundary, messageOf, TrainyardError } from './errors.ts';
import { asGrader, asWorkflow } from './lower.ts';

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

describe('messageOf', () => {
  it.each([
    ['a null prototype', Object.create(null)],
    [
      'a throwing toString',
      {
        toString: () => {
          throw new Error('no');
        },
      },
    ],
    ['a symbol', Symbol('s')],
    ['an error without text', Object.assign(new Error('x'), { message: undefined })],
  ])('gives text for %s', (_, value) => {
    expect(typeof messageOf(value)).toBe('string');
  });
});

describe('defineWorkflow', () => {
  it('refuses a role that is not what it says', () => {
    const roles = { default: { trainble: false } } as never;
    expect(() => defineWorkflow({ roles, run: async () => {} })).toThrowError(
      expect.objectContaining({ code: 'WORKFLOW_INVALID' }),
    );
  });

  it('repeats no values of what may hold a key', () => {
    const key = 'sk-0123';
    const house = { name: 'house', apiKey: key };
    const wrong = [
      { roles: { judge: house } },
      { roles: { judge: key } },
      { roles: { judge: { default: house } } },
      { roles: { judge: { default: key } } },
      { roles: [house] },
      { roles: ['judge'], trainable: { judge: house } },
      { roles: ['judge'], trainable: [house] },
      { isolation: 'process', env: { HOUSE_KEY: key } },
      { isolation: 'process', env: `HOUSE_KEY=${key}` },
      { isolation: house },
    ];
    for (const options of wrong) {
      const define = () => defineWorkflow({ ...options, run: async () => {} } as never);
      expect(define).toThrowError(
        expect.objectContaining({ code: 'WORKFLOW_INVALID', message: expect.not.stringContaining(key) }),
      );
    }
  });

  it('takes an async function or an object with an async run, bound to it', async () => {
    expect(defineWorkflow(async function agent() {}).name).toBe('agent');
    const definition = {
      name: 'obj',
      answer: 42,
      async run() {
        return { output: this.answer };
      },
    };
    const workflow = defineWorkflow(definition);
    expect(asWorkflow(workflow)).toBe(workflow);
    expect(await workflow.run(contextNamed('r'))).toEqual({ output: 42 });
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
    const grader = defineGrader(() => 1);
    expect(asGrader(grader)).toBe(grader);
    expect(asWorkflow(grader)).toBeUndefined();
    expect(asWorkflow({ run: async () => {} })).toBeUndefined();
  });
});
