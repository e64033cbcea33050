/**
 * The parts of a live run: model, grader, workflow and gateway. Opened in an order that finds mistakes before anything is spent, with the
 * gateway listening last; closed in reverse.
 */
import { Downtime, linkSignals, openingWith, Semaphore } from '../core/async.ts';
import type { Grader, GraderRunner, Store } from '../core/contracts.ts';
import { missingEnv } from '../core/define.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import { defined } from '../core/json.ts';
import type { Engine } from '../core/policy.ts';
import type { RolloutIdentity, SamplingSettings, Task, Trajectory } from '../core/types.ts';
import { Gateway, listen } from '../gateway/gateway.ts';
import { graderInput } from '../grader/call.ts';
import { type InlineGraderRunner, inlineGrader } from '../grader/inline.ts';
import { openGraderPool } from '../grader/pool.ts';
import type { KernelVariant } from '../nn/wasm.ts';
import { watchEventLoop } from '../processes/event-loop-monitor.ts';
import { FailureBudget } from '../rollout/budget.ts';
import type { Entry, ModuleExport } from '../rollout/discovery.ts';
import { type HiddenFiles, type RolloutObserver, type RolloutParts, runRollout, startWorkflow } from '../rollout/runner.ts';
import { loadRenderer } from '../tokens/renderer.ts';
import type { RunSettings, TrainSettings } from './check-settings.ts';
import { checkModelFolder, loadFirst } from './checkpoint.ts';
import { openPolicy, type Policy, type PolicySettings, withPolicy } from './open-policy.ts';
import { sourcesOfModule } from './preflight.ts';
import { tokensIn } from './results.ts';
import { Recovery } from './resume.ts';

export interface RunParts extends AsyncDisposable {
  readonly entryName: string;
  readonly policy: Policy;
  /** The policy's server, for events. Empty if embedded. */
  readonly at: { readonly server?: string };
  /** Undefined if the policy is embedded and cannot be lost. */
  readonly recovery: Recovery | undefined;
  /** `artifacts`: parent folder for rollout files. */
  rolloutsInto(store: Store, artifacts?: string): Rollouts;
}

export interface Rollouts {
  /** Runs, grades and stores one rollout, unless the store has it already. Throws if the failure budget is spent or the run was stopped. */
  run(
    identity: Pick<RolloutIdentity, 'rolloutId' | 'groupId' | 'purpose'>,
    task: Task,
    sampling: SamplingSettings,
    signal?: AbortSignal,
  ): Promise<Trajectory>;
  /** Ends a phase; throws if all of its rollouts failed. */
  settle(): void;
  readonly sampledTokens: number;
}

interface PartsOptions {
  readonly stop: AbortSignal;
  readonly warn: Warn;
  readonly kernels?: KernelVariant | undefined;
  /** Wraps the policy's engine before the gateway uses it. */
  readonly engine?: ((engine: Engine) => Engine) | undefined;
  readonly observer?: RolloutObserver | undefined;
  /** Hidden from isolated rollouts: the run's directory and files with answers. */
  readonly files?: HiddenFiles;
  readonly watchStalls?: boolean | undefined;
}

type GraderSettings = Pick<RunSettings, 'graderWorkers' | 'graderDeadlineMs' | 'graderRetries' | 'graderMemoryMb'>;
type PartsSettings = PolicySettings &
  GraderSettings &
  Pick<RunSettings, 'entry' | 'limits' | 'workflowWorkers' | 'trainable' | 'maxErrorShare'> &
  Partial<Pick<TrainSettings, 'turnDiscount'>>;

export async function openParts(settings: PartsSettings, entry: Entry, options: PartsOptions): Promise<RunParts> {
  const { stop, warn, kernels, engine = (own: Engine) => own, observer, files = { tasks: [] } } = options;
  const { model, seed, limits, trainable, turnDiscount, maxErrorShare } = settings;
  checkTrainable(entry, trainable);
  return await openingWith<RunParts>(async (opened) => {
    await checkModelFolder(model, settings.engine === 'tinker' ? 'text' : 'weights');
    const renderer = await loadRenderer(model);
    const downtime = new Downtime();
    const policy = opened.use(await openPolicy(settings, renderer.vocabSize, { warn, stop, kernels, downtime }));
    const restore = async (): Promise<void> => {
      await loadFirst(policy.trainer, model);
      await policy.trainer.publish(0);
    };
    const recovery = policy.server === undefined ? undefined : new Recovery(warn, restore, downtime);
    const { signal, release } = linkSignals(stop, ...(recovery === undefined ? [] : [recovery.fatal]));
    opened.defer(release);
    const grader = entry.grader && opened.use(await openGrader(settings, entry.grader, entry.graderModule, stop));
    if (grader && 'warning' in grader) warn('UNKILLABLE_GRADER', grader.warning);
    const module = entry.workflowModule ?? entry.flowModule;
    const isolation = { module, model, workers: settings.workflowWorkers, signal: stop, files, sources: sourcesOfModule(module) };
    const sampled = engine(policy.engine);
    const gateway = new Gateway({ engine: recovery?.around(sampled) ?? sampled, renderer, modelName: 'policy' });
    const grading = grader && withPolicy(grader, entry.grader!, { sessions: gateway, seed, signal });
    const started = opened.use(await startWorkflow(entry.workflow, isolation, { gateway, grader: grading }));
    if (options.watchStalls) opened.use(watchEventLoop({ warn: (message) => warn('EVENT_LOOP_BLOCKED', message) }));
    opened.use(await listen(gateway));
    const { workflow, runWorkflow, concurrency } = started;
    const parts = {
      ...{ trainable, observer, sessions: gateway, grader: grading, graderInput, turnDiscount, limits, seed, downtime, signal },
      ...{ workflow, runWorkflow, concurrency, clock: { now: Date.now } },
    };
    return {
      ...{ policy, recovery, at: defined({ server: policy.server }) },
      entryName: typeof settings.entry === 'string' ? settings.entry : entry.workflow.name,
      rolloutsInto: (store, artifacts) => rolloutsOf({ ...parts, store, artifacts }, warn, new FailureBudget(maxErrorShare)),
      [Symbol.asyncDispose]: () => opened[Symbol.asyncDispose](),
    };
  }).catch((thrown: unknown) => {
    // The part being opened reports that it was closed; the reason for the stop is what counts.
    throw stop.aborted ? stop.reason : thrown;
  });
}

