import { describe, expect, it } from 'vitest';
import { refusal } from '../../test/fixtures/refusal.ts';
import type { GraderContext, GraderInput, WorkflowContext } from './contracts.ts';
import {
  asGrader,
  asWorkflow,
  defineGrader,
  defineWorkflow,
  type GraderOptions,
  processOf,
  rejected,
  unscorable,
} from './define.ts';

const contextNamed = (rolloutId: string): WorkflowContext => ({ rolloutId }) as WorkflowContext;

describe('defineWorkflow', () => {
  it('refuses a role that is not what it says', () => {
    const roles = { default: { trainble: false } } as never;
    expect(() => defineWorkflow({ roles, run: async () => {} })).toThrow(refusal('WORKFLOW_INVALID'));
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
      { isolation: 'process', hidden: key },
      { isolation: house },
    ];
    for (const options of wrong) {
      const define = () => defineWorkflow({ ...options, run: async () => {} } as never);
      expect(define).toThrowError(
        expect.objectContaining({ code: 'WORKFLOW_INVALID', message: expect.not.stringContaining(key) }),
      );
    }
  });

  it('hides paths of an isolated workflow only, and says so where it could not', () => {
    const hidden = ['tests', 'tasks/*/solution'];
    expect(defineWorkflow(async () => {}, { isolation: 'process', hidden }).hidden).toEqual(hidden);
    const Agent = { isolation: 'process', hidden };
    expect(processOf(Agent, {})).toEqual(Agent);
    const wrong: readonly (readonly [() => unknown, RegExp])[] = [
      [() => defineWorkflow(async () => {}, { hidden }), /hidden: files are hidden only with isolation "process"/],
      [() => processOf({ hidden }), /only with isolation/],
      [() => processOf(Agent, { hidden }), /a field hidden, expected a static one/],
      [() => defineWorkflow(async () => {}, { isolation: 'process', hidden: [1] as never }), /a list of paths, found a list/],
      [() => defineWorkflow(async () => {}, { isolation: 'process', hidden: [''] }), /a list of paths/],
    ];
    for (const [define, message] of wrong) {
      expect(define).toThrow(refusal('WORKFLOW_INVALID', message));
    }
    expect(processOf({}, { hidden })).toEqual({ isolation: 'none' });
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

const INPUT = { task: { id: '7', prompt: [] } } as unknown as GraderInput;
const CTX: GraderContext = { signal: new AbortController().signal, model: undefined };
const grade = ({ task }: GraderInput): number => Number(task.id);
class Broken {
  grade = grade;
  constructor() {
    throw new Error('no dictionary');
  }
}

describe('a grader', () => {
  it('is made of a function, an object or a class, and is named after it', async () => {
    class Lengths {
      readonly factor = 2;
      grade({ task }: GraderInput) {
        return Number(task.id) * this.factor;
      }
    }
    const forms = [defineGrader(grade), defineGrader({ grade }), defineGrader(Lengths), defineGrader({ name: 'mine', grade })];
    expect(forms.map(({ name }) => name)).toEqual(['grade', 'grade', 'Lengths', 'mine']);
    expect(forms.map((form) => form.grade(INPUT, CTX))).toEqual([7, 7, 14, 7]);
    for (const form of forms) expect(asGrader(form)).toBe(form);
    expect(defineGrader(() => 1).name).toBe('grader');
    expect(await defineGrader(async () => 3).grade(INPUT, CTX)).toBe(3);
  });

  it('keeps its options, and has none that it was not given', () => {
    const options = { name: 'slow', concurrency: 2, deadlineMs: 500, retries: 0, asksPolicy: true };
    expect(defineGrader({ ...options, grade })).toMatchObject(options);
    expect(Object.keys(defineGrader({ grade })).toSorted()).toEqual(['grade', 'name']);
    class Slow {
      readonly concurrency = 3;
      readonly retries = 2;
      grade = grade;
    }
    expect(defineGrader(Slow)).toMatchObject({ name: 'Slow', concurrency: 3, retries: 2 });
  });

  it('keeps what a class or an object holds: `this` is its own', () => {
    const counting = {
      name: 'counting',
      grade(this: { name: string }) {
        return this.name.length;
      },
    };
    expect(defineGrader(counting as GraderOptions).grade(INPUT, CTX)).toBe(8);
    let made = 0;
    const grader = defineGrader(
      class {
        calls = 0;
        constructor() {
          made += 1;
        }
        grade() {
          this.calls += 1;
          return this.calls;
        }
      },
    );
    expect([grader.grade(INPUT, CTX), grader.grade(INPUT, CTX), made]).toEqual([1, 2, 1]);
  });

  it.each<[string, unknown, string, RegExp]>([
    ['nothing', undefined, 'GRADER_INVALID', /expected a function, or an object or class with grade, found Undefined/],
    ['an object without grade', { name: 'x' }, 'GRADER_INVALID', /with grade, found Object/],
    ['a grade that is no function', { grade: 1 }, 'GRADER_INVALID', /with grade/],
    ['a class without grade', class Empty {}, 'GRADER_INVALID', /with grade/],
    ['an unknown option', { grade, timeout: 5, parallel: 1 }, 'GRADER_INVALID', /no timeout, parallel; it may have name/],
    ['a fraction of a retry', { grade, retries: 0.5 }, 'GRADER_INVALID', /retries: expected a whole number from 0 up, found 0.5/],
    ['no concurrency', { grade, concurrency: 0 }, 'GRADER_INVALID', /concurrency: .* whole number from 1 up, found 0/],
    ['a deadline in words', { grade, deadlineMs: '5s' }, 'GRADER_INVALID', /deadlineMs: .* found 5s/],
    ['an endless deadline', { grade, deadlineMs: Number.POSITIVE_INFINITY }, 'GRADER_INVALID', /found Infinity/],
    ['a class that cannot be made', Broken, 'GRADER_INIT_FAILED', /new Broken\(\) threw/],
  ])('is not made of %s', (_, given, code, message) => {
    expect(() => defineGrader(given as GraderOptions)).toThrow(refusal(code, message));
  });
});

it('what a grader says instead of a reward is that there is nothing to score, as a value, or that it cannot score, as an error', () => {
  expect(rejected('blank')).toEqual({ kind: 'ungraded', why: 'blank' });
  expect(() => unscorable('no reference')).toThrow(
    expect.objectContaining({ code: 'GRADER_UNSCORABLE', message: 'no reference', boundary: 'grader' }),
  );
});
