/**
 * Runs a grader in this process: for closures, which cannot be imported by a child process.
 *
 * Contract: an asynchronous grader that overruns its deadline is abandoned with GRADER_TIMEOUT and its late answer ignored.
 * What it cannot do: stop a grader that computes without awaiting. That blocks this whole process, deadline included, until it
 * returns (its answer then still counts), and a grader that exits or crashes takes this process along. `warning` says so.
 */
import type { Grader, GraderInput, GraderModel, GraderRunner } from '../core/contracts.ts';
import { describeThrown } from '../core/describe.ts';
import { deepCopy } from '../core/json.ts';
import type { Grade } from '../core/types.ts';
import { checkedDeadline } from '../processes/limits.ts';
import { type Attempt, cancelled, checkedRetries, DEFAULT_DEADLINE_MS, mayPass, timedOut, withRetries } from './attempts.ts';
import { callGrader, failed } from './call.ts';

export interface InlineGraderRunner extends GraderRunner {
  readonly killable: false;
  /** For the run to show once. */
  readonly warning: string;
}

interface InlineGraderOptions {
  /** Per grading. Default 30 s. */
  readonly deadlineMs?: number;
  /** How often a grading that failed is tried again. Default: never. */
  readonly retries?: number;
}

export function inlineGrader(grader: Grader, options: InlineGraderOptions = {}): InlineGraderRunner {
  const deadlineMs = checkedDeadline(options.deadlineMs ?? DEFAULT_DEADLINE_MS);
  const abandon = new Set<(grade: Grade) => void>();
  let closed = false;

  const retries = checkedRetries(options.retries ?? 0);

  async function attempt(input: GraderInput, model?: GraderModel): Promise<Attempt> {
    if (closed) return { grade: cancelled(), mayPass: false };
    let own: GraderInput;
    try {
      // A copy, as the pool's children get: a grader that changes its input must not change what is stored and trained.
      own = deepCopy(input);
    } catch (thrown) {
      return { grade: failed(`the grader's input cannot be copied: ${describeThrown(thrown)}`), mayPass: false };
    }
    const { promise: overtaken, resolve } = Promise.withResolvers<Grade>();
    const controller = new AbortController();
    const { signal } = controller;
    const end = (grade: Grade): void => {
      controller.abort();
      resolve(grade);
    };
    const timer = setTimeout(() => end(timedOut(deadlineMs)), deadlineMs);
    abandon.add(end);
    try {
      const grade = await Promise.race([callGrader(grader, own, { signal, model }), overtaken]);
      return { grade, mayPass: mayPass(grade) };
    } finally {
      clearTimeout(timer);
      abandon.delete(end);
    }
  }

  return {
    killable: false,
    warning: `grader ${JSON.stringify(grader.name)} runs inside this process: if it loops without awaiting, or exits, so does the run; export it from a module to have it run in a child process that can be killed`,
    grade: (input, model) => withRetries(retries, () => attempt(input, model)),
    async [Symbol.asyncDispose]() {
      closed = true;
      for (const end of abandon) end(cancelled());
    },
  };
}
