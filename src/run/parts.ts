/**
 * The parts of a live run: model, grader, workflow and gateway. Opened in an order that finds mistakes before anything is spent, with the
 * gateway listening last; closed in reverse.
 */
import { basename } from 'node:path';
import { abortWith, Downtime, linkSignals, openingWith, Semaphore } from '../core/async.ts';
import { catchPrints, outsideRollout } from '../core/context.ts';
import type { Grader, GraderRunner, ModelServer, Store } from '../core/contracts.ts';
import { missingEnv } from '../core/define.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import { defined } from '../core/json.ts';
import { type Engine, engineWith, type ModelPlan } from '../core/policy.ts';
import type { Trajectory } from '../core/types.ts';
import { loadFirst } from '../engines/checkpoint.ts';
import type { KernelVariant } from '../engines/embedded/wasm.ts';
import { hubNameOf } from '../engines/model-path.ts';
import {
  openSampled,
  type PolicySettings,
  planToTell,
  policyName,
  type SampledPolicy,
  withPolicy,
} from '../engines/open-policy.ts';
import { Gateway, listen } from '../gateway/gateway.ts';
import type { RecordedAnswers, ServedPolicy } from '../gateway/sampling.ts';
import { graderInput } from '../grading/call.ts';
import { type InlineGraderRunner, inlineGrader } from '../grading/inline.ts';
import { openGraderPool } from '../grading/pool.ts';
import { watchEventLoop } from '../processes/event-loop-monitor.ts';
import { FailureBudget } from '../rollout/budget.ts';
import type { Entry, ModuleExport } from '../rollout/discovery.ts';
import {
  type HiddenFiles,
  type Place,
  type RolloutObserver,
  type RolloutParts,
  type RolloutSpec,
  runRollout,
  type StartedWorkflow,
  startWorkflow,
} from '../rollout/runner.ts';
import type { EvaluationSettings, RunSettings, TrainSettings } from '../settings/check-settings.ts';
import { hiddenFiles, isApi } from '../settings/settings.ts';
import type { TrainPlan } from './plan.ts';
import { sourcesOfModule } from './preflight.ts';
import { Recovery } from './recovery.ts';
import { type Rollouts, rolloutsOf } from './rollouts.ts';

export interface RunParts extends AsyncDisposable {
  readonly entryName: string;
  /** The name of the policy, for people. */
  readonly policy: SampledPolicy;
  /** The policy's server, for events. Empty if embedded. */
  readonly at: { readonly server?: string };
  /** Of the policy, for the event that begins a run. */
  readonly start: { readonly model: string; readonly server?: string; readonly plan?: ModelPlan };
  /** Undefined if the policy is embedded and cannot be lost. */
  readonly recovery: Recovery | undefined;
  /** `artifacts`: parent folder for rollout files. `place`: where they run, if not here. */
  rolloutsInto(store: Store, artifacts?: string, place?: Place): Rollouts;
  /** One rollout here, for whoever keeps it and its files. */
  rollout(spec: RolloutSpec, kept: Required<Pick<RolloutParts, 'store' | 'artifacts' | 'signal'>>): Promise<Trajectory>;
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
  /** Answers every call; the policy, which the run's settings name, is not opened, and this one stands for it. */
  readonly again?: { readonly recorded: RecordedAnswers; readonly policy: SampledPolicy } | undefined;
  /** Whether rollouts are to be trained on: then some must have a turn of a trainable role. */
  readonly trains?: boolean | undefined;
  /** Whether this is a worker of a run elsewhere, which does not grade. */
  readonly isWorker?: boolean | undefined;
}

type GraderSettings = Pick<RunSettings, 'graderWorkers' | 'graderDeadlineMs' | 'graderRetries' | 'graderMemoryMb'>;
type PartsSettings = PolicySettings &
  GraderSettings &
  Pick<RunSettings, 'entry' | 'limits' | 'workflowWorkers' | 'trainable' | 'maxErrorShare' | 'workers'> &
  Partial<Pick<TrainSettings, 'turnDiscount'> & Pick<EvaluationSettings, 'temperature' | 'agentTemperature'>>;

