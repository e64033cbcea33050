/**
 * From how a rollout ended to the record of it: outcome, grade, trajectory. The same for rollouts of a run, of a flow and of anybody who only
 * talks to the gateway.
 *
 * Nothing here runs a workflow or writes to a store.
 */
import type { GraderInput, GraderRunner, Session, Workflow } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { credited, settledReward } from '../core/reward.ts';
import type {
  Grade,
  LimitName,
  LogLine,
  Outcome,
  Reward,
  RolloutIdentity,
  Task,
  Trajectory,
  Turn,
  UnansweredCall,
} from '../core/types.ts';
import type { SettledResult } from './result.ts';
import { Rejection } from './rollout-context.ts';

/** How the code of a workflow ended. */
export type Ending<Result> =
  | { readonly kind: 'returned'; readonly result: Result }
  | { readonly kind: 'threw'; readonly thrown: unknown }
  | { readonly kind: 'deadline' };

type Calls = Pick<Session, 'turns' | 'unanswered' | 'isAfter'>;

export function outcomeOf(ending: Ending<unknown>, calls: Calls): Outcome {
  if (ending.kind === 'deadline') return { kind: 'truncated', limit: 'deadline' };
  if (ending.kind === 'returned') return outcomeByCalls(calls);
  const { thrown } = ending;
  if (thrown instanceof Rejection) return { kind: 'rejected', reason: thrown.message };
  const code = thrown instanceof TrainyardError ? thrown.code : 'WORKFLOW_FAILED';
  // Graded without what it returned, such a rollout would be graded for something else.
  const limit = code === 'WORKFLOW_BAD_RESULT' ? undefined : limitBehind(code, calls);
  if (limit !== undefined) return { kind: 'truncated', limit };
  return { kind: 'failed', code, message: messageOf(thrown).slice(0, 2000) };
}

export interface RecordParts {
  readonly outcome: Outcome;
  readonly grade: Grade;
  readonly result?: SettledResult;
  readonly logs?: readonly LogLine[];
  /** Milliseconds since the epoch. */
  readonly startedAt: number;
  readonly endedAt: number;
}

/** The trajectory of a session that was sealed. */
export function recordOf(
  identity: RolloutIdentity,
  session: Pick<Session, 'turns' | 'unanswered'>,
  parts: RecordParts,
): Trajectory {
  const { outcome, grade, result = {}, logs = [], startedAt, endedAt } = parts;
  const { turns, unanswered } = session;
  const { rolloutId, groupId, taskId, purpose } = identity;
  const { output, metadata, metrics, trainedTurns } = result;
  const isOwnReward = grade.kind === 'graded' && grade.reward.source === 'workflow';
  return {
    ...{ rolloutId, groupId, taskId, purpose, outcome, grade },
    turns: onlyTrained(turns, trainedTurns),
    ...defined({ output, metadata, metrics, returned: isOwnReward ? undefined : returnedBy(result, turns) }),
    ...(logs.length > 0 ? { logs } : {}),
    ...(unanswered.length > 0 ? { unanswered } : {}),
    ...{ startedAt, endedAt },
  };
}

/** With the turns that the workflow did not name as trained marked so. */
export function onlyTrained(turns: readonly Turn[], trained: readonly number[] | undefined): readonly Turn[] {
  return turns.map((turn) => (turn.trainable && trained?.includes(turn.index) === false ? { ...turn, trainable: false } : turn));
}

/** What else decided its grade: what the grader was told beside the output, the credit, and which turns were no longer trained after it. */
function returnedBy({ reward, success, credit, trainedTurns }: SettledResult, turns: readonly Turn[]): Trajectory['returned'] {
  const left = turns.filter(({ trainable, index }) => trainable && trainedTurns?.includes(index) === false);
  const untrained = left.length === 0 ? undefined : left.map(({ index }) => index);
  const returned = defined({ reward, success, credit, untrained });
  return Object.keys(returned).length === 0 ? undefined : returned;
}

// ── the grade ────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** What there is to grade. All turns are in it, trained or not: the policy said them. */
export interface GradableRollout {
  readonly turns: readonly Turn[];
  readonly outcome: Outcome;
  readonly result: SettledResult;
  readonly artifactsDir: string | null;
}

export interface GradingParts {
  readonly workflow: Workflow;
  /** Absent: the workflow gives rewards itself. */
  readonly grader?: GraderRunner | undefined;
  /** How much of what later turns earn counts for an earlier one, where the workflow does not say. */
  readonly turnDiscount?: number | undefined;
  readonly graderInput: (task: Task, rollout: GradableRollout) => GraderInput;
}