function rolloutsOf(parts: RolloutParts, warn: Warn, budget: FailureBudget): Rollouts {
  const warned = new Set<string>();
  let sampledTokens = 0;
  return {
    run: async (identity, task, sampling, given) => {
      const { signal, release } = linkSignals(parts.signal, ...(given === undefined ? [] : [given]));
      try {
        signal.throwIfAborted();
        const kept = await parts.store.read(identity.rolloutId);
        // Acknowledged before a kill, so it counts. Its failure does not: new rollouts show whether the cause persists.
        if (kept !== undefined) return kept;
        const begun = budget.begin();
        try {
          const spec = { identity: { ...identity, taskId: task.id }, task, sampling };
          const trajectory = await runRollout({ ...parts, signal }, spec);
          sampledTokens += tokensIn(trajectory);
          warnOnce(trajectory, warned, warn);
          budget.add(trajectory, begun);
          return trajectory;
        } catch (thrown) {
          budget.leave(begun);
          throw thrown;
        }
      } finally {
        release();
      }
    },
    get sampledTokens() {
      return sampledTokens;
    },
    settle: () => budget.settle(),
  };
}

function checkTrainable({ workflow }: Entry, trainable: readonly string[] = []): void {
  const declared = Object.keys(workflow.roles);
  const unknown = trainable.filter((role) => !declared.includes(role));
  if (declared.length === 0 || unknown.length === 0) return;
  throw new TrainyardError('USAGE', `the workflow has no role ${unknown.join(', ')}; its roles are ${declared.join(', ')}`, {
    hint: 'give --trainable roles of the workflow',
  });
}

/** The grader's own deadline, retries and concurrency override the run's. */
export async function openGrader(
  { graderWorkers, graderDeadlineMs, graderRetries, graderMemoryMb }: GraderSettings,
  grader: Grader,
  graderModule: ModuleExport | undefined,
  signal: AbortSignal,
): Promise<GraderRunner | InlineGraderRunner> {
  const { concurrency = Infinity, deadlineMs = graderDeadlineMs, retries = graderRetries } = grader;
  const [missing] = missingEnv(grader);
  if (missing !== undefined) {
    // Grading processes inherit this environment.
    const found = `the grader ${grader.name} needs the environment variable ${missing}, which is not set`;
    throw new TrainyardError('GRADER_INIT_FAILED', found, { hint: `set ${missing} where the run is started` });
  }
  if (graderModule === undefined) return limited(inlineGrader(grader, { deadlineMs, retries }), concurrency, signal);
  const { url: module, exportName } = graderModule;
  // A process grades one rollout at a time.
  const workers = Math.min(graderWorkers, concurrency);
  const sources = sourcesOfModule(graderModule);
  return await openGraderPool({ module, exportName, workers, deadlineMs, retries, memoryMb: graderMemoryMb, signal, sources });
}

function limited(runner: InlineGraderRunner, most: number, signal: AbortSignal): InlineGraderRunner {
  if (most === Infinity) return runner;
  const limit = new Semaphore(most);
  const grade: GraderRunner['grade'] = async (input, model) => {
    using _held = await limit.acquire(signal);
    return await runner.grade(input, model);
  };
  return { ...runner, grade };
}

/** Reports the first failure of each kind at once; otherwise a run of slow failures would stay silent until its budget is spent. */
function warnOnce({ rolloutId, outcome, grade }: Trajectory, warned: Set<string>, warn: Warn): void {
  for (const ending of [outcome, grade]) {
    if (ending.kind !== 'failed' || warned.has(ending.code)) continue;
    warned.add(ending.code);
    warn(ending.code, `rollout ${rolloutId}: ${ending.message}`);
  }
}
