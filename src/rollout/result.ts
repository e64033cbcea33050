/**
 * Validates what a workflow returned: nothing, a string, or a `WorkflowResult`. Anything else is refused with a hint, because a reward
 * under another name must not be lost silently.
 */
import type { WorkflowResult } from '../core/contracts.ts';
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined, exactJson, isObject, isPlain } from '../core/json.ts';
import { checkCredit, credited, settledReward, toReward } from '../core/reward.ts';
import { turnNamed } from '../core/turns.ts';
import type { Json, Reward, RolloutIdentity, Turn } from '../core/types.ts';

const MOST_METRICS = 256;
/** Turns may be named more than once. */
const MOST_NAMED = 100_000;
const KEYS: readonly string[] = ['output', 'reward', 'success', 'metadata', 'metrics', 'trainedTurns', 'threads', 'credit'];

export interface SettledResult extends Pick<WorkflowResult, 'output' | 'success' | 'metadata' | 'metrics' | 'credit'> {
  readonly reward?: Reward;
  readonly trainedTurns?: readonly number[];
}

/** Throws WORKFLOW_BAD_RESULT. */
export function resultOf(returned: unknown, identity: RolloutIdentity, turns: readonly Turn[]): SettledResult {
  if (returned === undefined || returned === null) return {};
  if (typeof returned === 'string') return { output: exactJson(returned, 'its text') };
  if (typeof returned !== 'object' || Array.isArray(returned)) throw bad(`run returned ${describeValue(returned)}`);
  // A Date, a Map or an instance without fields would pass as an empty result.
  if (Object.keys(returned).length === 0 && !isPlain(returned))
    throw bad(`run returned an instance of ${returned.constructor?.name}`);
  const given = returned as WorkflowResult;
  const unknown = Object.keys(given).filter((key) => !KEYS.includes(key));
  if (unknown.length > 0) throw bad(`run returned an object with ${unknown.join(', ')}`);
  const { success, trainedTurns, credit } = given;
  if (success !== undefined && typeof success !== 'boolean') throw bad(`run returned success ${describeValue(success)}`);
  const output = given.output === undefined ? undefined : exactJson(given.output, 'output');
  if (credit !== undefined) inOurWords(() => checkCredit(credit));
  if (trainedTurns !== undefined && !Array.isArray(trainedTurns)) {
    throw bad(`run returned trainedTurns ${describeValue(trainedTurns)}, which is no list of turns`);
  }
  // A sparse array can have any length, and each place would be visited.
  if (trainedTurns !== undefined && trainedTurns.length > MOST_NAMED) {
    throw bad(`run returned ${trainedTurns.length} trainedTurns, and the rollout has ${turns.length} turns`);
  }
  const reward = rewardOf(given, identity, turns);
  return defined({
    output,
    reward,
    success,
    metadata: given.metadata === undefined ? undefined : metadataOf(given.metadata),
    metrics: given.metrics === undefined ? undefined : metricsOf(given.metrics),
    credit: credit && { turnDiscount: credit.turnDiscount, per: credit.per },
    trainedTurns: trainedTurns?.map((name) => indexOf(name, identity, turns)),
  });
}

function rewardOf(
  { reward, success, credit }: WorkflowResult,
  identity: RolloutIdentity,
  turns: readonly Turn[],
): Reward | undefined {
  if (reward === undefined || reward === null) return undefined;
  return inOurWords(() => {
    const settled = settledReward(toReward(reward, 'run', turns.length), identity, turns);
    const shared = credit === undefined ? settled : credited(settled, turns, credit);
    return { ...(success === undefined ? {} : { success }), ...shared, source: 'workflow' };
  });
}

function inOurWords<T>(checked: () => T): T {
  try {
    return checked();
  } catch (thrown) {
    if (thrown instanceof TrainyardError) throw bad(thrown.message);
    throw thrown;
  }
}

function metadataOf(given: unknown): Readonly<Record<string, Json>> {
  const copy = exactJson(given, 'metadata');
  if (isObject(copy)) return copy;
  throw bad(`run returned metadata ${describeValue(given)}`);
}

/** Drops values that are not finite: a broken metric must not cost a rollout. */
function metricsOf(given: unknown): Readonly<Record<string, number>> {
  if (typeof given !== 'object' || given === null) throw bad(`run returned metrics ${describeValue(given)}`);
  const finite = Object.entries(given).filter(([name, value]) => Number.isFinite(value) && name !== '__proto__');
  return Object.fromEntries(finite.slice(0, MOST_METRICS));
}

function indexOf(name: number | string, identity: RolloutIdentity, turns: readonly Turn[]): number {
  const turn = turnNamed(identity, turns, name);
  if (turn === undefined) throw bad(`run returned trainedTurns with ${describeValue(name)}, and the rollout has no such turn`);
  return turn.index;
}

function bad(found: string): TrainyardError {
  return new TrainyardError(
    'WORKFLOW_BAD_RESULT',
    `${found}; expected nothing, a text, or an object with some of ${KEYS.slice(0, 5).join(', ')}`,
    { hint: 'what the grader should see goes under output or metadata; a reward goes under reward' },
  );
}
