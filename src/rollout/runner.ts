/**
 * One rollout from start to stored trajectory: open a session, run the workflow, seal, grade, append.
 *
 * A rollout always ends as a trajectory; what the workflow or grader did is in its outcome and grade. Only what is not the
 * rollout's own doing is thrown: the store failing, the run being stopped. The workflow gets the task without its answer.
 */
import { abortWith, type Downtime, type Semaphore, yieldToEventLoop } from '../core/async.ts';
import type {
  Clock,
  GraderInput,
  GraderRunner,
  Session,
  SessionHost,
  SessionObserver,
  Store,
  Workflow,
  WorkflowContext,
} from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { credited, settledReward } from '../core/reward.ts';
import type {
  Grade,
  LimitName,
  Limits,
  Outcome,
  Reward,
  RolloutIdentity,
  SamplingSettings,
  Task,
  Trajectory,
  Turn,
  UnansweredCall,
} from '../core/types.ts';
import { onlyTrained, resultOf, type SettledResult } from './result.ts';
import { clearFolder, contextOf, type OwnContext, Rejection } from './rollout-context.ts';
import { runHere } from './start-workflow.ts';

/** Must not throw. */
export interface RolloutObserver extends SessionObserver {
  /** What the workflow threw. */
  threw?(thrown: unknown): void;
}

export interface RolloutParts {
  readonly workflow: Workflow;
  /** One rollout of it, wherever that runs; absent: in this process. */
  readonly runWorkflow?: (own: OwnContext, task: Task) => Promise<unknown>;
  /** Only these roles are trained, whatever the workflow says. */
  readonly trainable?: readonly string[] | undefined;
  readonly sessions: SessionHost;
  /** Absent: the workflow gives rewards itself. */
  readonly grader?: GraderRunner | undefined;
  /** How much of what later turns earn counts for an earlier one, where the workflow does not say. */
  readonly turnDiscount?: number | undefined;
  readonly graderInput: (task: Task, rollout: GradableRollout) => GraderInput;
  readonly store: Store;
  readonly limits: Limits;
  readonly seed: number;
  readonly clock: Clock;
  /** Of the policy: time for which it was away is not the rollout's, and does not count towards its deadline. */
  readonly absence?: Downtime;
  /** Rollouts of this workflow at once. */
  readonly slots?: Semaphore | undefined;
  /** Whoever wants to see what happens. */
  readonly observer?: RolloutObserver | undefined;
  /** Folder under which rollouts may keep files. */
  readonly artifacts?: string | undefined;
  /** Aborts when the run stops. */
  readonly signal: AbortSignal;
}

export interface RolloutSpec {
  readonly identity: RolloutIdentity;
  readonly task: Task;
  readonly sampling: SamplingSettings;
}

/** What there is to grade. Of its turns none is left out for not being trained: the policy said them. */
export interface GradableRollout {
  readonly turns: readonly Turn[];
  readonly outcome: Outcome;
  readonly result: SettledResult;
  readonly artifactsDir: string | null;
}

type Ending<Result> =
  | { readonly kind: 'returned'; readonly result: Result }
  | { readonly kind: 'threw'; readonly thrown: unknown }
  | { readonly kind: 'deadline' };

