/**
 * What an episode gives back, and what core's runner makes of it. `new WorkflowOutput({ … })` and a plain object of the same fields are alike.
 *
 * Anything else is refused with what to write instead: a reward under a name that nobody reads would be lost without a word.
 */
import type { GraderResult, WorkflowResult } from '../core/contracts.ts';
import { checkNames, describeValue, unknownOptions } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Json } from '../core/types.ts';

/** A number; one number for every model call of the episode; or a number with who earned what. */
export type OutputReward = GraderResult | readonly number[];

export interface WorkflowOutputFields {
  /** Absent or null: the judge decides. */
  readonly reward?: OutputReward | null | undefined;
  readonly isSuccess?: boolean | null | undefined;
  readonly metadata?: Readonly<Record<string, Json>> | undefined;
  readonly logMetrics?: Readonly<Record<string, number>> | undefined;
}

export class WorkflowOutput implements WorkflowOutputFields {
  readonly reward: OutputReward | null;
  readonly isSuccess: boolean | null;
  readonly metadata: Readonly<Record<string, Json>>;
  readonly logMetrics: Readonly<Record<string, number>>;

  constructor(fields: WorkflowOutputFields = {}) {
    checkNames(fields, FIELDS, 'WorkflowOutput', 'WORKFLOW_BAD_RESULT');
    const { reward, isSuccess, metadata, logMetrics } = fields;
    this.reward = reward ?? null;
    this.isSuccess = isSuccess ?? null;
    this.metadata = metadata ?? {};
    this.logMetrics = logMetrics ?? {};
  }
}

const FIELDS = ['reward', 'isSuccess', 'metadata', 'logMetrics'];

/** Throws WORKFLOW_BAD_RESULT, for everything that is wrong with it. */
export function resultOf(returned: unknown, who: string): WorkflowResult {
  if (typeof returned !== 'object' || returned === null || Array.isArray(returned)) {
    throw bad([`${who} returned ${describeValue(returned)}`]);
  }
  const mistakes = [...unknownOptions(returned, FIELDS, `what ${who} returned`)];
  const { reward, isSuccess, metadata, logMetrics } = returned as WorkflowOutputFields;
  mistakes.push(...rewardMistakes(reward, who));
  if (isSuccess !== undefined && isSuccess !== null && typeof isSuccess !== 'boolean') {
    mistakes.push(`${who} returned isSuccess ${describeValue(isSuccess)}, expected true or false`);
  }
  if (mistakes.length > 0) throw bad(mistakes);
  return {
    ...(reward === undefined || reward === null ? {} : { reward: rewardOf(reward) }),
    ...(typeof isSuccess === 'boolean' ? { success: isSuccess } : {}),
    ...(metadata === undefined || metadata === null ? {} : { metadata }),
    ...(logMetrics === undefined || logMetrics === null ? {} : { metrics: logMetrics }),
  };
}

function rewardMistakes(reward: unknown, who: string): string[] {
  if (reward === undefined || reward === null) return [];
  const numbers = Array.isArray(reward) ? (reward as unknown[]) : [typeof reward === 'object' ? 0 : reward];
  const strange = numbers.filter((one) => typeof one !== 'number' || !Number.isFinite(one));
  return strange.map((one) => `${who} returned reward ${describeValue(one)}, expected a finite number`);
}

/** The value of a list is its sum: what the episode earned step by step. */
function rewardOf(reward: OutputReward): GraderResult {
  if (!isList(reward)) return reward;
  return { value: reward.reduce((sum, one) => sum + one, 0), byTurn: reward };
}

function isList(reward: OutputReward): reward is readonly number[] {
  return Array.isArray(reward);
}

function bad(mistakes: readonly string[]): TrainyardError {
  return new TrainyardError('WORKFLOW_BAD_RESULT', mistakes.join('; also: '), {
    hint: 'return new WorkflowOutput({ reward, isSuccess, metadata, logMetrics }); leave reward out where the judge decides',
  });
}
