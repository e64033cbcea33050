/** The form of a sums agent's answer, and the judge of it. */
import { BaseJudge, type JudgeTask, type WorkflowOutput } from 'trainyard/tuner';
import { z } from 'zod';

export const FinalResult = z.object({ result: z.number() });

/** 1 for the right number in the right form, a half where it was only said in words. Sees the answer, which the workflow never does. */
export class MathJudge extends BaseJudge {
  async computeReward({ task }: JudgeTask, { metadata }: WorkflowOutput): Promise<[number, boolean]> {
    if (metadata['final_answer'] === task.answer) return [1, true];
    const numbers = String(metadata['said']).match(/\d+/g) ?? [];
    return [numbers.length === 1 && Number(numbers[0]) === task.answer ? 0.5 : 0, false];
  }
}
