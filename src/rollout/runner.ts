/**
 * Starts a workflow, and runs one rollout from start to stored trajectory: open a session, run the workflow, seal, grade, append. A rollout
 * always ends as a trajectory, whose outcome and grade show what the workflow and grader did. Throws only if the cause is outside the
 * rollout: the store failed, or the run was stopped. The workflow gets the task without its answer.
 */
import { Downtime, orAborted, Semaphore, workDeadline, yieldToEventLoop } from '../core/async.ts';
import { endPrints, runInRollout } from '../core/context.ts';
import type { AttachedRun, Clock, RunHost, Session, SessionHost, SessionObserver, Store, Workflow } from '../core/contracts.ts';
import { boundary, TrainyardError } from '../core/errors.ts';
import type { Grade, Limits, LogLine, RolloutIdentity, SamplingSettings, Task, Trajectory, Turn } from '../core/types.ts';
import type { ChildProgram } from '../processes/channel.ts';
import type { ModuleExport } from './discovery.ts';
import {
  type Ended,
  type Ending,
  type GradingParts,
  gradeOf,
  onlyTrained,
  outcomeOf,
  resultOf,
  type SettledResult,
  settle,
} from './record.ts';
import { clearFolder, contextOf, type OwnContext, Rejection } from './rollout-context.ts';

export interface StartedWorkflow extends AsyncDisposable {
  readonly workflow: Workflow;
  /** If absent, only the run's concurrency limit applies. */
  readonly concurrency: Semaphore | undefined;
  readonly runWorkflow: (own: OwnContext, task: Task) => Promise<unknown>;
}

export interface IsolationOptions {
  readonly module: ModuleExport | undefined;
  /** The policy's folder, for the tokenizer. */
  readonly model?: string;
  /** Number of processes, and so of concurrent rollouts. */
  readonly workers: number;
  readonly signal: AbortSignal;
  /** If absent, the processes run without a sandbox. */
  readonly files?: HiddenFiles | undefined;
  readonly sources?: ChildProgram['sources'];
}

export interface HiddenFiles {
  /** The run's directory, created if missing. */
  readonly run?: string | undefined;
  /** Paths of files with answers, and of other runs. Anything else is ignored. */
  readonly tasks: readonly unknown[];
  /** The URL of the store, which may name files with its keys. */
  readonly store?: string | undefined;
  /** Whether this is a worker, which need not have what the workflow hides. */
  readonly isWorker?: boolean;
}

/**
 * Sets the workflow up once, in this process or in each of its own; disposing tears it down. Throws WORKFLOW_INIT_FAILED if setup fails.
 * `isolation: 'process'` requires `isolation`. Without a `host`, the workflow attaches to nothing.
 */
export async function startWorkflow(workflow: Workflow, isolation?: IsolationOptions, host?: RunHost): Promise<StartedWorkflow> {
  const { name, concurrency } = workflow;
  const attached = host && (await workflow.attach?.(host));
  if (workflow.isolation === 'process') return await startIsolated(workflow, isolation, attached);
  await boundary('WORKFLOW_INIT_FAILED', `the setup of workflow ${name} failed`, async () => workflow.setup?.());
  return {
    workflow,
    concurrency: concurrency === undefined ? undefined : new Semaphore(concurrency),
    runWorkflow: attached ? ({ ctx }, task) => runInRollout(ctx, () => attached(ctx, task)) : (own) => runHere(workflow, own),
    [Symbol.asyncDispose]: () =>
      boundary('WORKFLOW_FAILED', `the teardown of workflow ${name} failed`, async () => workflow.teardown?.()),
  };
}

async function startIsolated(
  workflow: Workflow,
  options: IsolationOptions | undefined,
  attached: AttachedRun | undefined,
): Promise<StartedWorkflow> {
  if (options === undefined) {
    const found = `workflow ${workflow.name} wants a process of its own, and there are none here`;
    throw new TrainyardError('WORKFLOW_INVALID', found, 'leave isolation out: it is for `trainyard train` and `eval`');
  }
  const workers = Math.min(options.workers, workflow.concurrency ?? options.workers);
  const { openIsolated } = await import('../places/process/isolated-workflow.ts');
  const isolated = await openIsolated(workflow, { ...options, workers });
  return {
    workflow,
    // Wait for a process before the deadline starts.
    concurrency: new Semaphore(workers),
    runWorkflow: (own, task) =>
      attached === undefined ? isolated.run(own) : attached(own.ctx, task, (handed) => isolated.run(own, handed)),
    [Symbol.asyncDispose]: () => isolated[Symbol.asyncDispose](),
  };
}

function runHere(workflow: Workflow, { ctx }: OwnContext): Promise<unknown> {
  return runInRollout(ctx, () => workflow.run(ctx));
}

/** Must not throw. */
export interface RolloutObserver extends SessionObserver {
  threw?(thrown: unknown): void;
  /** In the rollout's context. */
  printed?(line: LogLine): void;
}

/** Makes a trace of a rollout. `run` gets what its grading is called through. */
export interface RolloutTracing {
  rollout(identity: RolloutIdentity, workflow: string, run: (grading: Grading) => Promise<Trajectory>): Promise<Trajectory>;
}
type Grading = <T>(grade: () => Promise<T>) => Promise<T>;

export interface RolloutParts extends GradingParts, Partial<Pick<StartedWorkflow, 'runWorkflow' | 'concurrency'>> {
  /** Default: here. */
  readonly place?: Place | undefined;
  /** Trains only these roles, whatever the workflow says. */
  readonly trainable?: readonly string[] | undefined;
  readonly sessions: SessionHost;
  readonly store: Pick<Store, 'append'>;
  readonly limits: Limits;
  readonly seed: number;
  readonly clock: Clock;
  /** Downtime of the policy's server does not count towards the deadline. */
  readonly downtime?: Downtime;
  readonly observer?: RolloutObserver | undefined;
  readonly tracing?: RolloutTracing | undefined;
  /** Parent of the rollouts' artifact folders. */
  readonly artifacts?: string | undefined;
  readonly signal: AbortSignal;
  /** A worker's rollouts are graded by the coordinator, which has the answers. */
  readonly ungraded?: boolean | undefined;
}

