/** Who grades what is served, where somebody does: the grader of an entry, and the tasks whose answers it is shown. */
import type { GraderRunner } from '../core/contracts.ts';
import { defineWorkflow } from '../core/define.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Task } from '../core/types.ts';
import { readTasks } from '../dataset/tasks.ts';
import { inspectEntry, together } from '../rollout/discovery.ts';
import { type PolicyJudgeParts, withPolicy } from './policy-judge.ts';
import { EVAL_DEFAULTS } from './settings.ts';
import { openGrader } from './workshop.ts';

export interface Grading extends AsyncDisposable {
  readonly grader: GraderRunner;
  /** By id. */
  readonly tasks: ReadonlyMap<string, Task>;
}

/** `policy`: for a grader that asks it. Undefined where neither is given. Throws USAGE where only one is, or the entry has no grader. */
export async function openGrading(
  { entry, tasks }: { readonly entry?: string | undefined; readonly tasks?: string | undefined },
  policy: PolicyJudgeParts,
): Promise<Grading | undefined> {
  if (entry === undefined && tasks === undefined) return undefined;
  if (entry === undefined || tasks === undefined) {
    const found = entry === undefined ? '--tasks without --entry' : '--entry without --tasks';
    throw new TrainyardError('USAGE', `found ${found}`, {
      hint: 'a grader needs both: what to say, and the answers to say it by',
    });
  }
  // Only the grader is wanted: who plays the agent comes from outside.
  const inspected = await inspectEntry(entry, () => defineWorkflow(async () => {}));
  const { grader, graderModule } = inspected.entry ?? {};
  if (inspected.problems.length > 0) throw together(inspected.problems);
  if (grader === undefined) {
    throw new TrainyardError('GRADER_NOT_FOUND', `${entry} exports no grader`, { hint: 'export const grader = defineGrader(…)' });
  }
  const known = new Map((await readTasks(tasks)).map((task) => [task.id, task]));
  const runner = withPolicy(await openGrader(EVAL_DEFAULTS, grader, graderModule, policy.signal), grader, policy);
  return { grader: runner, tasks: known, [Symbol.asyncDispose]: () => runner[Symbol.asyncDispose]() };
}
