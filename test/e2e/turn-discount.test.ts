/** The turn discount of a run: what a rollout's turns earn where the workflow does not say, and where it does. */
import { expect, it } from 'vitest';
import type { GraderResult, WorkflowContext, WorkflowResult } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { Grade, Message } from '../../src/core/types.ts';
import { rolloutsThrough, scriptedGateway } from '../fixtures/scripted-gateway.ts';

/** Three turns of one conversation. */
async function talk(ctx: WorkflowContext): Promise<void> {
  const messages: Message[] = [...ctx.prompt];
  for (let turn = 0; turn < 3; turn++)
    messages.push((await ctx.model().generate({ messages })).message, { role: 'user', content: 'and?' });
}

interface Given {
  readonly turnDiscount?: number;
  readonly grade?: () => GraderResult;
  readonly returned?: WorkflowResult;
}

async function gradeOf({ turnDiscount, grade, returned }: Given): Promise<Grade> {
  const workflow = defineWorkflow(async (ctx) => {
    await talk(ctx);
    return returned;
  });
  const grader = grade && defineGrader(grade);
  const task = { id: 't', prompt: [{ role: 'user', content: 'hello' }] } as const;
  return (await rolloutsThrough(scriptedGateway().gateway)({ workflow, grader, turnDiscount }, task)).grade;
}

const steps = { value: 3, byTurn: [1, 0, 2] };
const own = { turnDiscount: 0, per: 'turn' } as const;

it.each<[string, Given, readonly number[]]>([
  ['spreads what the grader gave over the turns before the end', { turnDiscount: 0.5, grade: () => 4 }, [1, 2, 4]],
  ['adds what was earned after a step: 1 + ½·(0 + ½·2) = 1.5', { turnDiscount: 0.5, grade: () => steps }, [1.5, 1, 2]],
  ['adds all of it at discount 1', { turnDiscount: 1, grade: () => steps }, [3, 2, 2]],
  ['does the same with a reward of the workflow itself', { turnDiscount: 0.5, returned: { reward: 4 } }, [1, 2, 4]],
  ['leaves rewards as they were given where the run has none', { grade: () => steps }, [1, 0, 2]],
  ['gives way to the workflow’s credit', { turnDiscount: 0.5, grade: () => 4, returned: { credit: own } }, [0, 0, 4]],
  ['gives way to it beside its own reward', { turnDiscount: 0.5, returned: { reward: 4, credit: own } }, [0, 0, 4]],
])('%s', async (_, given, byTurn) => {
  expect(await gradeOf(given)).toMatchObject({ reward: { byTurn: { ...byTurn } } });
});

it('is kept with the reward; rewards by role or thread are left alone: over turns, they would be compared across roles', async () => {
  const credit = { turnDiscount: 0.5, per: 'turn' };
  expect(await gradeOf({ turnDiscount: 0.5, grade: () => 4 })).toMatchObject({ reward: { value: 4, credit } });
  const reward = { value: 0, byRole: { default: 1 } };
  expect(await gradeOf({ turnDiscount: 0.5, grade: () => reward })).toEqual({ kind: 'graded', reward });
});