/** Durable when it resolves. */
export async function runRollout(parts: RolloutParts, spec: RolloutSpec): Promise<Trajectory> {
  using _slot = await parts.slots?.acquire(parts.signal);
  await yieldToEventLoop();
  const startedAt = parts.clock.now();
  const controller = new AbortController();
  const { signal } = controller;
  const unlink = abortWith(controller, parts.signal);
  const { identity } = spec;
  const { workflow, seed, artifacts } = parts;
  const session = parts.sessions.open({
    identity,
    roles: workflow.roles,
    othersTrainable: workflow.othersTrainable,
    trainable: parts.trainable,
    sampling: spec.sampling,
    limits: parts.limits,
    seed,
    signal,
    ...(parts.observer === undefined ? {} : { observer: parts.observer }),
  });
  const deadline = { passed: false };
  const cancelDeadline = atDeadline(parts, () => {
    deadline.passed = true;
    controller.abort();
  });
  const end = (): readonly Turn[] => {
    cancelDeadline();
    unlink();
    return session.seal();
  };
  using _end = { [Symbol.dispose]: () => void end() };
  const own = contextOf({
    identity,
    task: spec.task,
    workflow,
    session,
    signal,
    seed,
    artifacts,
    now: parts.clock.now,
  });
  const { logs, artifactsDir } = own;
  clearFolder(own.folder);
  const run = parts.runWorkflow ?? ((one) => runHere(workflow, one));
  const ended = await endingOf(() => run(own, spec.task), own.ctx, deadline);
  // Sealed first: which answers nobody got is known then, and they are no part of what a turn led to.
  const sealed = end();
  const ending = settled(rejectedOr(ended, own), identity, sealed);
  if (ending.kind === 'threw' && !(ending.thrown instanceof Rejection)) parts.observer?.threw?.(ending.thrown);
  const outcome = outcomeOf(ending, session);
  const result = ending.kind === 'returned' ? ending.result : {};
  const grade = await gradeOf(parts, spec, { turns: sealed, outcome, result, artifactsDir: artifactsDir() });
  const trajectory: Trajectory = {
    ...identity,
    outcome,
    ...keptOf(result, sealed),
    ...(grade.kind === 'graded' && grade.reward.source === 'workflow' ? {} : returnedBy(result, sealed)),
    ...(logs.length > 0 ? { logs } : {}),
    ...(session.unanswered.length > 0 ? { unanswered: session.unanswered } : {}),
    grade,
    startedAt,
    endedAt: parts.clock.now(),
  };
  // A rollout that was given up with the run is no result: stored, it would be taken for one when the run is taken up again.
  parts.signal.throwIfAborted();
  await parts.store.append(trajectory);
  return trajectory;
}

/** A rollout that was rejected stays so, whatever became of what that threw. */
function rejectedOr(ending: Ending<unknown>, own: OwnContext): Ending<unknown> {
  const rejection = own.rejected();
  return rejection === undefined || ending.kind === 'deadline' ? ending : { kind: 'threw', thrown: rejection };
}

function settled(ending: Ending<unknown>, identity: RolloutIdentity, turns: readonly Turn[]): Ending<SettledResult> {
  if (ending.kind !== 'returned') return ending;
  try {
    return { kind: 'returned', result: resultOf(ending.result, identity, turns) };
  } catch (thrown) {
    return { kind: 'threw', thrown };
  }
}

/** What the trajectory keeps of the result. */
function keptOf(
  { output, metadata, metrics, trainedTurns }: SettledResult,
  turns: readonly Turn[],
): Pick<Trajectory, 'turns' | 'output' | 'metadata' | 'metrics'> {
  return {
    turns: onlyTrained(turns, trainedTurns),
    ...(output === undefined ? {} : { output }),
    ...(metadata === undefined ? {} : { metadata }),
    ...(metrics === undefined ? {} : { metrics }),
  };
}

/** What else decided its grade: what the grader was told beside the output, the credit, and which turns were no longer trained after it. */
function returnedBy(
  { reward, success, credit, trainedTurns }: SettledResult,
  turns: readonly Turn[],
): Pick<Trajectory, 'returned'> {
  const left = turns.filter(({ trainable, index }) => trainable && trainedTurns?.includes(index) === false);
  const untrained = left.length === 0 ? undefined : left.map(({ index }) => index);
  const returned = defined({ reward, success, credit, untrained });
  return Object.keys(returned).length === 0 ? {} : { returned };
}

/** Gives what cancels it. */
function atDeadline({ limits, absence }: RolloutParts, end: () => void): () => void {
  const awayMs = (): number => absence?.milliseconds ?? 0;
  let allowedFor = awayMs();
  let timer: NodeJS.Timeout;
  const wait = (milliseconds: number): void => {
    timer = setTimeout(() => {
      const away = awayMs() - allowedFor;
      if (away <= 0) return end();
      allowedFor += away;
      wait(away);
    }, milliseconds);
  };
  wait(limits.deadlineMs);
  return () => clearTimeout(timer);
}

