/**
 * Training, from tasks to a better policy. Read this file first. Each step runs groups of rollouts until enough have signal, turns rewards
 * into advantages per group and turns into samples, and takes one gradient and one optimizer update. The checkpoint is on disk before
 * manifest and version are committed, and the version is committed before it is served. So even after a kill, a trajectory is trained at
 * most once, and every served version can be restored.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Store } from '../core/contracts.ts';
import { type Best, type Emit, type Phase, type RunEnding, type Score, type Warn, warnBy } from '../core/events.ts';
import type { Engine } from '../core/policy.ts';
import { HeldOut, heldOutFileOf, unusualIn } from '../evaluation/evaluate.ts';
import { meansOf, rolloutReport, trajectoriesOf } from '../evaluation/results.ts';
import { nothingTrainable } from '../rollout/budget.ts';
import { START } from '../rollout/scheduler.ts';
import { createRunDirectory, eventLog, type RunDirectory, reopenRunDirectory } from '../run/directory.ts';
import { coordinatorOf, type ExternalWorkers } from '../run/external-workers.ts';
import { openTraining, type RunParts } from '../run/parts.ts';
import { planResumedTraining, planTraining, type ResumeRequest, type TrainPlan, withLoss } from '../run/plan.ts';
import type { Rollouts } from '../run/rollouts.ts';
import { openRunStore } from '../run/run-store.ts';
import type { TrainFromRequest, TrainRequest, TrainSettings } from '../settings/check-settings.ts';
import { learningRateAt } from '../settings/settings.ts';
import { AgreementBound } from './agreement.ts';
import { type CuratedBatch, extentOf, groupSource, withoutMarked, withWayOut } from './groups.ts';
import { endingWithoutSignal, tellNoSignalYet } from './no-signal.ts';
import { batchOf, checkLoss, compared, needsReference, trainableLoss } from './objective.ts';
import { restorePolicy } from './resume.ts';
import { agreementIn, checkpointAt, ONCE, type StepLog, staleRuleAt, takeStep } from './step.ts';

/** Steps in a row without any group with signal that end the training. */
const MOST_WITHOUT_SIGNAL = 3;

export interface TrainResult {
  readonly run: string;
  readonly before: Score | null;
  readonly after: Score | null;
  readonly steps: number;
  readonly checkpoint: string | null;
  readonly best: Best | null;
  readonly ending: RunEnding;
}

export interface TrainOptions {
  /** Ends the run after the current step. */
  readonly finish?: AbortSignal;
  /** Ends the run at once and abandons current rollouts. */
  readonly stop?: AbortSignal;
  /** When the command began, on `performance.now()`'s clock; `seconds` and `maxTime` count from there. */
  readonly since?: number;
  /** Whether to detect and name code that blocks the event loop. */
  readonly watchStalls?: boolean;
  /** Wraps store and engine, for observation or fault injection. */
  readonly through?: { readonly store?: (store: Store) => Store; readonly engine?: (engine: Engine) => Engine };
}

/** Finds all problems with the request before it creates the run directory. */
export async function train(request: TrainRequest | TrainFromRequest, emit?: Emit, options?: TrainOptions): Promise<TrainResult> {
  const plan = await planTraining(request);
  if (plan.settings.warmStart === undefined) return await execute(plan, emit, options);
  const warm = await (await import('./sft.ts')).warmStarted(plan, emit, options);
  return await execute(warm, emit, { ...options, since: performance.now() });
}

export async function resume(request: ResumeRequest, emit?: Emit, options?: TrainOptions): Promise<TrainResult> {
  return await execute(await planResumedTraining(request), emit, options);
}

async function execute(given: TrainPlan, emit: Emit = () => {}, options: TrainOptions = {}): Promise<TrainResult> {
  const { settings, isResumed, record } = given;
  const { since = performance.now(), finish = new AbortController().signal } = options;
  const tell = eventLog(emit);
  const warn = warnBy(tell);
  await using parts = await openTraining(given, warn, { ...options, finish });
  await using directory = await (isResumed ? reopenRunDirectory(settings.run) : createRunDirectory(settings.run, record));
  await using opened = await openRunStore(directory, settings.store);
  const store = options.through?.store?.(opened) ?? opened;
  return await tell.during(directory, async () => {
    for (const { code, message } of given.warnings) warn(code, message);
    const check = (one: TrainSettings) => (parts.recovery ?? ONCE).step(() => checkLoss(parts.policy.trainer!, one));
    const loss = await trainableLoss(check, given, warn);
    const plan = loss === settings.loss ? given : withLoss(given, loss);
    if (plan !== given) await directory.keep(plan.record);
    await using coordinator = await coordinatorOf({ ...plan, parts, id: directory.id, warn });
    const log = await stepLog(plan, parts, { directory, store, warn }, coordinator);
    const rollouts = parts.rolloutsInto(store, join(settings.run, 'artifacts'), coordinator);
    const result = await learn({ plan, parts, log, rollouts, finish, since, tell });
    if (coordinator !== undefined) coordinator.isDone = result.ending !== 'interrupted';
    tell({ type: 'done', ...result, ...parts.at, ...unusualIn(settings), seconds: (performance.now() - since) / 1000 });
    return result;
  });
}

