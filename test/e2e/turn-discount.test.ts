/** The turn discount of a run: what a rollout's turns earn where the workflow does not say, and where it does. */
import OpenAI from 'openai';
import { expect, it } from 'vitest';
import type { GraderResult, WorkflowContext, WorkflowResult } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { Grade } from '../../src/core/types.ts';
import { rolloutsThrough, scriptedGateway } from '../fixtures/scripted-gateway.ts';

/** Three turns of one conversation. */
async function talk(ctx: WorkflowContext): Promise<void> {
  const { baseURL, apiKey, fetch, name } = ctx.model();
  const client = new OpenAI({ baseURL, apiKey, fetch, maxRetries: 0 });
  const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'hello' }];
  for (let turn = 0; turn < 3; turn++) {
    const reply = await client.chat.completions.create({ model: name, messages });
    messages.push({ role: 'assistant', content: reply.choices[0]!.message.content }, { role: 'user', content: 'and?' });
  }
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

const byTurn = (...rewards: readonly number[]) => ({ reward: { byTurn: Object.fromEntries(rewards.entries()) } });

it('spreads what the grader gave over the turns before the end', async () => {
  expect(await gradeOf({ turnDiscount: 0.5, grade: () => 4 })).toMatchObject({
    reward: { value: 4, credit: { turnDiscount: 0.5, per: 'turn' } },
  });
  expect(await gradeOf({ turnDiscount: 0.5, grade: () => 4 })).toMatchObject(byTurn(1, 2, 4));
});

it('adds to what each step earned what was earned after it, by hand: 1 + ½·(0 + ½·2) = 1.5', async () => {
  const steps = { value: 3, byTurn: [1, 0, 2] };
  expect(await gradeOf({ turnDiscount: 0.5, grade: () => steps })).toMatchObject(byTurn(1.5, 1, 2));
  expect(await gradeOf({ turnDiscount: 1, grade: () => steps })).toMatchObject(byTurn(3, 2, 2));
});

it('does the same with a reward of the workflow itself', async () => {
  expect(await gradeOf({ turnDiscount: 0.5, returned: { reward: 4 } })).toMatchObject(byTurn(1, 2, 4));
});

it('leaves rewards as they were given where the run has none', async () => {
  const steps = { value: 3, byTurn: [1, 0, 2] };
  expect(await gradeOf({ grade: () => steps })).toEqual({ kind: 'graded', reward: { value: 3, byTurn: { 0: 1, 1: 0, 2: 2 } } });
});

it('gives way to what the workflow says of credit', async () => {
  const credit = { turnDiscount: 0, per: 'turn' } as const;
  const own = byTurn(0, 0, 4);
  expect(await gradeOf({ turnDiscount: 0.5, grade: () => 4, returned: { credit } })).toMatchObject(own);
  expect(await gradeOf({ turnDiscount: 0.5, returned: { reward: 4, credit } })).toMatchObject(own);
});

it('leaves rewards by role or thread to themselves: spread over turns, they would be compared across roles', async () => {
  const reward = { value: 0, byRole: { default: 1 } };
  expect(await gradeOf({ turnDiscount: 0.5, grade: () => reward })).toEqual({ kind: 'graded', reward });
});
