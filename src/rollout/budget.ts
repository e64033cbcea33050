/**
 * Stops a run, with the cause, if most of its rollouts or too many gradings fail.
 *
 * Rollouts are judged over the last 64 once 16 are in (8 if all failed), and at the end of a phase, so that a short run that failed
 * throughout is noticed too. They are judged in the order they began: failures come fast, so the first to end would all be failures.
 * Hitting the deadline is a failure; hitting a turn, token or context limit, or a rejection by the workflow, is not: if all are rejected,
 * the run ends for lack of signal. Gradings are judged by a coarse share while there are few, and by the run's own share over the last 256
 * once 64 are in. A grader's rejection is not a failure; ungraded rollouts do not count.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Trajectory } from '../core/types.ts';

const WINDOW = 64;
const MINIMUM = 16;
/** This many from the start, if all are bad, are enough. */
const CERTAIN = 8;
const MAX_FAILED_SHARE = 0.5;
/** Of gradings, while there are too few to measure a smaller share. */
const MAX_ERROR_SHARE = 0.25;
/** Window of gradings: with fewer, a true share of half the allowed one would often seem too high. */
const GRADINGS = { least: 64, most: 256 } as const;
const SHOWN_REASONS = 3;

/** What counts of a rollout. Small, because it is kept while earlier rollouts are running. */
interface Ended {
  readonly rolloutId: string;
  readonly failure: string | undefined;
  readonly isRejected: boolean;
  /** Undefined if it was never graded; null if it was graded without an error. */
  readonly gradingError: FailedGrading | null | undefined;
}

export interface Begun {
  ended?: Ended;
}

export class FailureBudget {
  readonly #maxErrorShare: number;
  /** In order of beginning, starting with the first that has not ended. */
  readonly #begun = new Set<Begun>();
  /** The failed ones among those, which wait for a slow one before them. */
  readonly #failedBehind = new Set<Ended>();
  readonly #recent: Ended[] = [];
  /** One entry per grading; null if it did not fail. */
  readonly #gradings: (FailedGrading | null)[] = [];
  /** Whether earlier gradings were dropped from the window. */
  #forgotten = false;
  #everCalled = false;

  /** `maxErrorShare`: the share of gradings that may fail. 1: failed gradings never end the run. */
  constructor(maxErrorShare: number = MAX_ERROR_SHARE) {
    this.#maxErrorShare = maxErrorShare;
  }

  begin(): Begun {
    const begun = {};
    this.#begun.add(begun);
    return begun;
  }

  /** For a cancelled rollout, which does not count. */
  leave(begun: Begun): void {
    this.#begun.delete(begun);
  }