/** Bounded by the deadline even if the workflow ignores its signal; what it does after that finds a sealed session. */
async function endingOf(
  workflow: () => Promise<unknown>,
  ctx: WorkflowContext,
  deadline: { readonly passed: boolean },
): Promise<Ending<unknown>> {
  // Listens on the rollout's own signal: listeners on the run's would pile up over thousands of rollouts.
  const cut = new Promise<Ending<unknown>>((resolve) => {
    const end = (): void => resolve(deadline.passed ? { kind: 'deadline' } : { kind: 'threw', thrown: ctx.signal.reason });
    if (ctx.signal.aborted) end();
    else ctx.signal.addEventListener('abort', end, { once: true });
  });
  const run = async (): Promise<Ending<unknown>> => {
    try {
      return { kind: 'returned', result: await workflow() };
    } catch (thrown) {
      return { kind: 'threw', thrown };
    }
  };
  return await Promise.race([cut, run()]);
}

function outcomeOf(ending: Ending<SettledResult>, session: Session): Outcome {
  if (ending.kind === 'deadline') return { kind: 'truncated', limit: 'deadline' };
  if (ending.kind === 'threw' && ending.thrown instanceof Rejection) return { kind: 'rejected', reason: ending.thrown.message };
  if (ending.kind === 'returned') return outcomeByCalls(session);
  const code = ending.thrown instanceof TrainyardError ? ending.thrown.code : 'WORKFLOW_FAILED';
  // Graded without what it returned, such a rollout would be graded for something else.
  const limit = code === 'WORKFLOW_BAD_RESULT' ? undefined : limitBehind(code, session);
  if (limit !== undefined) return { kind: 'truncated', limit };
  return { kind: 'failed', code, message: messageOf(ending.thrown).slice(0, 2000) };
}

type GradingParts = Pick<RolloutParts, 'grader' | 'workflow' | 'turnDiscount' | 'graderInput'>;

/** Never throws for what the grader did. Throws REWARD_MISSING where nobody gives a reward. */
export async function gradeOf(
  parts: GradingParts,
  { identity, task }: Pick<RolloutSpec, 'identity' | 'task'>,
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

// ── how a rollout ended, told by its model calls ──────────────────────────────────────────────────────────────────────────

// A call that failed counts whether or not its client passed that on, or a broken engine would look like a bad policy. In each conversation
// the last word holds: a failure with an answer after it was recovered from.

type Calls = Pick<Session, 'turns' | 'unanswered' | 'isAfter'>;
type FailedCall = UnansweredCall & Required<Pick<UnansweredCall, 'failure'>>;

const isFailed = (call: UnansweredCall): call is FailedCall => call.failure !== undefined;
const seatOf = ({ role, thread }: Pick<Turn, 'role' | 'thread'>): string => JSON.stringify([role, thread]);
/** By a second try, not by a call beside it. An answer that nobody got is none. */
const isAnswered = (calls: Calls, call: FailedCall, turn: Turn): boolean => calls.isAfter(turn, call) && !turn.undelivered;

/** Of a rollout whose workflow returned, or that has none. */
export function outcomeByCalls(calls: Calls): Outcome {
  const { turns, unanswered } = calls;
  const latest = new Map(unanswered.filter(isFailed).map((call) => [seatOf(call), call]));
  const last = [...latest.values()].filter(
    (call) => !turns.some((turn) => isAnswered(calls, call, turn) && seatOf(turn) === seatOf(call)),
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
export function limitBehind(code: string, calls: Calls): LimitName | undefined {
  const { turns, unanswered } = calls;
  const failed = unanswered.filter(isFailed);
  const [thrown, latest] = [failed.findLast(({ failure }) => failure.limit && failure.code === code), failed.at(-1)];
  if (thrown !== undefined || latest === undefined) return thrown?.failure.limit;
  return turns.some((turn) => isAnswered(calls, latest, turn)) ? undefined : latest.failure.limit;
}
