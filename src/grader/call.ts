/**
 * One call of a grader: whatever it does becomes a `Grade`. The only place that turns a grader's behaviour into one; it runs in
 * the child process of the pool and in this process for an inline grader.
 *
 * Never rejects. Does not bound time: the runner around it does.
 */
import type { Grader, GraderContext, GraderInput, GraderModel, Ungraded } from '../core/contracts.ts';
import { describeThrown } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { toReward } from '../core/reward.ts';
import type { Grade } from '../core/types.ts';

/** What a grading process is asked. */
export interface GraderCall {
  readonly input: GraderInput;
  readonly model: GraderModel | undefined;
}

const MOST_WHY = 2000;

export async function callGrader(grader: Grader, input: GraderInput, ctx: GraderContext): Promise<Grade> {
  let result: unknown;
  try {
    result = await grader.grade(input, ctx);
  } catch (thrown) {
    if (thrown instanceof TrainyardError && thrown.boundary === 'grader') {
      return { kind: 'failed', code: thrown.code, message: thrown.message };
    }
    return { kind: 'failed', code: 'GRADER_FAILED', message: `the grader threw ${describeThrown(thrown)}` };
  }
  try {
    const nothing = ungradedOf(result);
    if (nothing !== undefined) return nothing;
    return { kind: 'graded', reward: toReward(result, 'the grader', input.turns.length) };
  } catch (refusal) {
    if (refusal instanceof TrainyardError) return { kind: 'failed', code: refusal.code, message: refusal.message };
    return { kind: 'failed', code: 'GRADER_FAILED', message: `reading the grader's result threw ${describeThrown(refusal)}` };
  }
}

function ungradedOf(result: unknown): Ungraded | undefined {
  if (typeof result !== 'object' || result === null || !('kind' in result) || result.kind !== 'ungraded') return undefined;
  return { kind: 'ungraded', why: 'why' in result ? String(result.why).slice(0, MOST_WHY) : 'the grader gave no reward' };
}
