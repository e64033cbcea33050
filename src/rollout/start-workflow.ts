/** A workflow made ready for rollouts: set up once, held to its own concurrency, torn down when the run ends. */
import type { Workflow } from '../core/contracts.ts';
import { boundary } from '../core/errors.ts';
import { Slots } from './slots.ts';

export interface StartedWorkflow extends AsyncDisposable {
  readonly workflow: Workflow;
  /** Absent: as many at once as the run has. */
  readonly slots: Slots | undefined;
}

/** Throws WORKFLOW_INIT_FAILED when its setup does. */
export async function startWorkflow(workflow: Workflow): Promise<StartedWorkflow> {
  await boundary('WORKFLOW_INIT_FAILED', `the setup of workflow ${workflow.name} failed`, async () => workflow.setup?.());
  return {
    workflow,
    slots: workflow.concurrency === undefined ? undefined : new Slots(workflow.concurrency),
    [Symbol.asyncDispose]: async () => workflow.teardown?.(),
  };
}