interface Opening {
  readonly finish: AbortSignal;
  readonly stop?: AbortSignal;
  readonly watchStalls?: boolean;
  readonly through?: { readonly engine?: (engine: Engine) => Engine };
}

/** For a training. There is no step to finish yet, so `finish` aborts the opening too. */
export async function openTraining(
  plan: Pick<TrainPlan, 'settings' | 'entry' | 'kernels'>,
  warn: Warn,
  options: Opening,
): Promise<RunParts> {
  const { settings, entry, kernels } = plan;
  const { stop, finish, through, watchStalls } = options;
  const begun = new AbortController();
  if (stop !== undefined) abortWith(begun, stop);
  const interrupt = (): void => begun.abort(new TrainyardError('CANCELLED', 'interrupted before the run began'));
  if (finish.aborted) interrupt();
  finish.addEventListener('abort', interrupt);
  const files = { ...hiddenFiles(settings), run: settings.run };
  const own = { stop: begun.signal, warn, kernels, engine: through?.engine, files, watchStalls, trains: true };
  return openParts(settings, entry, own).finally(() => finish.removeEventListener('abort', interrupt));
}

export async function openParts(settings: PartsSettings, entry: Entry, options: PartsOptions): Promise<RunParts> {
  const { stop, kernels, engine = (own: Engine) => own, observer, files = { tasks: [] }, isWorker = false } = options;
  const warn: Warn = (...told) => outsideRollout(() => options.warn(...told));
  const { model, seed, limits, trainable, turnDiscount, maxErrorShare, workers } = settings;
  checkTrainable(entry, trainable);
  if (options.trains) checkTrains(entry, trainable);
  return await openingWith<RunParts>(async (opened) => {
    const downtime = new Downtime();
    const first = new FirstAnswer(policyName(settings), downtime, warn);
    opened.defer(() => first.end());
    // Weights that travel to workers are loaded and saved.
    const use = options.trains || isWorker || workers !== undefined ? 'training' : 'sampling';
    const policy = opened.use(options.again?.policy ?? (await openSampled(settings, { warn, stop, kernels, downtime, use })));
    const { trainer, server, sampled } = policy;
    const restore = async (): Promise<void> => {
      await loadFirst(trainer!, model);
      await trainer!.publish(0);
    };
    const recovery = trainer === undefined || server === undefined ? undefined : new Recovery(warn, restore, downtime);
    const { signal, release } = linkSignals(stop, first.fatal, ...(recovery === undefined ? [] : [recovery.fatal]));
    opened.defer(release);
    const grades = isWorker ? undefined : entry.grader;
    const grader = grades && opened.use(await openGrader(settings, grades, entry.graderModule, stop));
    if (grader && 'warning' in grader) warn('UNKILLABLE_GRADER', grader.warning);
    const module = entry.workflowModule ?? entry.flowModule;
    const folder = 'engine' in sampled ? { model } : {};
    const isolation = {
      module,
      ...folder,
      workers: settings.workflowWorkers,
      signal: stop,
      files,
      sources: sourcesOfModule(module),
    };
    const answering =
      'engine' in sampled
        ? { ...sampled, engine: first.ofEngine(through(sampled.engine, engine, recovery)) }
        : first.ofServer(sampled);
    const gateway = new Gateway({ ...answering, modelName: 'policy', ...defined({ recorded: options.again?.recorded }) });
    const grading = grader && withPolicy(grader, entry.grader!, { sessions: gateway, seed, signal });
    const started =
      workers !== undefined && !isWorker
        ? { workflow: entry.workflow }
        : opened.use(await startWorkflow(entry.workflow, isolation, { gateway, grader: grading, isWorker }));
    // Elsewhere nobody could read them.
    if (files.run !== undefined) opened.use(catchPrints());
    if (options.watchStalls) opened.use(watchEventLoop({ warn: (message) => warn('EVENT_LOOP_BLOCKED', message) }));
    opened.use(await listen(gateway));
    const { workflow, runWorkflow, concurrency }: Pick<StartedWorkflow, 'workflow'> & Partial<StartedWorkflow> = started;
    const tracing = await tracingOf(settings);
    if (tracing !== undefined) opened.use(tracing);
    const parts = {
      trainable,
      observer,
      sessions: gateway,
      grader: grading,
      graderInput,
      turnDiscount,
      limits,
      seed,
      downtime,
      signal,
      workflow,
      ...defined({ runWorkflow }),
      concurrency,
      tracing,
      clock: { now: Date.now },
      ungraded: isWorker,
    };
    return {
      policy,
      recovery,
      at: defined({ server }),
      start: { model: policy.name, ...defined({ server, plan: planToTell(policy) }) },
      entryName: typeof settings.entry === 'string' ? settings.entry : entry.workflow.name,
      rolloutsInto: (store, artifacts, place) =>
        // A worker makes the trace of its rollouts.
        rolloutsOf(
          { ...parts, store, artifacts, place, tracing: place ? undefined : tracing },
          warn,
          new FailureBudget(maxErrorShare),
          options.trains,
          files.run,
        ),
      rollout: async (spec, kept) => {
        const { signal: both, release: unlink } = linkSignals(signal, kept.signal);
        return await runRollout({ ...parts, ...kept, signal: both }, spec).finally(unlink);
      },
      [Symbol.asyncDispose]: () => opened[Symbol.asyncDispose](),
    };
  }).catch((thrown: unknown) => {
    // The part being opened reports that it was closed; the reason for the stop is what counts.
    throw stop.aborted ? stop.reason : thrown;
  });
}

