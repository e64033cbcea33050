/** What the types of a workflow promise, checked by the compiler: config, roles and results are inferred; the answer is not there. */
import { describe, expect, expectTypeOf, it } from 'vitest';
import type { GraderInput, ModelHandle, Workflow, WorkflowContext, WorkflowResult } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { Json, TaskView } from '../../src/core/types.ts';

describe('the type of a workflow', () => {
  it('knows its config, whole and unchanged', () => {
    defineWorkflow({
      config: { maxTurns: 4, tools: [(query: string) => query.length] },
      async run(ctx) {
        expectTypeOf(ctx.config).toEqualTypeOf<{ maxTurns: number; tools: ((query: string) => number)[] }>();
        // @ts-expect-error no such field
        void ctx.config.maxTurn;
      },
    });
  });

  it('has no config where none is given', () => {
    defineWorkflow(async (ctx) => {
      expectTypeOf(ctx.config).toEqualTypeOf<undefined>();
    });
  });

  it('gives a class its config', () => {
    class Agent {
      readonly #tries: number;
      constructor({ tries }: { readonly tries: number }) {
        this.#tries = tries;
      }
      async run(ctx: WorkflowContext<{ readonly tries: number }>): Promise<string> {
        return `${ctx.prompt.length} ${this.#tries}`;
      }
    }
    expectTypeOf(defineWorkflow(Agent, { config: { tries: 2 } })).toEqualTypeOf<Workflow>();
    // @ts-expect-error the class wants a number
    defineWorkflow(Agent, { config: { tries: 'two' } });
  });

  it('knows the names of its roles', () => {
    defineWorkflow({
      roles: ['clerk', 'customer'],
      trainable: ['clerk'],
      async run(ctx) {
        expectTypeOf(ctx.model('clerk')).toEqualTypeOf<ModelHandle>();
        expectTypeOf(ctx.model).parameter(0).toEqualTypeOf<'clerk' | 'customer' | undefined>();
        const misspelt = () =>
          // @ts-expect-error no such role
          ctx.model('clrek');
        void misspelt;
      },
    });
  });

  it('trains only roles it has, and says so at run time too', () => {
    expect(() =>
      defineWorkflow({
        roles: ['clerk', 'customer'],
        // @ts-expect-error no such role
        trainable: ['clrek'],
        run: async () => {},
      }),
    ).toThrowError(expect.objectContaining({ code: 'WORKFLOW_INVALID', message: expect.stringContaining('"clrek"') }));
  });

  it('takes roles with default models, by the same names', () => {
    defineWorkflow({
      roles: { werewolf: {}, villager: { default: () => 'I am innocent.' } },
      trainable: ['werewolf'],
      async run(ctx) {
        expectTypeOf(ctx.model).parameter(0).toEqualTypeOf<'werewolf' | 'villager' | undefined>();
      },
    });
  });

  it('takes any role where none is named', () => {
    defineWorkflow(async (ctx) => {
      expectTypeOf(ctx.model).parameter(0).toEqualTypeOf<string | undefined>();
    });
  });

  it('hides the answer', () => {
    defineWorkflow(async (ctx) => {
      // @ts-expect-error a workflow never sees it
      void ctx.task.answer;
      // @ts-expect-error nor anywhere else
      void ctx.answer;
      expectTypeOf(ctx.task).toEqualTypeOf<TaskView>();
      expectTypeOf<keyof TaskView>().toEqualTypeOf<'id' | 'prompt' | 'metadata'>();
      expectTypeOf<Extract<keyof WorkflowContext, 'answer' | 'label' | 'groundTruth'>>().toEqualTypeOf<never>();
    });
  });

  it('returns nothing, a text or a result, and nothing else', () => {
    defineWorkflow(async () => {});
    defineWorkflow(async () => 'text');
    defineWorkflow(async (): Promise<WorkflowResult> => ({ reward: 1, success: true, metrics: { tries: 2 } }));
    // @ts-expect-error a number could be a reward or an answer
    defineWorkflow(async () => 0.5);
    // @ts-expect-error not a field of a result
    defineWorkflow(async () => ({ score: 1 }));
  });
});

describe('the type of a grader', () => {
  it('sees the answer and what the workflow said of itself', () => {
    defineGrader((input) => {
      expectTypeOf(input).toEqualTypeOf<GraderInput>();
      expectTypeOf(input.task.answer).toEqualTypeOf<Json | undefined>();
      expectTypeOf(input.result.success).toEqualTypeOf<boolean | undefined>();
      return { value: 1, byRole: { werewolf: 1 } };
    });
    // @ts-expect-error a text is no reward
    defineGrader(() => 'good');
  });
});
