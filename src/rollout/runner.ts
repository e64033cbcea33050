/**
 * One rollout from start to stored trajectory: open a session, run the workflow, seal, grade, append.
 *
 * A rollout always ends as a trajectory; what the workflow or grader did is in its outcome and grade. Only what is not the
 * rollout's own doing is thrown: the store failing, the run being stopped. The workflow gets the task without its answer.
 */

import type { Absence } from '../core/absence.ts';
import { runInRollout } from '../core/context.ts';
import type {
  Clock,
  GraderInput,
  GraderRunner,
  Session,
  SessionHost,
  Store,
  Workflow,
  WorkflowContext,
} from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { asJson } from '../core/json.ts';
import { linkSignals } from '../core/linked-signal.ts';
import type { Grade, Limits, Outcome, RolloutIdentity, SamplingSettings, Task, TaskView, Trajectory } from '../core/types.ts';

export interface RolloutParts {
  readonly workflow: Workflow;
  /** Only these roles are trained, whatever the workflow says. */
  readonly trainable?: readonly string[] | undefined;
  readonly sessions: SessionHost;
  readonly grader: GraderRunner;
  readonly graderInput: (task: Task, rollout: Pick<Trajectory, 'turns' | 'output' | 'outcome'>) => GraderInput;
  readonly store: Store;
  readonly limits: Limits;
  readonly seed: number;
  readonly clock: Clock;
  /** Of the policy: time for which it was away is not the rollout's, and does not count towards its deadline. */
  readonly absence?: Absence;
  /** Aborts when the run stops. */
  readonly signal: AbortSignal;
}

export interface RolloutSpec {
  readonly identity: RolloutIdentity;
  readonly task: Task;
  readonly sampling: SamplingSettings;
}

/** Characters of JSON. What is longer is left out: an output is a convenience for graders, not a reason to lose a rollout. */
const MAX_OUTPUT = 1_000_000;

type Ending =
  | { readonly kind: 'returned'; readonly output: unknown }
  | { readonly kind: 'threw'; readonly thrown: unknown }
  | { readonly kind: 'deadline' };

/** Durable when it resolves. */
export async function runRollout(parts: RolloutParts, spec: RolloutSpec): Promise<Trajectory> {
  const startedAt = parts.clock.now();
  const deadline = new AbortController();
  const { signal, release } = linkSignals(parts.signal, deadline.signal);
  const session = parts.sessions.open({
    identity: spec.identity,
    roles: parts.workflow.roles,
    trainable: parts.trainable,
    sampling: spec.sampling,
    limits: parts.limits,
    seed: parts.seed,
    signal,
  });
  const cancelDeadline = atDeadline(parts, () => deadline.abort());
  const ending = await runWorkflow(parts.workflow, contextOf(spec, session, signal), deadline.signal);
  cancelDeadline();
  const turns = session.seal();
  release();
  const outcome = outcomeOf(ending, session);
  const output = ending.kind === 'returned' ? asJson(ending.output, MAX_OUTPUT) : undefined;
  const rollout = { turns, outcome, ...(output === undefined ? {} : { output }) };
  const trajectory: Trajectory = {
    ...spec.identity,
    ...rollout,
    ...(session.abandoned.length > 0 ? { abandoned: session.abandoned } : {}),
    grade: await gradeOf(parts, spec.task, rollout),
    startedAt,
    endedAt: parts.clock.now(),
  };
  // A rollout that was given up with the run is no result: stored, it would be taken for one when the run is taken up again.
  parts.signal.throwIfAborted();
  await parts.store.append(trajectory);
  return trajectory;
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

function contextOf(spec: RolloutSpec, session: Session, signal: AbortSignal): WorkflowContext {
  // Built field by field: spreading the task would carry its answer along.
  const { id, prompt, metadata } = spec.task;
  const task: TaskView = structuredClone({ id, prompt, ...(metadata === undefined ? {} : { metadata }) });
  return {
    task,
    prompt: [...task.prompt],
    metadata: task.metadata,
    rolloutId: spec.identity.rolloutId,
    groupId: spec.identity.groupId,
    signal,
    model: (role) => session.model(role),
  };
}

/** Bounded by the deadline even if the workflow ignores its signal; what it does after that finds a sealed session. */
async function runWorkflow(workflow: Workflow, ctx: WorkflowContext, deadline: AbortSignal): Promise<Ending> {
  // Listens on the rollout's own signal: listeners on the run's would pile up over thousands of rollouts.
  const cut = new Promise<Ending>((resolve) => {
    const end = (): void => resolve(deadline.aborted ? { kind: 'deadline' } : { kind: 'threw', thrown: ctx.signal.reason });
    if (ctx.signal.aborted) end();
    else ctx.signal.addEventListener('abort', end, { once: true });
  });
  const run = async (): Promise<Ending> => {
    try {
      return { kind: 'returned', output: await runInRollout(ctx, () => workflow.run(ctx)) };
    } catch (thrown) {
      return { kind: 'threw', thrown };
    }
  };
  return await Promise.race([cut, run()]);
}

function outcomeOf(ending: Ending, session: Session): Outcome {
  if (ending.kind === 'deadline') return { kind: 'truncated', limit: 'deadline' };
  if (session.limitHit !== undefined) return { kind: 'truncated', limit: session.limitHit };
  if (ending.kind === 'threw') {
    const code = ending.thrown instanceof TrainyardError ? ending.thrown.code : 'WORKFLOW_FAILED';
    return { kind: 'failed', code, message: messageOf(ending.thrown).slice(0, 2000) };
  }
  if (session.turns.length === 0) return { kind: 'rejected', reason: 'no_turns' };
  return { kind: 'completed' };
}

async function gradeOf(
  parts: RolloutParts,
  task: Task,
  rollout: Pick<Trajectory, 'turns' | 'output' | 'outcome'>,
): Promise<Grade> {
  const { outcome, turns } = rollout;
  const gradable =
    outcome.kind === 'completed' || (outcome.kind === 'truncated' && outcome.limit !== 'deadline' && turns.length > 0);
  if (!gradable) return { kind: 'ungraded', why: outcome.kind };
  return await parts.grader.grade(parts.graderInput(task, rollout));
}
