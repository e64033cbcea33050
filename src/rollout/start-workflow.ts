/**
 * A workflow made ready for rollouts: set up once, in this process or in each of its own, held to its own concurrency, torn down when the
 * run ends.
 */
import { Semaphore } from '../core/async.ts';
import { runInRollout } from '../core/context.ts';
import type { RunHost, Workflow } from '../core/contracts.ts';
import { boundary, TrainyardError } from '../core/errors.ts';
import type { Task } from '../core/types.ts';
import type { ChildProgram } from '../processes/channel.ts';
import type { ModuleExport } from './discovery.ts';
import type { OwnContext } from './rollout-context.ts';

export interface StartedWorkflow extends AsyncDisposable {
  readonly workflow: Workflow;
  /** Absent: as many at once as the run has. */
  readonly slots: Semaphore | undefined;
  /** One rollout of it, wherever that runs. */
  readonly runWorkflow: (own: OwnContext, task: Task) => Promise<unknown>;
}

/** For a workflow that wants processes of its own. */
export interface IsolationOptions {
  /** Where the processes find the workflow. */
  readonly module: ModuleExport | undefined;
  /** Processes, and so rollouts at once. */
  readonly workers: number;
  /** Ends the processes when it aborts. */
  readonly signal: AbortSignal;
  /** What they must not see: the run's directory, and files with answers. Absent: they run in no sandbox. */
  readonly files?: { readonly run?: string | undefined; readonly tasks: readonly unknown[] } | undefined;
  readonly sources?: ChildProgram['sources'];
}

/**
 * Throws WORKFLOW_INIT_FAILED when its setup does. Without `isolation` there are no processes for it but this one; without a host there is
 * nothing that it could attach to.
 */
export async function startWorkflow(workflow: Workflow, isolation?: IsolationOptions, host?: RunHost): Promise<StartedWorkflow> {
  if (workflow.isolation === 'process') {
    if (isolation !== undefined) return await startIsolated(workflow, isolation);
    throw new TrainyardError(
      'WORKFLOW_INVALID',
      `workflow ${workflow.name} wants a process of its own, and there are none here`,
      {
        hint: 'leave isolation out: it is for `trainyard train` and `eval`',
      },
    );
  }
  const attached = host && (await workflow.attach?.(host));
  await boundary('WORKFLOW_INIT_FAILED', `the setup of workflow ${workflow.name} failed`, async () => workflow.setup?.());
  return {
    workflow,
    slots: workflow.concurrency === undefined ? undefined : new Semaphore(workflow.concurrency),
    runWorkflow: attached ? ({ ctx }, task) => runInRollout(ctx, () => attached(ctx, task)) : (own) => runHere(workflow, own),
    [Symbol.asyncDispose]: () =>
      boundary('WORKFLOW_FAILED', `the teardown of workflow ${workflow.name} failed`, async () => workflow.teardown?.()),
  };
}

export function runHere(workflow: Workflow, { ctx }: OwnContext): Promise<unknown> {
  return runInRollout(ctx, () => workflow.run(ctx));
}

async function startIsolated(workflow: Workflow, options: IsolationOptions): Promise<StartedWorkflow> {
  const workers = Math.min(options.workers, workflow.concurrency ?? options.workers);
  const { openIsolated } = await import('../isolation/isolated-workflow.ts');
  const isolated = await openIsolated(workflow, { ...options, workers });
  return {
    workflow,
    // A rollout that waits for a process should wait before its deadline begins.
    slots: new Semaphore(workers),
    runWorkflow: (own) => isolated.run(own),
    [Symbol.asyncDispose]: () => isolated[Symbol.asyncDispose](),
  };
}