/** Undefined unless the optional peer is installed. */
async function tracingOf({ model, engine }: PolicySettings) {
  const opened = await import('../integrations/opentelemetry.ts').catch((thrown: NodeJS.ErrnoException) => {
    if (thrown.code !== 'ERR_MODULE_NOT_FOUND') throw thrown;
  });
  if (isApi(engine)) return opened?.openTracing({ model, provider: engine });
  return opened?.openTracing({ model: hubNameOf(model) ?? basename(model), provider: 'trainyard' });
}

function through(own: Engine, wrapped: (engine: Engine) => Engine, recovery: Recovery | undefined): Engine {
  const engine = wrapped(own);
  return recovery?.around(engine) ?? engine;
}

/** How long a first answer may take before it is told, and told again. */
const TELL_MS = 10_000;
/** Longer waits count towards deadlines again: every wait is bounded. */
const LONGEST_FIRST_MS = 1_800_000;
/** Connections that nobody accepted, before any answer. */
const MOST_REFUSALS = 3;
/** A wrong key, no access, a wrong address or name: no call would fare better. */
const WRONG: ReadonlySet<number> = new Set([401, 403, 404]);

/**
 * The wait for the policy's first answer in this run: a server may load or compile a model for minutes. It counts towards no rollout's
 * deadline, and is told. A server that refuses the first call for good ends the run before more is tried.
 */
class FirstAnswer {
  readonly #name: string;
  readonly #downtime: Downtime;
  readonly #warn: Warn;
  readonly #fatal = new AbortController();
  #hasCome = false;
  #calls = 0;
  #refusals = 0;
  #telling: NodeJS.Timeout | undefined;

  constructor(name: string, downtime: Downtime, warn: Warn) {
    this.#name = name;
    this.#downtime = downtime;
    this.#warn = warn;
  }

  get fatal(): AbortSignal {
    return this.#fatal.signal;
  }