/** Never throws for what the grader did. Throws REWARD_MISSING where nobody gives a reward. */
export async function gradeOf(
  parts: GradingParts,
  { identity, task }: { readonly identity: RolloutIdentity; readonly task: Task },
  rollout: GradableRollout,
): Promise<Grade> {
  const { outcome, turns, result } = rollout;
  const { grader, workflow } = parts;
  const gradable =
    outcome.kind === 'completed' || (outcome.kind === 'truncated' && outcome.limit !== 'deadline' && turns.length > 0);
  if (!gradable) return { kind: 'ungraded', why: outcome.kind };
  if (result.reward !== undefined && (grader === undefined || workflow.grading === 'when-missing')) {
    return { kind: 'graded', reward: creditedByRun(parts, result.reward, rollout) };
  }
  if (grader === undefined) {
    // What a limit cut short could not say anything any more.
    if (outcome.kind === 'truncated') return { kind: 'ungraded', why: 'truncated' };
    throw rewardMissing(identity);
  }
  const grade = await grader.grade(parts.graderInput(task, rollout));
  if (grade.kind !== 'graded') return grade;
  try {
    const reward = settledReward(grade.reward, identity, turns);
    const own = result.credit === undefined ? undefined : credited(reward, turns, result.credit);
    return { kind: 'graded', reward: own ?? creditedByRun(parts, reward, rollout) };
  } catch (thrown) {
    return { kind: 'failed', code: 'GRADER_BAD_REWARD', message: messageOf(thrown) };
  }
}

/**
 * What the workflow says of credit holds, as do returns that it computed itself; and rewards by thread or role alone stay so, or they would
 * be compared across roles.
 */
function creditedByRun({ turnDiscount, workflow }: GradingParts, reward: Reward, { turns, result }: GradableRollout): Reward {
  if (turnDiscount === undefined || result.credit !== undefined) return reward;
  const { byTurn, byThread, byRole, source } = reward;
  const isSaid =
    byTurn === undefined ? (byThread ?? byRole) !== undefined : workflow.rewardsAreReturns === true && source === 'workflow';
  return isSaid ? reward : credited(reward, turns, { turnDiscount, per: 'turn' });
}

/** Every other rollout would end like this one, so the run does. */
function rewardMissing({ rolloutId }: RolloutIdentity): TrainyardError {
  return new TrainyardError('REWARD_MISSING', `rollout ${rolloutId} returned no reward, and the entry exports no grader`, {
    hint: 'export a grader: export const grader = defineGrader(({ task, messages }) => …), or return { reward } from run',
  });
}

// ── the outcome, told by model calls ────────────────────────────────────────────────────────────────────────────────────

// A call that failed counts whether or not its client passed that on, or a broken engine would look like a bad policy. In each conversation
// the last word holds: a failure with an answer after it was recovered from.

type FailedCall = UnansweredCall & Required<Pick<UnansweredCall, 'failure'>>;

const isFailed = (call: UnansweredCall): call is FailedCall => call.failure !== undefined;
const callerOf = ({ role, thread }: Pick<Turn, 'role' | 'thread'>): string => JSON.stringify([role, thread]);
/** By a second try, not by a call beside it. An answer that nobody got is none. */
const isAnswered = (calls: Calls, call: FailedCall, turn: Turn): boolean => calls.isAfter(turn, call) && !turn.undelivered;

/** Of a rollout whose workflow returned, or that has none. */
export function outcomeByCalls(calls: Calls): Outcome {
  const { turns, unanswered } = calls;
  const latest = new Map(unanswered.filter(isFailed).map((call) => [callerOf(call), call]));
  const last = [...latest.values()].filter(
    (call) => !turns.some((turn) => isAnswered(calls, call, turn) && callerOf(turn) === callerOf(call)),
  );
  const word = last.find(({ failure }) => failure.limit === undefined) ?? last[0];
  const { code = '', message = '', limit } = word?.failure ?? {};
  if (limit !== undefined) return { kind: 'truncated', limit };
  if (word) return { kind: 'failed', code, message: `the last model call of ${word.thread} failed: ${message}` };
  return turns.length === 0 ? { kind: 'rejected', reason: 'no_turns' } : { kind: 'completed' };
}

/**
 * The limit that made a workflow throw: the one whose refusal it threw, by its code; else the one that its latest call ran into, since
 * frameworks and other processes throw something of their own. What is thrown after an answer is no limit's doing.
 */
function limitBehind(code: string, calls: Calls): LimitName | undefined {
  const { turns, unanswered } = calls;
  const failed = unanswered.filter(isFailed);
  const [thrown, latest] = [failed.findLast(({ failure }) => failure.limit && failure.code === code), failed.at(-1)];
  if (thrown !== undefined || latest === undefined) return thrown?.failure.limit;
  return turns.some((turn) => isAnswered(calls, latest, turn)) ? undefined : latest.failure.limit;
}
