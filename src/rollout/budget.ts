/**
 * When to give up: a run whose rollouts or gradings mostly fail is stopped with the first cause instead of spinning.
 *
 * Judged over the last 64 rollouts once 16 are in, and over all of them at the end of a phase (`settle`), so that a short run
 * that failed throughout is noticed too. A rollout cut by a limit is not a failure.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Trajectory } from '../core/types.ts';

const WINDOW = 64;
const MINIMUM = 16;
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
  }

  /** At the end of a phase: were all of them bad? */
  settle(): void {
    if (this.#recent.length > 0 && this.#recent.length < MINIMUM) this.#judge(1);
  }

  #judge(certainShare?: number): void {
    const rollouts = this.#recent.length;
    const bypassed = this.#recent.filter(({ outcome }) => outcome.kind === 'rejected').length;
    if (bypassed === rollouts && !this.#everSampled) throw bypassError(rollouts);
    const failed = this.#recent.filter(({ outcome }) => outcome.kind === 'failed' || outcome.kind === 'rejected');
    if (failed.length / rollouts > (certainShare === undefined ? MAX_FAILED_SHARE : certainShare - 1e-9)) {
      const [first] = failed;
      const cause = first?.outcome.kind === 'failed' ? first.outcome.message : 'it made no model call';
      throw new TrainyardError(
        'FAILURE_BUDGET',
        `${failed.length} of the last ${rollouts} rollouts failed; the first (${first?.rolloutId}): ${cause}`,
        {
          hint: 'run the workflow on one task with `trainyard eval` and fix the error it throws',
        },
      );
    }
    const ungraded = this.#recent.filter(({ grade }) => grade.kind === 'failed');
    if (ungraded.length / rollouts > (certainShare === undefined ? MAX_UNGRADABLE_SHARE : certainShare - 1e-9)) {
      const [first] = ungraded;
      const cause = first?.grade.kind === 'failed' ? `${first.grade.code}: ${first.grade.message}` : '';
      throw new TrainyardError(
        'GRADER_BUDGET',
        `${ungraded.length} of the last ${rollouts} gradings failed; the first (${first?.rolloutId}): ${cause}`,
        {
          hint: 'a failed grading gives no reward, so there is nothing to learn from; fix the grader',
        },
      );
    }
  }
}

function bypassError(rollouts: number): TrainyardError {
  return new TrainyardError('POLICY_BYPASSED', `none of ${rollouts} rollouts made a model call through Trainyard`, {
    hint: 'build the agent’s client from ctx.model(): baseURL and apiKey (or fetch); a hard-wired provider cannot be trained',
  });
}