  /** Throws FAILURE_BUDGET, GRADER_BUDGET or POLICY_BYPASSED. */
  add(trajectory: Trajectory, begun: Begun = this.begin()): void {
    const ended = endedOf(trajectory);
    begun.ended = ended;
    this.#everCalled ||= trajectory.turns.length > 0 || trajectory.unanswered !== undefined;
    if (ended.failure !== undefined) this.#failedBehind.add(ended);
    for (const first of this.#begun) {
      if (first.ended === undefined) break;
      this.#count(first, first.ended);
    }
    // Too many even if all running rollouts succeed: a single slow rollout must not hide that.
    const failed = [...this.#failedBehind];
    const all = this.#begun.size;
    if (all >= MINIMUM && moreThan(failed.length, all, MAX_FAILED_SHARE)) throw failureError(failed, all, this.#everCalled);
  }

  /**
   * Ends a phase; throws if it was too short to be judged and all were bad. Only rollouts start afresh: with short phases there would never
   * be enough gradings to measure the run's share.
   */
  settle(): void {
    for (const begun of this.#begun) if (begun.ended !== undefined) this.#count(begun, begun.ended);
    if (this.#recent.length > 0 && this.#recent.length < MINIMUM) this.#judge(allOf);
    if (this.#gradings.length > 0 && this.#gradings.length < MINIMUM) this.#judgeGradings(allOf);
    this.#recent.length = 0;
  }

  #count(begun: Begun, ended: Ended): void {
    this.#begun.delete(begun);
    this.#failedBehind.delete(ended);
    this.#recent.push(ended);
    if (this.#recent.length > WINDOW) this.#recent.shift();
    if (ended.gradingError !== undefined) this.#gradings.push(ended.gradingError);
    if (this.#gradings.length > GRADINGS.most) {
      this.#gradings.shift();
      this.#forgotten = true;
    }
    if (this.#recent.length >= MINIMUM) this.#judge();
    else if (this.#recent.length >= CERTAIN) this.#judge(allOf);
    this.#judgeGradings(this.#gradings.length >= MINIMUM ? moreThan : this.#gradings.length >= CERTAIN ? allOf : never);
  }

  #judgeGradings(tooMany: TooMany): void {
    const all = this.#gradings.length;
    const failed = this.#gradings.filter((one) => one !== null);
    const share = all < GRADINGS.least ? Math.max(MAX_ERROR_SHARE, this.#maxErrorShare) : this.#maxErrorShare;
    if (share < 1 && tooMany(failed.length, all, share)) throw gradingError(failed, all, share, this.#forgotten);
  }

  #judge(tooMany: TooMany = moreThan): void {
    const all = this.#recent.length;
    const failed = this.#recent.filter(({ failure }) => failure !== undefined);
    if (!this.#everCalled && failed.every(({ isRejected }) => isRejected) && failed.length === all) throw bypassError(all);
    if (tooMany(failed.length, all, MAX_FAILED_SHARE)) throw failureError(failed, all, this.#everCalled);
  }
}

/** Whether the rollout says nothing about the policy: it failed, hit its deadline, or was rejected without a turn. */
export function isFailure({ outcome, turns }: Trajectory): boolean {
  return failureOf(outcome, turns.length) !== undefined;
}

function endedOf({ rolloutId, outcome, grade, turns }: Trajectory): Ended {
  return {
    rolloutId,
    failure: failureOf(outcome, turns.length),
    isRejected: outcome.kind === 'rejected',
    gradingError: grade.kind === 'ungraded' ? undefined : grade.kind === 'graded' ? null : { rolloutId, ...grade },
  };
}

function failureOf(outcome: Trajectory['outcome'], turns: number): string | undefined {
  if (outcome.kind === 'failed') return outcome.message;
  if (outcome.kind === 'rejected' && turns === 0) return 'no model call of it was answered';
  return outcome.kind === 'truncated' && outcome.limit === 'deadline' ? 'it ran into its deadline' : undefined;
}

interface FailedGrading {
  readonly rolloutId: string;
  readonly code: string;
  readonly message: string;
}

type TooMany = (bad: number, all: number, share: number) => boolean;
const moreThan: TooMany = (bad, all, share) => bad / all > share;
const allOf: TooMany = (bad, all) => bad === all;
const never: TooMany = () => false;

function failureError(failed: readonly Ended[], all: number, called: boolean): TrainyardError {
  const [first] = failed;
  const cause = first?.failure ?? '';
  const hint = called
    ? 'fix what it names; trainyard try shows one rollout turn by turn'
    : 'none of them got an answer from the policy: if that is not because of this error, build the agent’s client from ctx.model()';
  return new TrainyardError(
    'FAILURE_BUDGET',
    `${failed.length} of the last ${all} rollouts failed; the first (${first?.rolloutId}): ${cause}`,
    hint,
  );
}

/** Only counts errors by code, with an example each: their messages are reported as they happen. */
function gradingError(failed: readonly FailedGrading[], all: number, share: number, forgotten: boolean): TrainyardError {
  const byCode = [...Map.groupBy(failed, ({ code }) => code)].toSorted(([, a], [, b]) => b.length - a.length);
  const reasons = byCode
    .slice(0, SHOWN_REASONS)
    .map(([code, alike]) => `${code} ×${alike.length}, such as ${alike[0]!.rolloutId}`);
  const more = byCode.length > SHOWN_REASONS ? [`${byCode.length - SHOWN_REASONS} other reasons`] : [];
  const allowed = failed.length === all ? '' : `, more than ${percent(share)}`;
  return new TrainyardError(
    'GRADER_BUDGET',
    `${failed.length} of the ${forgotten ? 'last' : 'first'} ${all} gradings failed${allowed} (${[...reasons, ...more].join('; ')})`,
    'fix the grader, or allow more with --max-error-share',
  );
}

const percent = (share: number): string => `${Number((100 * share).toFixed(1))} %`;

function bypassError(rollouts: number): TrainyardError {
  return new TrainyardError(
    'POLICY_BYPASSED',
    `none of ${rollouts} rollouts made a model call through Trainyard`,
    'build the agent’s client from ctx.model(): baseURL and apiKey (or fetch); a hard-wired provider cannot be trained',
  );
}

/** A rollout, or a step, in which no role that is trained spoke. `found`: how it was noticed. */
export function nothingTrainable(trajectories: readonly Trajectory[], found = 'rewards differ'): TrainyardError {
  const roles = [...new Set(trajectories.flatMap(({ turns }) => turns.map(({ role }) => role)))].toSorted().join(', ') || 'none';
  return new TrainyardError(
    'NO_SIGNAL',
    `${found}, but no turn of a trainable role was sampled (roles seen: ${roles})`,
    'make at least one of these roles trainable, in the workflow or with --trainable; a flow submits the steps to train',
  );
}
