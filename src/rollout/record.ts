/**
 * Turns the end of a rollout into its record: result, outcome, grade, trajectory. Whoever runs rollouts ends in `settle`: here, on workers, flows, and
 * clients that only call the gateway. Does not run workflows or write to a store.
 */
import type { Clock, GraderInput, GraderRunner, Session, Workflow, WorkflowResult } from '../core/contracts.ts';
import { describeValue } from '../core/describe.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { defined, exactJson, isObject, isPlain } from '../core/json.ts';
import { checkCredit, credited, settledReward, toReward } from '../core/reward.ts';
import { turnNamed } from '../core/turns.ts';
import type {
  Grade,
  Json,
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
import { Rejection } from './rollout-context.ts';

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
  // Without its result, the rollout would be graded for something else.
  const limit = code === 'WORKFLOW_BAD_RESULT' ? undefined : limitBehind(code, calls);
  if (limit !== undefined) return { kind: 'truncated', limit };
  return { kind: 'failed', code, message: messageOf(thrown).slice(0, 2000) };
}

/** What a rollout left, wherever it ran. Its turns are those that are graded: trained or not, the policy said them. */
export interface Ended {
  readonly outcome: Outcome;
  readonly turns: readonly Turn[];
  readonly unanswered: readonly UnansweredCall[];
  readonly result: SettledResult;
  readonly logs?: readonly LogLine[];
  readonly artifactsDir: string | null;
  /** Milliseconds since the epoch. */
  readonly startedAt: number;
  /** Default: when it has been graded. */
  readonly endedAt?: number;
}

/** The record of a rollout that ended. `grade` gets what keeps the grader's prints. */
export async function settle(
  { rolloutId, groupId, taskId, purpose }: RolloutIdentity,
  ended: Ended,
  grade: (print: (text: string) => void) => Promise<Grade>,
  clock: Clock = Date,
): Promise<Trajectory> {
  const { outcome, turns, unanswered, result, startedAt } = ended;
  const { output, metadata, metrics, trainedTurns } = result;
  let printed = '';
  const graded = await grade((text) => {
    printed += text;
  });
  const logs = [...(ended.logs ?? []), ...graderLines(printed, clock)];
  const isOwnReward = graded.kind === 'graded' && graded.reward.source === 'workflow';
  return {
    rolloutId,
    groupId,
    taskId,
    purpose,
    outcome,
    grade: graded,
    turns: onlyTrained(turns, trainedTurns),
    ...defined({ output, metadata, metrics, returned: isOwnReward ? undefined : returnedBy(result, turns) }),
    ...(logs.length > 0 ? { logs } : {}),
    ...(unanswered.length > 0 ? { unanswered } : {}),
    startedAt,
    endedAt: ended.endedAt ?? clock.now(),
  };
}

function graderLines(printed: string, clock: Clock): readonly LogLine[] {
  const lines = printed === '' ? [] : printed.trimEnd().split('\n');
  return lines.map((text) => ({ at: clock.now(), text, from: 'grader' as const }));
}

/** A side call is trained only if it is named, or if the workflow returned what it said: then it was the agent's own work. */
export function onlyTrained(turns: readonly Turn[], trained: readonly number[] | undefined, output?: Json): readonly Turn[] {
  return turns.map((turn) => {
    const said = turn.response.content?.trim();
    const isReturned = typeof output === 'string' && !!said && output.includes(said);
    const isWanted = trained?.includes(turn.index) ?? (turn.trainable || isReturned);
    const trainable = isWanted && (turn.trainable || turn.fork?.cause === 'side_call');
    return trainable === turn.trainable ? turn : { ...turn, trainable };
  });
}

/** What else decided the grade: what the grader got besides the output, the credit, and the turns excluded from training afterwards. */
function returnedBy({ reward, success, credit, trainedTurns }: SettledResult, turns: readonly Turn[]): Trajectory['returned'] {
  const left = turns.filter(({ trainable, index }) => trainable && trainedTurns?.includes(index) === false);
  const untrained = left.length === 0 ? undefined : left.map(({ index }) => index);
  const returned = defined({ reward, success, credit, untrained });
  return Object.keys(returned).length === 0 ? undefined : returned;
}

export type GradableRollout = Pick<Ended, 'turns' | 'outcome' | 'result' | 'artifactsDir'>;

export interface GradingParts {
  readonly workflow: Workflow;
  readonly grader?: GraderRunner | undefined;
  /** Discount on later turns' rewards when crediting an earlier turn, unless the workflow sets one. */
  readonly turnDiscount?: number | undefined;
  readonly graderInput: (task: Task, rollout: GradableRollout) => GraderInput;
}

