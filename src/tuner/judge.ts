/**
 * The judge of AgentScope's tuner: asked once for each episode whose workflow gave no reward. Lowered to core's `Grader`, so it sees the
 * answer, runs in a process that can be killed, and a judge that fails gives no reward, never 0.
 */
import { type EntryModule, type Grader, type GraderInput, type GraderResult, graderSymbol } from '../core/contracts.ts';
import { isConcrete } from '../core/define.ts';
import { describeThrown, describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { type JudgeTask, judgeTaskOf, WorkflowOutput } from './workflow.ts';

/** The reward, and whether the episode was a success. */
export type Verdict = readonly [reward: GraderResult, isSuccess: boolean];
/** `rollout`: all that was said and done. */
export type ComputeReward = (task: JudgeTask, output: WorkflowOutput, rollout: GraderInput) => Verdict | Promise<Verdict>;

export abstract class BaseJudge {
  abstract computeReward(...given: Parameters<ComputeReward>): ReturnType<ComputeReward>;

  /** One instance judges all episodes of a process. */
  static [graderSymbol](this: JudgeClass, module: EntryModule): Grader | undefined {
    // biome-ignore lint/complexity/noThisInStatic: the class that an entry exports, not this one
    return lowered(this, module);
  }
}

function lowered(Class: JudgeClass, { problem }: EntryModule): Grader | undefined {
  if (!isConcrete(Class, 'computeReward')) return undefined;
  try {
    const judge = new Class();
    return graderOf(Class.name, (...given) => judge.computeReward(...given));
  } catch (cause) {
    const found = `cannot make a ${Class.name}: its constructor threw ${describeThrown(cause)}`;
    problem(new TrainyardError('GRADER_INIT_FAILED', found, { hint: 'the class is made without arguments', cause }));
    return undefined;
  }
}

type JudgeClass = { new (): BaseJudge; readonly prototype: BaseJudge; readonly name: string };

/** A judge that is one function. */
export function defineJudge(computeReward: ComputeReward): Grader {
  if (typeof computeReward !== 'function') {
    throw new TrainyardError('GRADER_INVALID', `defineJudge was given ${describeValue(computeReward)}, expected a function`, {
      hint: 'write defineJudge((task, output) => [reward, isSuccess])',
    });
  }
  return graderOf(computeReward.name || 'judge', computeReward);
}

function graderOf(name: string, computeReward: ComputeReward): Grader {
  return {
    [graderSymbol]: true,
    name,
    grade: async (input) => {
      const { reward, success, metadata, metrics } = input.result;
      const output = new WorkflowOutput({ reward, isSuccess: success, metadata, logMetrics: metrics });
      return rewardOf(await computeReward(judgeTaskOf(input.task), output, input), name);
    },
  };
}

function rewardOf(verdict: unknown, name: string): GraderResult {
  const [reward, success] = Array.isArray(verdict) && verdict.length === 2 ? (verdict as [GraderResult, unknown]) : [];
  if (reward === undefined || typeof success !== 'boolean') {
    throw new TrainyardError('GRADER_BAD_REWARD', `${name} returned ${describeValue(verdict)}, expected [reward, isSuccess]`);
  }
  return typeof reward === 'object' && reward !== null ? { success, ...reward } : { value: reward, success };
}
