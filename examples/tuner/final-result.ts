/** The form of a sums agent's answer, and the judge of it. */
import { BaseJudge, type JudgeTask, type WorkflowOutput } from 'trainyard/tuner';
import { z } from 'zod';

export const FinalResult = z.object({ result: z.number() });

/**
 * 1 for the right number in the right form. If it was only said in words, a half, and more for each leading digit that the form has right: a
 * small policy gets there one digit at a time. Sees the answer, which the workflow never does.
 */
export class MathJudge extends BaseJudge {
  async computeReward({ task }: JudgeTask, { metadata }: WorkflowOutput): Promise<[number, boolean]> {
    if (metadata['final_answer'] === task.answer) return [1, true];
    const numbers = String(metadata['said']).match(/\d+/g) ?? [];
    if (numbers.length !== 1 || Number(numbers[0]) !== task.answer) return [0, false];
    const wanted = String(task.answer);
    const given = String(metadata['final_answer']);
    const wrongAt = [...wanted].findIndex((digit, i) => digit !== given[i]);
    const right = wrongAt === -1 ? wanted.length : wrongAt;
    return [0.5 + (0.5 * right) / Math.max(wanted.length, given.length), false];
  }
}
