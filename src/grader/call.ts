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

/** Characters: a failure is stored with its rollout. */
const MOST_WHY = 2000;

export function shortWhy(why: string): string {
  return why.length <= MOST_WHY ? why : `${why.slice(0, MOST_WHY)}…`;
}

export async function callGrader(grader: Grader, input: GraderInput, ctx: GraderContext): Promise<Grade> {
  let result: unknown;
  try {
    result = await grader.grade(input, ctx);
  } catch (thrown) {
    return ownFailure(thrown, 'grader') ?? failed(`the grader threw ${describeThrown(thrown)}`);
  }
  try {
    const nothing = ungradedOf(result);
    if (nothing !== undefined) return nothing;
    return { kind: 'graded', reward: toReward(result, 'the grader', input.turns.length) };
  } catch (refusal) {
    return ownFailure(refusal) ?? failed(`reading the grader's result threw ${describeThrown(refusal)}`);
  }
}

/** Undefined where a grader's result says something else than that there is nothing to grade. */
export function ungradedOf(result: unknown): Ungraded | undefined {
  if (typeof result !== 'object' || result === null || !('kind' in result) || result.kind !== 'ungraded') return undefined;
  return { kind: 'ungraded', why: 'why' in result ? shortWhy(String(result.why)) : 'the grader gave no reward' };
}

/** Undefined for what is none of our errors. What was thrown may itself throw when it is looked at. */
function ownFailure(thrown: unknown, boundary?: 'grader'): Grade | undefined {
  try {
    if (!(thrown instanceof TrainyardError) || (boundary !== undefined && thrown.boundary !== boundary)) return undefined;
    return { kind: 'failed', code: thrown.code, message: shortWhy(String(thrown.message)) };
  } catch {
    return undefined;
  }
}

export function failed(message: string): Grade {
  return { kind: 'failed', code: 'GRADER_FAILED', message };
}
