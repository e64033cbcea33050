/**
 * Measures a policy with an agent on held-out tasks, as an evaluation of its own or before, during and after training. Every rollout is
 * stored before it counts, so an interrupted evaluation resumes with the same result. Acknowledged rollouts never run or get graded again,
 * unless they failed and a retry is requested.
 */
import { join } from 'node:path';
import { mapConcurrently } from '../core/async.ts';
import type { Store } from '../core/contracts.ts';
import { shortLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { type Best, type Emit, type EvaluationReport, type Score, type Unusual, warnBy } from '../core/events.ts';
import { defined } from '../core/json.ts';
import { meanOf, signFlipChance } from '../core/statistics.ts';
import { isSuccess } from '../core/turns.ts';
import type { Message, Task, Trajectory } from '../core/types.ts';
import { policyName } from '../engines/open-policy.ts';
import { createRunDirectory, eventLog, reopenRunDirectory } from '../run/directory.ts';
import { coordinatorOf, type ExternalWorkers } from '../run/external-workers.ts';
import { openParts, type RunParts } from '../run/parts.ts';
import {
  type EvaluationPlan,
  type EvaluationResumeRequest,
  type NumberedTask,
  planEvaluation,
  planResumedEvaluation,
} from '../run/plan.ts';
import type { Rollouts } from '../run/rollouts.ts';
import { openRunStore } from '../run/run-store.ts';
import type { EvaluationRequest, EvaluationSettings, TrainSettings } from '../settings/check-settings.ts';
import { EVAL_DEFAULTS } from '../settings/setting-rows.ts';
import { costOf, hiddenFiles, plannedFor, samplingAt, shortPath, usualHeldOut } from '../settings/settings.ts';
import { writeWhole } from '../store/files.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { withoutPassword } from '../store/url.ts';
import { endingOf, type Pending, Results, reportOf, scoreOf, type TaskResult } from './results.ts';

export interface EvaluationResult extends EvaluationReport {
  /** Null if nothing is kept. */
  readonly run: string | null;
  readonly tasks: readonly TaskResult[];
}

export interface EvaluationOptions {
  /** Whether to detect and name code that blocks the event loop. */
  readonly watchStalls?: boolean;
  /** Starts no further rollouts, lets those in flight end, then throws CANCELLED. */
  readonly finish?: AbortSignal;
  /** Runs failed rollouts again under new ids. The failed ones are kept but no longer count. */
  readonly retryFailed?: boolean | undefined;
}

/** Without a `run` directory, nothing is kept. */
export async function evaluateOnly(
  request: EvaluationRequest,
  emit?: Emit,
  stop?: AbortSignal,
  options?: EvaluationOptions,
): Promise<EvaluationResult> {
  return await execute(await planEvaluation(request), emit, stop, options);
}

/** Resumes an evaluation. A finished one is only reported again. */
export async function resumeEvaluation(
  request: EvaluationResumeRequest,
  emit?: Emit,
  stop?: AbortSignal,
  options?: EvaluationOptions,
): Promise<EvaluationResult> {
  return await execute(await planResumedEvaluation(request), emit, stop, options);
}

interface Evaluation {
  readonly plan: EvaluationPlan;
  readonly results: Results;
  readonly store: Store;
  readonly tell: Emit;
  readonly coordinator: ExternalWorkers | undefined;
  readonly finish: AbortSignal | undefined;
}

/** A new evaluation creates its directory only after everything opened; a resumed one opens nothing if nothing is left to do. */
async function execute(
  plan: EvaluationPlan,
  emit: Emit = () => {},
  stop: AbortSignal = new AbortController().signal,
  { watchStalls, retryFailed = false, finish }: EvaluationOptions = {},
): Promise<EvaluationResult> {
  const tell = eventLog(emit, 'eval');
  const warn = warnBy(tell);
  const { settings, entry, kernels, isResumed, record } = plan;
  const { run, n } = settings;
  const results = new Results(plan.tasks, n);
  const files = { ...hiddenFiles(settings), run };
  const opening = (): Promise<RunParts> => openParts(settings, entry, { stop, warn, kernels, watchStalls, files });
  await using early = isResumed ? undefined : await opening();
  const held = { trains: false };
  await using directory =
    run === undefined ? undefined : await (isResumed ? reopenRunDirectory(run, held) : createRunDirectory(run, record, held));
  await using store = await (directory === undefined ? openSqliteStore(':memory:') : openRunStore(directory, settings.store));
  const work = async (): Promise<EvaluationResult> => {
    for (const { code, message } of plan.warnings) warn(code, message);
    if (isResumed) await results.recall(store);
    const pending = results.pending(retryFailed);
    await using late = isResumed && pending.length > 0 ? await opening() : undefined;
    const parts = early ?? late;
    await using coordinator = parts && (await coordinatorOf({ ...plan, parts, id: directory?.id, warn }));
    const measured = await measure({ plan, results, store, tell, finish, coordinator }, pending, parts);
    if (coordinator !== undefined) coordinator.isDone = true;
    return measured;
  };
  return await (directory === undefined ? work() : tell.during(directory, work));
}

async function measure(
  evaluation: Evaluation,
  pending: readonly Pending[],
  parts: RunParts | undefined,
): Promise<EvaluationResult> {
  const { plan, results, tell } = evaluation;
  const { settings, tasks } = plan;
  const { n: perTask, temperature, seed } = settings;
  const run = settings.run ?? null;
  const started = performance.now();
  const entry = typeof settings.entry === 'string' ? shortPath(settings.entry) : settings.entry.workflow.name;
  const policy = parts?.start ?? { model: policyName(settings) };
  const resumed = plan.isResumed ? { resumedAt: results.done } : { planned: plannedFor(tasks.length * perTask, settings) };
  const sampling = { temperature, ...defined({ agentTemperature: settings.agentTemperature }) };
  tell({ type: 'eval-start', run, entry, ...policy, seed, tasks: tasks.length, perTask, ...sampling, ...resumed });
  if (parts !== undefined) await runAll(evaluation, pending, parts);
  const measured = reportOf(results.byTask(), settings);
  if (run !== null) await writeWhole(join(run, 'metrics.json'), `${JSON.stringify(measured, null, 2)}\n`);
  const report = withCost(measured, settings);
  const seconds = (performance.now() - started) / 1000;
  const { success, ci, meanReward, n, failed, ungraded } = report;
  const score = { success, ci, meanReward, n, failed, ungraded, ...defined({ parts: report.parts, metrics: report.metrics }) };
  tell({ type: 'eval-end', when: 'only', step: 0, score, temperature, seconds });
  await showTranscripts(evaluation);
  tell({ type: 'done', run, ...report, seconds, ...defined({ store: shownStore(settings) }) });
  return { ...report, run, tasks: results.byTask() };
}

/** Not part of what is kept and verified: prices may change. */
function withCost(report: EvaluationReport, { price }: EvaluationSettings): EvaluationReport {
  const { calls } = report;
  const cost = calls && costOf(price, calls.promptTokens, calls.completionTokens);
  return cost === undefined ? report : { ...report, calls: { ...calls!, cost } };
}

/** Stops at the first error, such as a dead server or a spent budget, and leaves the rest for a resume. */
async function runAll(
  { plan: { settings }, results, store, tell, finish, coordinator }: Evaluation,
  pending: readonly Pending[],
  parts: RunParts,
): Promise<void> {
  const artifacts = settings.run === undefined ? undefined : join(settings.run, 'artifacts');
  const rollouts = parts.rolloutsInto(store, artifacts, coordinator);
  const sampling = samplingAt(settings.temperature, settings);
  let done = 0;
  let failed = 0;
  const one = async ({ identity, task }: Pending): Promise<void> => {
    const trajectory = await rollouts.run(identity, task, sampling);
    results.add(trajectory);
    if (endingOf(trajectory) === 'failed') failed++;
    const { sampledTokens } = rollouts;
    tell({ type: 'progress', phase: 'evaluating', done: ++done, of: pending.length, failed, sampledTokens });
  };
  const all = await mapConcurrently(pending, settings.concurrency, one, finish);
  if (all === undefined) throw new TrainyardError('CANCELLED', 'interrupted');
  rollouts.settle();
}

async function showTranscripts({ plan: { settings }, results, store, tell }: Evaluation): Promise<void> {
  if (settings.transcripts === 0) return;
  const ids = results.byTask().flatMap(({ rollouts }) => rollouts.map(({ rolloutId }) => rolloutId));
  for (const id of ids.slice(0, settings.transcripts)) {
    const trajectory = await store.read(id);
    if (trajectory !== undefined) tell({ type: 'transcript', when: 'only', ...transcriptOf(trajectory) });
  }
}

type When = 'before' | 'during' | 'after';
type Measured = Omit<Best, 'checkpoint'>;

interface HeldOutOptions {
  readonly tasks: readonly Task[];
  readonly settings: Pick<
    TrainSettings,
    'concurrency' | 'callTokens' | 'evalEvery' | 'evalTasks' | 'patience' | 'transcripts' | 'steps'
  >;
  readonly rollouts: Rollouts;
  readonly tell: Emit;
  readonly onProgress: (done: number, of: number) => void;
  readonly halt: AbortSignal;
}

/**
 * The held-out evaluations of a training run: all tasks before and after, a subset every few steps, each once at temperature 0. Steps are
 * compared on that subset; among equals, the later one wins. The best checkpoint is kept, but the last is recommended unless it is
 * significantly worse, because the maximum of several scores is biased upwards. A resumed run reads all of this back from the store.
 */
export class HeldOut {
  readonly #options: HeldOutOptions;
  readonly #all: readonly NumberedTask[];
  readonly #some: readonly NumberedTask[];
  /** By step: for each task of the subset, 1 if solved, else 0. */
  readonly #solved = new Map<number, readonly number[]>();

  constructor(options: HeldOutOptions) {
    this.#options = options;
    this.#all = numbered(options.tasks);
    this.#some = spread(this.#all, options.settings.evalTasks);
  }

  /** The best step so far. Undefined before the first evaluation. */
  get best(): Measured | undefined {
    const measured = Array.from(this.#solved, ([step, solved]) => ({ step, success: meanOf(solved) }));
    return measured.toSorted((a, b) => a.success - b.success).at(-1);
  }

  /** The step whose model to use: the last, unless the best is significantly better or the last was not measured. */
  recommended(last: number): Measured | undefined {
    const { best } = this;
    const solved = this.#solved.get(last);
    if (best === undefined || solved === undefined) return best;
    const differences = this.#solved.get(best.step)!.map((one, i) => one - solved[i]!);
    return signFlipChance(differences) < 0.05 ? best : { step: last, success: meanOf(solved) };
  }

  /** Whether the last `patience` evaluations were no better than an earlier one. */
  get outOfPatience(): boolean {
    const { patience } = this.#options.settings;
    const successes = [...this.#solved].flatMap(([step, solved]) => (this.#isDue(step) ? [meanOf(solved)] : []));
    if (patience === 0 || successes.length <= patience) return false;
    return Math.max(...successes.slice(-patience)) <= Math.max(...successes.slice(0, -patience));
  }

  /**
   * Throws RESUME_IMPOSSIBLE if the evaluation before training was ended by its failures. They are kept and would count as not solved, so a
   * run resumed after a fix would report a false score before training, and a false gain.
   */
  async refuseFailedStart(store: Store, maxErrorShare: number): Promise<void> {
    const kept = await Promise.all(this.#all.map(({ number }) => store.read(evaluationId(0, number))));
    const whole = kept.filter((trajectory) => trajectory !== undefined);
    const failed = whole.filter((trajectory) => endingOf(trajectory) === 'failed');
    const ungraded = failed.filter(({ grade }) => grade.kind === 'failed');
    if (ungraded.length <= maxErrorShare * whole.length && failed.length - ungraded.length <= whole.length / 2) return;
    const message = `${failed.length} of ${whole.length} rollouts of the evaluation before training failed: its score would be false`;
    throw new TrainyardError('RESUME_IMPOSSIBLE', message, 'nothing was trained yet: begin a new run');
  }

  /** Evaluates all tasks. Null if there are none or it was halted. */
  async full(when: 'before' | 'after', step: number): Promise<Score | null> {
    if (this.#all.length === 0) return null;
    const trajectories = await this.#evaluate(this.#all, when, step);
    if (trajectories === undefined) return null;
    if (when === 'after' && step > 0) this.#note(step, trajectories);
    for (const trajectory of trajectories.slice(0, this.#options.settings.transcripts)) {
      this.#options.tell({ type: 'transcript', when, ...transcriptOf(trajectory) });
    }
    return scoreOf(trajectories);
  }

  /** Evaluates the subset if due after this step. The last step is covered by the evaluation after training. */
  async onTheWay(step: number): Promise<void> {
    if (!this.#isDue(step) || this.#solved.has(step)) return;
    const trajectories = await this.#evaluate(this.#some, 'during', step);
    if (trajectories !== undefined) this.#note(step, trajectories);
  }

  /**
   * Reads evaluations up to this step back from the store; incomplete ones will run again. If a run is extended, this includes the one
   * after its former last step, which may have been the best, so that its checkpoint stays.
   */
  async recall(store: Store, step: number): Promise<void> {
    const [first] = this.#some;
    if (first === undefined) return;
    for (let earlier = 1; earlier <= step; earlier++) {
      if ((await store.read(evaluationId(earlier, first.number))) === undefined) continue;
      const kept = await Promise.all(this.#some.map(({ number }) => store.read(evaluationId(earlier, number))));
      const whole = kept.filter((trajectory) => trajectory !== undefined);
      if (whole.length === kept.length) this.#note(earlier, whole);
    }
  }

  #isDue(step: number): boolean {
    const { evalEvery, steps } = this.#options.settings;
    return this.#all.length > 0 && evalEvery > 0 && step > 0 && step < steps && step % evalEvery === 0;
  }

  #note(step: number, trajectories: readonly Trajectory[]): void {
    const compared = new Set(this.#some.map(({ number }) => evaluationId(step, number)));
    const solved = trajectories.flatMap((one) => (compared.has(one.rolloutId) ? [isSuccess(one) ? 1 : 0] : []));
    this.#solved.set(step, solved);
  }

  /** Trajectories in task order. Undefined if halted. */
  async #evaluate(tasks: readonly NumberedTask[], when: When, step: number): Promise<readonly Trajectory[] | undefined> {
    const { rollouts, settings, tell, onProgress, halt } = this.#options;
    const started = performance.now();
    const sampling = samplingAt(0, settings);
    let done = 0;
    const one = async ({ task, number }: NumberedTask): Promise<Trajectory> => {
      const rolloutId = evaluationId(step, number);
      const trajectory = await rollouts.run({ rolloutId, groupId: rolloutId, purpose: 'eval' }, task, sampling);
      onProgress(++done, tasks.length);
      return trajectory;
    };
    const trajectories = await mapConcurrently(tasks, settings.concurrency, one, halt);
    if (trajectories === undefined) return undefined;
    rollouts.settle();
    const seconds = (performance.now() - started) / 1000;
    tell({ type: 'eval-end', when, step, score: scoreOf(trajectories), seconds });
    return trajectories;
  }
}

export function numbered(tasks: readonly Task[]): readonly NumberedTask[] {
  return tasks.map((task, index) => ({ task, number: index + 1 }));
}

/** Based on the number of steps: one policy is evaluated once per task. */
export function evaluationId(step: number, number: number): string {
  return `e${String(step).padStart(6, '0')}-${String(number).padStart(5, '0')}`;
}

/** Evenly spaced, because a task file may be sorted. */
export function spread<T>(items: readonly T[], count: number): readonly T[] {
  if (count >= items.length) return items;
  return Array.from({ length: count }, (_, i) => items[Math.floor((i * items.length) / count)] as T);
}

/** Characters. */
const LONGEST_LINE = 200;

function transcriptOf({ taskId, turns, grade }: Trajectory) {
  // Prefers the trained conversation: a judge may have spoken last.
  const last = turns.findLast(({ trainable }) => trainable) ?? turns.at(-1);
  const messages = last === undefined ? [] : [...last.request.messages, last.response];
  const lines = messages.filter(({ role }) => role !== 'system').flatMap(linesOf);
  return { taskId, lines, reward: grade.kind === 'graded' ? grade.reward.value : null };
}

function linesOf({ role, content, tool_calls: calls = [] }: Message): string[] {
  const said = [...(content ? [content] : []), ...calls.map((call) => `${call.function.name}(${call.function.arguments})`)];
  return said.map((text) => shortLine(`${role}: ${text}`, LONGEST_LINE));
}

/** Where a run keeps held-out tasks that were split off or given as values, to measure its models again. Undefined if none were. */
export function heldOutFileOf({ run, heldOut, split }: Pick<TrainSettings, 'run' | 'heldOut' | 'split'>): string | undefined {
  return split !== undefined || typeof heldOut === 'object' ? join(run, 'held-out.jsonl') : undefined;
}

/** Settings that differ from the defaults and are needed to repeat the measurement. */
const shownStore = ({ store }: Pick<TrainSettings, 'store'>): string | undefined => store && withoutPassword(store);

export function unusualIn(settings: TrainSettings): Unusual {
  const { flow, flows, entry, trainable, limits } = settings;
  const heldOut = heldOutFileOf(settings) ?? settings.heldOut;
  return defined({
    flow,
    flows,
    trainable,
    store: shownStore(settings),
    heldOut: typeof heldOut === 'string' && heldOut !== usualHeldOut(entry) ? heldOut : undefined,
    turns: limits.turns === EVAL_DEFAULTS.limits.turns ? undefined : limits.turns,
  });
}
