import { describe, expect, it } from 'vitest';
import { TrainyardError } from '../core/errors.ts';
import type { Task } from '../core/types.ts';
import { agentWorkflow } from '../shapes/areal/agent-workflow.ts';
import { rolloutBatch } from './groups.ts';

const tasks: readonly Task[] = Array.from({ length: 6 }, (_, i) => ({
  id: `t${i}`,
  prompt: [{ role: 'user', content: 'Where is it?' }],
  metadata: { i },
}));

type Answer = (place: number) => number | null;
type Accept = (group: { readonly rewards: readonly number[] }) => boolean;

/** Rollouts of an agent that asks the policy once, then does what it is told for this task. */
const batch = (answer: Answer, group = 1, shouldAccept: Accept = () => true) => {
  const workflow = agentWorkflow<{ readonly i: number }>(
    async ({ messages, metadata }, { baseURL, apiKey, httpClient }) => {
      const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
      const body = JSON.stringify({ model: 'policy', messages, max_tokens: 4 });
      const response = await httpClient(`${baseURL}/chat/completions`, { method: 'POST', headers, body });
      if (!response.ok) throw new Error(await response.text());
      return answer(metadata.i);
    },
    { shouldAccept },
  );
  return rolloutBatch({ entry: { workflow }, tasks, threads: 1, group });
};

describe('a batch of rollouts', () => {
  it('has a place for every task: null where it was rejected or failed', async () => {
    const answer: Answer = (i) => {
      if (i === 4) throw new TrainyardError('USAGE', 'broken tool');
      return i % 2 === 1 ? null : i;
    };
    const slots = await batch(answer, 2);
    const earned = slots.map((slot) =>
      slot?.map(({ taskId, grade }) => `${taskId} ${grade.kind === 'graded' && grade.reward.value}`),
    );
    expect(earned).toEqual([['t0 0', 't0 0'], undefined, ['t2 2', 't2 2'], undefined, undefined, undefined]);
    expect(slots[1]).toBeNull();
  });

  it('has null where the workflow does not accept the group', async () => {
    const large: Accept = ({ rewards }) => rewards.every((reward) => reward > 2);
    const slots = await batch((i) => i, 1, large);
    expect(slots.map((slot) => slot !== null)).toEqual([false, false, false, true, true, true]);
  });

  it('whose agent always throws ends with what it threw', async () => {
    const broken: Answer = () => {
      throw new Error('no such tool');
    };
    const message = expect.stringMatching(/no such tool/);
    await expect(batch(broken, 4)).rejects.toMatchObject({ code: 'FAILURE_BUDGET', message });
  });

  it('of no rollouts per task is refused', async () => {
    await expect(batch(() => 1, 0)).rejects.toThrow(/group is 0/);
  });
});