/** Where rollouts run: in this process or one of its own, or on workers. */
export interface Place {
  /** Rejects only if the cause is outside the rollout: the store failed, or the run was stopped. */
  run(parts: RolloutParts, spec: RolloutSpec): Promise<Ended>;
  /** The graded trajectory is in the store. */
  stored?(rolloutId: string): void;
}

export interface RolloutSpec {
  readonly identity: RolloutIdentity;
  readonly task: Task;
  readonly sampling: SamplingSettings;
}

/** The trajectory is durable when this resolves. */
export async function runRollout(parts: RolloutParts, spec: RolloutSpec): Promise<Trajectory> {
  using _permit = await parts.concurrency?.acquire(parts.signal);
  await yieldToEventLoop();
  const run = (grading?: Grading): Promise<Trajectory> => rolloutOf(parts, spec, grading);
  return await (parts.tracing?.rollout(spec.identity, parts.workflow.name, run) ?? run());
}

async function rolloutOf(parts: RolloutParts, spec: RolloutSpec, grading: Grading = (grade) => grade()): Promise<Trajectory> {
  const { place = HERE, store, signal, clock } = parts;
  const ended = await place.run(parts, spec);
  const grade = async (print: (text: string) => void): Promise<Grade> =>
    parts.ungraded ? { kind: 'ungraded', why: ended.outcome.kind } : await grading(() => gradeOf(parts, spec, ended, print));
  const trajectory = await settle(spec.identity, ended, grade, clock);
  // Do not store a rollout that was cancelled with the run: a resumed run would take it as a result.
  signal.throwIfAborted();
  await store.append(trajectory);
  place.stored?.(trajectory.rolloutId);
  return trajectory;
}

/** In a session of this process's gateway. */
const HERE: Place = {
  async run(parts, spec) {
    const { identity, sampling } = spec;
    const { workflow, seed, limits, clock, observer, trainable } = parts;
    const startedAt = clock.now();
    const { roles, othersTrainable } = workflow;
    const run = await runInSession({ ...parts, deadlineMs: limits.deadlineMs }, spec, (signal, waits) =>
      parts.sessions.open({
        identity,
        roles,
        othersTrainable,
        trainable,
        sampling,
        limits,
        seed,
        signal,
        waits,
        ...(observer === undefined ? {} : { observer }),
      }),
    );
    const { session, own } = run;
    // Seal before reading the result: only then is it known which answers were not delivered, and those do not count.
    const sealed = session.seal();
    const ending = settled(run.ending, identity, sealed);
    if (ending.kind === 'threw' && !(ending.thrown instanceof Rejection)) observer?.threw?.(ending.thrown);
    const outcome = outcomeOf(ending, session);
    const result = ending.kind === 'returned' ? ending.result : {};
    const turns = onlyTrained(sealed, undefined, result.output);
    const { logs } = own;
    return { outcome, turns, unanswered: session.unanswered, result, logs, artifactsDir: own.artifactsDir(), startedAt };
  },
};

export interface SessionRunParts extends Partial<Pick<StartedWorkflow, 'runWorkflow'>> {
  readonly workflow: Workflow;
  readonly deadlineMs: number;
  readonly downtime?: Downtime;
  readonly seed: number;
  readonly clock: Clock;
  readonly artifacts?: string | undefined;
  readonly observer?: Pick<RolloutObserver, 'printed'> | undefined;
  readonly signal: AbortSignal;
}

/** Runs the workflow in a new session, of a gateway or of a remote policy. The session is sealed when this resolves. */
export async function runInSession<Opened extends Pick<Session, 'model'> & { seal(): unknown }>(
  parts: SessionRunParts,
  { identity, task }: Pick<RolloutSpec, 'identity' | 'task'>,
  open: (signal: AbortSignal, waits: Downtime) => Opened,
): Promise<{ readonly ending: Ending<unknown>; readonly session: Opened; readonly own: OwnContext }> {
  const { workflow, seed, clock, artifacts, observer, runWorkflow = (one) => runHere(workflow, one) } = parts;
  const waits = new Downtime(parts.downtime);
  let isOver = false;
  const end = (): void => {
    isOver = true;
  };
  using bounds = workDeadline(parts.deadlineMs, waits, end, parts.signal);
  const { signal } = bounds;
  const session = open(signal, waits);
  using _sealed = { [Symbol.dispose]: () => void session.seal() };
  const printed = (line: LogLine): void => observer?.printed?.(line);
  const own = contextOf({ identity, task, workflow, session, signal, seed, artifacts, now: clock.now, printed });
  clearFolder(own.folder);
  // Ends even if the workflow ignores its signal; what it does afterwards finds a sealed session.
  const ending = await orAborted(
    endingOf(() => runWorkflow(own, task)),
    signal,
  ).catch((thrown: unknown): Ending<unknown> => (isOver ? { kind: 'deadline' } : { kind: 'threw', thrown }));
  endPrints(own.ctx);
  return { ending: rejectedOr(ending, own), session, own };
}

/** Never rejects. */
async function endingOf(run: () => Promise<unknown>): Promise<Ending<unknown>> {
  try {
    return { kind: 'returned', result: await run() };
  } catch (thrown) {
    return { kind: 'threw', thrown };
  }
}

/** A rejected rollout stays rejected, even if the workflow caught the error. */
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
