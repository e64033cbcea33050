/**
 * Evaluation on its own: how good is this policy with this agent on these tasks?
 *
 * Every rollout is in the store before it counts, so an evaluation that was interrupted, killed or stopped by a dead server is taken up
 * again where it was, and comes to what it would have come to. What was acknowledged is never run or graded again, unless it failed and
 * that is asked for.
 */
import { join } from 'node:path';
import { mapConcurrently } from '../core/async.ts';
import type { Store } from '../core/contracts.ts';
import type { Emit, EvaluationReport, Warn } from '../core/events.ts';
import { memoryStore } from '../store/memory.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { shortPath } from './command-line.ts';
import { writeWhole } from './evaluation-files.ts';
import { type EvaluationPlan, type EvaluationResumeRequest, planEvaluation, planResumedEvaluation } from './evaluation-plan.ts';
import { reportOf } from './evaluation-report.ts';
import { type Pending, Results, type TaskResult } from './evaluation-results.ts';
import type { EvaluationRequest } from './evaluation-settings.ts';
import { createRunDirectory, type RunDirectory, reopenRunDirectory } from './run-directory.ts';
import { samplingAt } from './settings.ts';
import { endingOf } from './signal.ts';
import { type Telling, telling } from './telling.ts';
import type { TrainOptions } from './train.ts';
import { transcriptOf } from './transcript.ts';
import { openWorkshop, type Workshop } from './workshop.ts';

export interface EvaluationResult extends EvaluationReport {
  /** Its directory; null where nothing is kept. */
  readonly run: string | null;
  readonly tasks: readonly TaskResult[];
}

export interface EvaluationOptions extends Pick<TrainOptions, 'watchStalls'> {
  /** Runs failed rollouts again, under new ids; those that failed are kept, and no longer count. */
  readonly retryFailed?: boolean | undefined;
}

/** Without a `run` directory nothing is kept. */
export async function evaluateOnly(
  request: EvaluationRequest,
  emit?: Emit,
  stop?: AbortSignal,
  options?: EvaluationOptions,
): Promise<EvaluationResult> {
  return await execute({ plan: await planEvaluation(request), emit, stop, options });
}

/** Goes on with an evaluation. One that is finished is only reported again. */
export async function resumeEvaluation(
  request: EvaluationResumeRequest,
  emit?: Emit,
  stop?: AbortSignal,
  options?: EvaluationOptions,
): Promise<EvaluationResult> {
  return await execute({ plan: await planResumedEvaluation(request), emit, stop, options });
}

interface Call {
  readonly plan: EvaluationPlan;
  readonly emit: Emit | undefined;
  readonly stop: AbortSignal | undefined;
  readonly options: EvaluationOptions | undefined;
}

async function execute({
  plan,
  emit = () => {},
  stop = new AbortController().signal,
  options = {},
}: Call): Promise<EvaluationResult> {
  const tell = telling(emit, 'eval');
  const warn: Warn = (code, message) => tell({ type: 'warning', code, message });
  const { settings, entry, kernels } = plan;
  const { trainable } = settings;
  const { watchStalls, retryFailed = false } = options;
  const files = { run: settings.run, tasks: [settings.heldOut] };
  const opening = (): Promise<Workshop> => openWorkshop(settings, entry, { stop, warn, kernels, trainable, watchStalls, files });
  if (!plan.isResumed) {
    // Nothing is made before everything could be opened.
    await using workshop = await opening();
    await using journal = await openJournal(plan);
    return await journal.guarding(tell, () => measure({ plan, journal, tell, warn }, { retryFailed, opened: () => workshop }));
  }
  await using journal = await openJournal(plan);
  return await journal.guarding(tell, async () => {
    let workshop: Workshop | undefined;
    const opened = async (): Promise<Workshop> => (workshop ??= await opening());
    try {
      return await measure({ plan, journal, tell, warn }, { retryFailed, opened });
    } finally {
      await workshop?.[Symbol.asyncDispose]();
    }
  });
}

/** Where rollouts are kept, and events. */
interface Journal extends AsyncDisposable {
  readonly store: Store;
  readonly directory: RunDirectory | undefined;
  guarding<T>(tell: Telling, work: () => Promise<T>): Promise<T>;
}

