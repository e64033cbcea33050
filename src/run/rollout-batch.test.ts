import { describe, expect, it } from 'vitest';
import { agentWorkflow } from '../areal/agent-workflow.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Task } from '../core/types.ts';
import { rolloutBatch } from './groups.ts';

const tasks: readonly Task[] = Array.from({ length: 6 }, (_, i) => ({
  id: `t${i}`,
  prompt: [{ role: 'user', content: 'Where is it?' }],
  metadata: { i },
}));

type Answer = (place: number) => number | null;

/** Asks the policy once, then does what it is told for this task. */
const agent = (answer: Answer, shouldAccept?: (group: { readonly rewards: readonly number[] }) => boolean) =>
  agentWorkflow<{ readonly i: number }>(
    async ({ messages, metadata }, { baseURL, apiKey, httpClient }) => {
      const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
      const body = JSON.stringify({ model: 'policy', messages, max_tokens: 4 });
      const response = await httpClient(`${baseURL}/chat/completions`, { method: 'POST', headers, body });
      if (!response.ok) throw new Error(await response.text());
      return answer(metadata.i);
    },
    shouldAccept === undefined ? {} : { shouldAccept },
  );

const batch = (answer: Answer, group?: number, shouldAccept?: (group: { readonly rewards: readonly number[] }) => boolean) =>
  rolloutBatch({
    entry: { workflow: agent(answer, shouldAccept) },
    tasks,
    threads: 1,
    ...(group === undefined ? {} : { group }),
  });

describe('a batch of rollouts', () => {
  it('has a place for every task: null where it was rejected or failed', async () => {
    const answer: Answer = (i) => {
      if (i === 4) throw new TrainyardError('USAGE', 'broken tool');
      return i % 2 === 1 ? null : i;
    };
    const slots = await batch(answer, 2);
    expect(
      slots.map((slot) => slot?.map(({ taskId, grade }) => [taskId, grade.kind === 'graded' && grade.reward.value]) ?? null),
    ).toEqual([
      [
        ['t0', 0],
        ['t0', 0],
      ],
      null,
      [
        ['t2', 2],
        ['t2', 2],
      ],
      null,
      null,
      null,
    ]);
  });

  it('has null where the workflow does not accept the group', async () => {
    const slots = await batch(
      (i) => i,
      1,
      ({ rewards }) => rewards.every((reward) => reward > 2),
    );
    expect(slots.map((slot) => slot !== null)).toEqual([false, false, false, true, true, true]);
  });

  it('whose agent always throws ends with what it threw', async () => {
    const broken: Answer = () => {
      throw new Error('no such tool');
    };
    await expect(batch(broken, 4)).rejects.toMatchObject({
      code: 'FAILURE_BUDGET',
      message: expect.stringMatching(/no such tool/),
    });
  });

  it('of no rollouts per task is refused', async () => {
    await expect(batch(() => 1, 0)).rejects.toThrow(/group is 0/);
  });
});
