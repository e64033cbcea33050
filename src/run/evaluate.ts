/**
 * Evaluation on its own: how good is this policy with this agent on these tasks?
 *
 * Every rollout is in the store before it counts, so an evaluation that was interrupted, killed or stopped by a dead server is resumed where
 * it was, with the same result. What was acknowledged is never run or graded again, unless it failed and that is asked for.
 */
import { join } from 'node:path';
import { mapConcurrently } from '../core/async.ts';
import type { Store } from '../core/contracts.ts';
import type { Emit, EvaluationReport, Warn } from '../core/events.ts';
import { memoryStore } from '../store/memory.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { openingWith } from './closers.ts';
import { createRunDirectory, type EventLog, eventLog, type RunDirectory, reopenRunDirectory, writeWhole } from './directory.ts';
import { type Pending, Results, reportOf, type TaskResult } from './evaluation-results.ts';
import { transcriptOf } from './held-out.ts';
import { openParts, type RunParts } from './parts.ts';
import { type EvaluationPlan, type EvaluationResumeRequest, planEvaluation, planResumedEvaluation } from './plan.ts';
import { type EvaluationRequest, samplingAt, shortPath } from './settings.ts';
import { endingOf } from './signal.ts';

export interface EvaluationResult extends EvaluationReport {
  /** Its directory; null where nothing is kept. */
  readonly run: string | null;
  readonly tasks: readonly TaskResult[];
}

export interface EvaluationOptions {
  /** Whether to find and name what blocks the event loop. */
  readonly watchStalls?: boolean;
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
  return await execute(await planEvaluation(request), emit, stop, options);
}

/** Goes on with an evaluation. One that is finished is only reported again. */
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
  readonly kept: Kept;
  readonly tell: EventLog;
}

/** A new evaluation makes its directory after everything could be opened; a resumed one opens nothing if nothing is left to do. */
async function execute(
  plan: EvaluationPlan,
  emit: Emit = () => {},
  stop: AbortSignal = new AbortController().signal,
  { watchStalls, retryFailed = false }: EvaluationOptions = {},
): Promise<EvaluationResult> {
  const tell = eventLog(emit, 'eval');
  const warn: Warn = (code, message) => tell({ type: 'warning', code, message });
  const { settings, entry, kernels, isResumed } = plan;
  const results = new Results(plan.tasks, settings.n);
  const files = { run: settings.run, tasks: [settings.heldOut] };
  const opening = (): Promise<RunParts> => openParts(settings, entry, { stop, warn, kernels, watchStalls, files });
  await using early = isResumed ? undefined : await opening();
  await using kept = await keep(plan);
  const work = async (): Promise<EvaluationResult> => {
    for (const { code, message } of plan.warnings) warn(code, message);
    if (isResumed) await results.recall(kept.store);
    const pending = results.pending(retryFailed);
    await using late = isResumed && pending.length > 0 ? await opening() : undefined;
    return await measure({ plan, results, kept, tell }, pending, early ?? late);
  };
  return await (kept.directory === undefined ? work() : tell.during(kept.directory, work));
}

/** Where rollouts are kept, and events. */
interface Kept extends AsyncDisposable {
  readonly store: Store;
  readonly directory: RunDirectory | undefined;
}

async function keep({ settings: { run }, isResumed, record }: EvaluationPlan): Promise<Kept> {
  return await openingWith<Kept>(async (closers) => {
    const close = { [Symbol.asyncDispose]: () => closers[Symbol.asyncDispose]() };
    if (run === undefined) return { store: closers.add(memoryStore()), directory: undefined, ...close };
    const held = { trains: false };
    const directory = closers.add(await (isResumed ? reopenRunDirectory(run, held) : createRunDirectory(run, record, held)));
    return { store: closers.add(await openSqliteStore(directory.storePath, directory.id)), directory, ...close };
  });
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
  const policy = { model: parts?.policy.name ?? settings.model, ...parts?.at };
  const resumed = plan.isResumed ? { resumedAt: results.done } : {};
  tell({ type: 'eval-start', run, entry, ...policy, seed, tasks: tasks.length, perTask, temperature, ...resumed });
  if (parts !== undefined) await runAll(evaluation, pending, parts);
  const report = reportOf(results.byTask(), settings);
  if (run !== null) await writeWhole(join(run, 'metrics.json'), `${JSON.stringify(report, null, 2)}\n`);
  const seconds = (performance.now() - started) / 1000;
  const { success, ci, meanReward, n, failed, ungraded, parts: ofRewards, metrics } = report;
  const named = { ...(ofRewards && { parts: ofRewards }), ...(metrics && { metrics }) };
  const score = { success, ci, meanReward, n, failed, ungraded, ...named };
  tell({ type: 'eval-end', when: 'only', step: 0, score, temperature, seconds });
  await showTranscripts(evaluation);
  tell({ type: 'done', run, ...report, seconds });
  return { ...report, run, tasks: results.byTask() };
}

/** The first error, a dead server or a spent budget say, begins no more of them: the rest is left for later. */
async function runAll(
  { plan: { settings }, results, kept, tell }: Evaluation,
  pending: readonly Pending[],
  parts: RunParts,
): Promise<void> {
  const artifacts = settings.run === undefined ? undefined : join(settings.run, 'artifacts');
  const rollouts = parts.rolloutsInto(kept.store, artifacts);
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

async function showTranscripts({ plan: { settings }, results, kept, tell }: Evaluation): Promise<void> {
  if (settings.transcripts === 0) return;
  const ids = results.byTask().flatMap(({ rollouts }) => rollouts.map(({ rolloutId }) => rolloutId));
  for (const id of ids.slice(0, settings.transcripts)) {
    const trajectory = await kept.store.read(id);
    if (trajectory !== undefined) tell({ type: 'transcript', when: 'only', ...transcriptOf(trajectory) });
  }
}