  ofEngine(engine: Engine): Engine {
    const sample: Engine['sample'] = (...asked) =>
      this.#hasCome
        ? engine.sample(...asked)
        : this.#wait(
            () => engine.sample(...asked),
            () => true,
          );
    return engineWith(engine, sample);
  }

  ofServer({ model, temperature }: ServedPolicy & { readonly model: ModelServer }): ServedPolicy {
    const ask: typeof fetch = (url, init) =>
      this.#hasCome
        ? fetch(url, init)
        : this.#wait(
            () => fetch(url, init).catch((thrown: unknown) => this.#unreached(thrown)),
            (reply) => this.#isAnswer(reply, model.apiKey),
          );
    return { model: { ...model, fetch: ask }, temperature };
  }

  end(): void {
    if (this.#telling === undefined) return;
    clearInterval(this.#telling);
    this.#telling = undefined;
    this.#downtime.end();
  }

  async #wait<T>(ask: () => Promise<T>, isAnswer: (result: T) => boolean): Promise<T> {
    if (this.#calls++ === 0) this.#begin();
    try {
      const result = await ask();
      this.#hasCome ||= isAnswer(result);
      return result;
    } finally {
      if (--this.#calls === 0 || this.#hasCome) this.end();
    }
  }

  #begin(): void {
    const since = performance.now();
    this.#downtime.begin();
    this.#telling = setInterval(() => {
      const waited = performance.now() - since;
      if (waited > LONGEST_FIRST_MS) return this.end();
      const message = `${this.#name} has not answered its first call yet, after ${Math.round(waited / 1000)} s; the wait counts towards no deadline`;
      this.#warn('WAITING_FOR_POLICY', message);
    }, TELL_MS);
  }

  /** An address where nobody listens, tried a few times. */
  #unreached(thrown: unknown): never {
    const { code } = ((thrown as Error).cause ?? {}) as NodeJS.ErrnoException;
    if ((code === 'ECONNREFUSED' || code === 'ENOTFOUND') && ++this.#refusals >= MOST_REFUSALS) {
      const hint = 'is the server running? check --base-url';
      this.#fatal.abort(new TrainyardError('POLICY_UNREACHABLE', `${this.#name} cannot be reached (${code})`, hint));
    }
    throw thrown;
  }

  #isAnswer({ ok, status }: Response, apiKey: string | undefined): boolean {
    if (WRONG.has(status)) {
      const key = apiKey ? 'it does not accept the key' : 'it wants a key, and none was set';
      const found = `${this.#name} answered ${status} to the first call: ${status === 404 ? 'there is no such model or address' : key}`;
      const hint =
        'check --base-url (of OpenAI-compatible servers it usually ends in /v1), --model, and the variable that --api-key-env names';
      this.#fatal.abort(new TrainyardError('POLICY_REFUSED', found, hint));
    }
    return ok;
  }
}

/** Throws NO_SIGNAL if it is certain that no role would be trained, before anything is spent. */
function checkTrains({ workflow }: Entry, trainable: readonly string[] | undefined): void {
  const { roles, othersTrainable = true } = workflow;
  const isTrained = trainable?.length ?? Object.values(roles).some((role) => role.trainable);
  // Without a name, ctx.model() is the role `default`. Others may still turn up if roles that are not listed are trained.
  if (isTrained || (othersTrainable && !Object.hasOwn(roles, 'default'))) return;
  const found = `no role of the workflow is trainable: ${Object.keys(roles).join(', ') || 'none is listed, and others are not trained'}`;
  throw new TrainyardError('NO_SIGNAL', found, 'make one of them trainable, in the workflow or with --trainable');
}

function checkTrainable({ workflow }: Entry, trainable: readonly string[] = []): void {
  const declared = Object.keys(workflow.roles);
  const unknown = trainable.filter((role) => !declared.includes(role));
  if (declared.length === 0 || unknown.length === 0) return;
  throw new TrainyardError(
    'USAGE',
    `the workflow has no role ${unknown.join(', ')}; its roles are ${declared.join(', ')}`,
    'give --trainable roles of the workflow',
  );
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
    throw new TrainyardError('GRADER_INIT_FAILED', found, `set ${missing} where the run is started`);
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
