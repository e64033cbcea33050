/**
 * When to give up: a run whose rollouts or gradings mostly fail is stopped with the first cause instead of spinning.
 *
 * Judged over the last 64 rollouts once 16 are in (8 if all are bad), and over all of them at the end of a phase (`settle`), so that a short run
 * that failed throughout is noticed too. A rollout cut by its deadline counts as failed; one cut by turns, tokens or
 * context does not, and neither does one that the workflow itself rejected: that is a decision, and where all are rejected the run ends
 * for want of signal.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Trajectory } from '../core/types.ts';

const WINDOW = 64;
const MINIMUM = 16;
/** This many in a row from the start, all bad, are enough. */
const CERTAIN = 8;
const MAX_FAILED_SHARE = 0.5;
const MAX_UNGRADABLE_SHARE = 0.25;

export class FailureBudget {
  readonly #recent: Trajectory[] = [];
  #everSampled = false;

  /** Throws FAILURE_BUDGET, GRADER_BUDGET or POLICY_BYPASSED when enough is enough. */
  add(trajectory: Trajectory): void {
    this.#everSampled ||= trajectory.turns.length > 0;
    this.#recent.push(trajectory);
    if (this.#recent.length > WINDOW) this.#recent.shift();
    if (this.#recent.length >= MINIMUM) this.#judge();
    else if (this.#recent.length >= CERTAIN) this.#judge(allOf);
  }

  /** At the end of a phase that was too short to be judged: were all of them bad? The next phase is judged by itself. */
  settle(): void {
    if (this.#recent.length > 0 && this.#recent.length < MINIMUM) this.#judge(allOf);
    this.#recent.length = 0;
  }

  #judge(tooMany: (bad: number, all: number, share: number) => boolean = (bad, all, share) => bad / all > share): void {
    const all = this.#recent.length;
    const failed = this.#recent.filter(isFailure);
    const ungraded = this.#recent.filter(({ grade }) => grade.kind === 'failed');
    if (!this.#everSampled && failed.every(({ outcome }) => outcome.kind === 'rejected') && failed.length === all)
      throw bypassError(all);
    if (tooMany(failed.length, all, MAX_FAILED_SHARE)) throw failureError(failed, all, this.#everSampled);
    if (tooMany(ungraded.length, all, MAX_UNGRADABLE_SHARE)) throw gradingError(ungraded, all);
  }
}

function isFailure({ outcome, turns }: Trajectory): boolean {
  return (
    outcome.kind === 'failed' ||
    (outcome.kind === 'rejected' && turns.length === 0) ||
    (outcome.kind === 'truncated' && outcome.limit === 'deadline')
  );
}

function allOf(bad: number, all: number): boolean {
  return bad === all;
}

function failureError(failed: readonly Trajectory[], all: number, sampled: boolean): TrainyardError {
  const [first] = failed;
  const cause =
    first?.outcome.kind === 'failed'
      ? first.outcome.message
      : first?.outcome.kind === 'truncated'
        ? 'it ran into its deadline'
        : 'it made no model call';
  const refused = /^4\d\d /.test(cause);
  const hint =
    sampled || refused
      ? 'fix the error it throws'
      : 'none of them got an answer from the policy: if that is not because of this error, build the agent’s client from ctx.model()';
  return new TrainyardError(
    'FAILURE_BUDGET',
    `${failed.length} of the last ${all} rollouts failed; the first (${first?.rolloutId}): ${cause}`,
    { hint },
  );
}

function gradingError(ungraded: readonly Trajectory[], all: number): TrainyardError {
  const [first] = ungraded;
  const cause = first?.grade.kind === 'failed' ? `${first.grade.code}: ${first.grade.message}` : '';
  return new TrainyardError(
    'GRADER_BUDGET',
    `${ungraded.length} of the last ${all} gradings failed; the first (${first?.rolloutId}): ${cause}`,
    {
      hint: 'a failed grading gives no reward, so there is nothing to learn from; fix the grader',
    },
  );
}

function bypassError(rollouts: number): TrainyardError {
  return new TrainyardError('POLICY_BYPASSED', `none of ${rollouts} rollouts made a model call through Trainyard`, {
    hint: 'build the agent’s client from ctx.model(): baseURL and apiKey (or fetch); a hard-wired provider cannot be trained',
  });
}