async function openJournal({ settings: { run }, isResumed, record }: EvaluationPlan): Promise<Journal> {
  if (run === undefined) {
    const store = memoryStore();
    return {
      store,
      directory: undefined,
      guarding: (_, work) => work(),
      [Symbol.asyncDispose]: () => store[Symbol.asyncDispose](),
    };
  }
  const held = { trains: false };
  const directory = await (isResumed ? reopenRunDirectory(run, held) : createRunDirectory(run, record, held));
  try {
    const store = await openSqliteStore(directory.storePath, directory.id);
    return {
      store,
      directory,
      guarding: (tell, work) => tell.guarding(directory, work),
      [Symbol.asyncDispose]: async () => {
        await store[Symbol.asyncDispose]();
        await directory[Symbol.asyncDispose]();
      },
    };
  } catch (thrown) {
    await directory[Symbol.asyncDispose]();
    throw thrown;
  }
}

interface Parts {
  readonly plan: EvaluationPlan;
  readonly journal: Journal;
  readonly tell: Telling;
  readonly warn: Warn;
}

async function measure(
  parts: Parts,
  { retryFailed, opened }: { readonly retryFailed: boolean; readonly opened: () => Workshop | Promise<Workshop> },
): Promise<EvaluationResult> {
  const { plan, journal, tell } = parts;
  const { settings, tasks } = plan;
  const { n, temperature, seed } = settings;
  const run = settings.run ?? null;
  const started = performance.now();
  for (const { code, message } of plan.warnings) parts.warn(code, message);
  const results = new Results(tasks, n);
  if (plan.isResumed) await results.recall(journal.store);
  const pending = results.pending(retryFailed);
  const entry = typeof settings.entry === 'string' ? shortPath(settings.entry) : settings.entry.workflow.name;
  const workshop = pending.length === 0 ? undefined : await opened();
  const policy = workshop === undefined ? { model: settings.model } : policyOf(workshop);
  const resumed = plan.isResumed ? { resumedAt: results.done } : {};
  tell({ type: 'eval-start', run, entry, ...policy, seed, tasks: tasks.length, perTask: n, temperature, ...resumed });
  if (workshop !== undefined) await runAll(pending, workshop, parts, results);
  const report = reportOf(results.byTask(), { n, temperature });
  if (run !== null) await writeWhole(join(run, 'metrics.json'), `${JSON.stringify(report, null, 2)}\n`);
  const seconds = (performance.now() - started) / 1000;
  const { success, ci, meanReward, failed, ungraded, parts: partsOf, metrics } = report;
  const named = { ...(partsOf && { parts: partsOf }), ...(metrics && { metrics }) };
  tell({
    type: 'eval-end',
    when: 'only',
    step: 0,
    score: { success, ci, meanReward, n: report.n, failed, ungraded, ...named },
    temperature,
    seconds,
  });
  await showTranscripts(results, parts);
  tell({ type: 'done', run, ...report, seconds });
  return { ...report, run, tasks: results.byTask() };
}

function policyOf({ policy: { name, server } }: Workshop): { readonly model: string; readonly server?: string } {
  return { model: name, ...(server === undefined ? {} : { server }) };
}

/** The first error, a dead server or a spent budget say, begins no more of them: the rest is left for later. */
async function runAll(
  pending: readonly Pending[],
  workshop: Workshop,
  { plan: { settings }, journal, tell }: Parts,
  results: Results,
): Promise<void> {
  const artifacts = settings.run === undefined ? undefined : join(settings.run, 'artifacts');
  const rollouts = workshop.rolloutsInto(journal.store, artifacts);
  const sampling = samplingAt(settings.temperature, settings);
  let [done, failed] = [0, 0];
  await mapConcurrently(pending, settings.concurrency, async ({ identity, task }) => {
    const trajectory = await rollouts.run(identity, task, sampling);
    results.add(trajectory);
    if (endingOf(trajectory) === 'failed') failed++;
    const { sampledTokens } = rollouts;
    tell({ type: 'progress', phase: 'evaluating', done: ++done, of: pending.length, failed, sampledTokens });
  });
  rollouts.settle();
}

async function showTranscripts(results: Results, { plan: { settings }, journal, tell }: Parts): Promise<void> {
  if (settings.transcripts === 0) return;
  const ids = results.byTask().flatMap(({ rollouts }) => rollouts.map(({ rolloutId }) => rolloutId));
  for (const id of ids.slice(0, settings.transcripts)) {
    const trajectory = await journal.store.read(id);
    if (trajectory !== undefined) tell({ type: 'transcript', when: 'only', ...transcriptOf(trajectory) });
  }
}