/** Also saves held-out tasks that have no file, and freezes the reference policy of a loss. */
async function stepLog(
  { settings, heldOut, identity }: TrainPlan,
  { policy: { trainer }, recovery }: RunParts,
  kept: { readonly directory: RunDirectory; readonly store: Store; readonly warn: Warn },
  coordinator: ExternalWorkers | undefined,
): Promise<StepLog> {
  const heldOutFile = heldOutFileOf(settings);
  if (heldOutFile !== undefined) await writeFile(heldOutFile, heldOut.map((task) => `${JSON.stringify(task)}\n`).join(''));
  const work = recovery ?? ONCE;
  const bound = new AgreementBound(await kept.store.manifests());
  const log: StepLog = { trainer: coordinator?.around(trainer!) ?? trainer!, work, settings, identity, bound, ...kept };
  if (needsReference(settings)) await work.step(() => log.trainer.freezeReference());
  if (recovery !== undefined) recovery.restore = () => restorePolicy(log);
  return log;
}

interface Training {
  readonly plan: TrainPlan;
  readonly parts: RunParts;
  readonly log: StepLog;
  readonly rollouts: Rollouts;
  readonly finish: AbortSignal;
  readonly since: number;
  readonly tell: Emit;
}

async function learn(training: Training): Promise<TrainResult> {
  const { plan, log, rollouts, tell, finish: halt } = training;
  const { settings, entry, heldOut: tasks } = plan;
  const from = await begin(training);
  const progress = (phase: Phase, done = 0, of = 0): void =>
    tell({ type: 'progress', phase, done, of, sampledTokens: rollouts.sampledTokens });
  const heldOut = new HeldOut({ settings, rollouts, tell, halt, tasks, onProgress: progress.bind(null, 'evaluating') });
  await heldOut.recall(log.store, from.step);
  if (plan.isResumed && from.step === 0) await heldOut.refuseFailedStart(log.store, settings.maxErrorShare);
  const scheduler = await groupSource(training, from, progress.bind(null, 'rolling-out'));
  const before = await heldOut.full('before', 0);
  const trained = { model: training.parts.policy.name, workflow: entry.workflow };
  let step = from.step;
  let tries: CuratedBatch[] = [];
  let ending = await assess(step, training, heldOut);
  try {
    while (ending === undefined) {
      const start = performance.now();
      const groups = await withoutMarked(await scheduler.take(), log.store, (group) => compared(group, settings));
      const rolloutSeconds = (performance.now() - start) / 1000;
      const trajectories = trajectoriesOf(groups.groups);
      const stale = staleRuleAt(step, settings);
      const batch = batchOf(trajectories, settings, stale);
      if (batch.trainedTokens === 0) {
        if (trajectories.length > 0 && step === 0) throw nothingTrainable(trajectories);
        if (scheduler.isExhausted) ending = step > 0 ? 'rollouts' : endingWithoutSignal([groups], trained, step);
        else tellNoSignalYet(groups, entry, tell);
        if (tries.push(groups) >= MOST_WITHOUT_SIGNAL && !settings.from) ending ??= endingWithoutSignal(tries, trained, step);
        continue;
      }
      tries = [];
      step++;
      const learningRate = learningRateAt(step, settings);
      const means = meansOf(trajectories);
      const { excluded } = groups;
      const isCompared = settings.from === undefined || (step === 1 && scheduler.isSameModel === true);
      const best = heldOut.best?.step;
      const next = { step, batch, isCompared, excluded, stale, learningRate, groups: scheduler.position, means, best };
      const published = (): void => scheduler.published(next.step);
      const { loss, gradNorm, metrics, trainSeconds, saveSeconds } = await takeStep(log, next, progress, published);
      tell({
        type: 'step-end',
        step,
        policyVersion: step,
        loss,
        ...(gradNorm !== undefined && { gradNorm }),
        ...agreementIn(metrics),
        ...rolloutReport(groups, stale),
        trainedTokens: batch.trainedTokens,
        rolloutSeconds,
        trainSeconds,
        saveSeconds,
      });
      ending = (await assess(step, training, heldOut)) ?? (scheduler.isExhausted ? 'rollouts' : undefined);
    }
  } catch (thrown) {
    throw withWayOut(thrown, settings.run);
  } finally {
    await scheduler.close();
  }
  const checkpoint = await checkpointAt(log, step);
  const after = ending === 'interrupted' ? null : await heldOut.full('after', step);
  if (after === null && tasks.length > 0) ending = 'interrupted';
  const chosen = heldOut.recommended(step);
  const best = chosen === undefined ? null : { ...chosen, checkpoint: log.directory.checkpointPath(chosen.step) };
  return { run: settings.run, before, after, steps: step, checkpoint, best, ending };
}

/** Starts at the first step, or after the last committed one. */
async function begin({ plan, parts, log, tell }: Training) {
  const { run, seed, steps, from: source } = plan.settings;
  const { isResumed, record, tasks, heldOut } = plan;
  const from = isResumed ? await log.work.step(() => restorePolicy(log)) : { step: 0, groups: START };
  if (isResumed) await log.directory.keep(record);
  const sizes = { seed, steps, tasks: tasks.length, heldOut: heldOut.length, ...extentOf(plan, from.step) };
  tell({ type: 'run-start', run, entry: parts.entryName, ...parts.start, ...sizes, ...(source && { from: source }) });
  return from;
}

/** After a step: runs a due evaluation, saves a checkpoint if it is the best so far, and returns why the run ends, if it does. */
async function assess(step: number, training: Training, heldOut: HeldOut): Promise<RunEnding | undefined> {
  const { log, finish, since, rollouts } = training;
  await heldOut.onTheWay(step);
  if (heldOut.best?.step === step) await checkpointAt(log, step);
  const { steps, maxTime = Infinity, maxTokens = Infinity } = log.settings;
  if (finish.aborted) return 'interrupted';
  if (step >= steps) return 'steps';
  if (heldOut.outOfPatience) return 'patience';
  if (performance.now() - since > maxTime * 1000) return 'max-time';
  return rollouts.sampledTokens >= maxTokens ? 'max-tokens' : undefined;
}