/** Never throws for a grader's failure. Throws REWARD_MISSING if neither grader nor workflow gives a reward. */
export async function gradeOf(
  parts: GradingParts,
  { identity, task }: { readonly identity: RolloutIdentity; readonly task: Task },
  rollout: GradableRollout,
  print?: (text: string) => void,
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
    // Cut by a limit, the workflow had no chance to return a reward.
    if (outcome.kind === 'truncated') return { kind: 'ungraded', why: 'truncated' };
    throw rewardMissing(identity);
  }
  const grade = await grader.grade(parts.graderInput(task, rollout), undefined, print);
  if (grade.kind !== 'graded') return grade;
  try {
    const reward = settledReward(grade.reward, identity, turns);
    const own = result.credit === undefined ? undefined : credited(reward, turns, result.credit);
    return { kind: 'graded', reward: own ?? creditedByRun(parts, reward, rollout) };
  } catch (thrown) {
    return { kind: 'failed', code: 'GRADER_BAD_REWARD', message: messageOf(thrown) };
  }
}

/** What a rollout left, from its record. */
export function endedAs(trajectory: Trajectory, artifactsDir: string | null): Ended {
  const { outcome, output, metadata, metrics, returned, unanswered = [], logs = [], startedAt, endedAt } = trajectory;
  const trainedTurns = trajectory.turns.filter(({ trainable }) => trainable).map(({ index }) => index);
  const result = defined({ output, metadata, metrics, ...returned, trainedTurns }) as SettledResult;
  return { outcome, turns: gradedTurns(trajectory), unanswered, result, logs, artifactsDir, startedAt, endedAt };
}

/** The turns as they were graded, before the workflow chose which to train: a side call only if its text was returned. */
export function gradedTurns({
  turns,
  output,
  returned: { untrained = [] } = {},
}: Pick<Trajectory, 'turns' | 'output' | 'returned'>): readonly Turn[] {
  const unchosen = turns.map((turn) => ({
    ...turn,
    trainable: untrained.includes(turn.index) || (turn.trainable && turn.fork?.cause !== 'side_call'),
  }));
  return onlyTrained(unchosen, undefined, output);
}

/** The workflow's own credit or returns stand. Rewards only by thread or role stay so: by turn, they would be compared across roles. */
function creditedByRun({ turnDiscount, workflow }: GradingParts, reward: Reward, { turns, result }: GradableRollout): Reward {
  if (turnDiscount === undefined || result.credit !== undefined) return reward;
  const { byTurn, byThread, byRole, source } = reward;
  const isSaid =
    byTurn === undefined ? (byThread ?? byRole) !== undefined : workflow.rewardsAreReturns === true && source === 'workflow';
  return isSaid ? reward : credited(reward, turns, { turnDiscount, per: 'turn' });
}

/** Ends the run: every other rollout would end like this one. */
function rewardMissing({ rolloutId }: RolloutIdentity): TrainyardError {
  return new TrainyardError(
    'REWARD_MISSING',
    `rollout ${rolloutId} returned no reward, and the entry exports no grader`,
    'export a grader: export const grader = defineGrader(({ task, messages }) => …), or return { reward } from run',
  );
}

// The outcome by model calls. A failed call counts even if the client hid the failure; otherwise a broken engine would look like a bad
// policy. In each conversation the last call decides: a failure followed by an answer was recovered from.

type FailedCall = UnansweredCall & Required<Pick<UnansweredCall, 'failure'>>;

const isFailed = (call: UnansweredCall): call is FailedCall => call.failure !== undefined;
const callerOf = ({ role, thread }: Pick<Turn, 'role' | 'thread'>): string => JSON.stringify([role, thread]);
/** By a later call, not a concurrent one. An undelivered answer does not count. */
const isAnswered = (calls: Calls, call: FailedCall, turn: Turn): boolean => calls.isAfter(turn, call) && !turn.undelivered;

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
 * The limit that made a workflow throw: the one with the thrown error's code, else the one its latest call hit, because frameworks and
 * other processes throw their own errors. Undefined if an answer came after that call.
 */
function limitBehind(code: string, calls: Calls): LimitName | undefined {
  const { turns, unanswered } = calls;
  const failed = unanswered.filter(isFailed);
  const thrown = failed.findLast(({ failure }) => failure.limit && failure.code === code);
  const latest = failed.at(-1);
  if (thrown !== undefined || latest === undefined) return thrown?.failure.limit;
  return turns.some((turn) => isAnswered(calls, latest, turn)) ? undefined : latest.failure.limit;
}

// What a workflow returned: nothing, a string, or a `WorkflowResult`. Anything else is refused with a hint, because a reward under another
// name must not be lost silently.

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
    'what the grader should see goes under output or metadata; a reward goes under reward',
  );
}
