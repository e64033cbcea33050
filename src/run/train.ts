/**
 * Training, from tasks to a better policy: the page to read first.
 *
 * Each step: groups of rollouts are run until enough of them have signal; rewards become advantages by group; turns become
 * samples; one gradient, one optimizer update. The checkpoint is on disk before manifest and version are committed, and the
 * version is committed before it is served: whatever is killed when, a trajectory is trained at most once and no version is
 * ever served that could not be found again.
 */
import { join } from 'node:path';
import { linkUntilSettled } from '../core/async.ts';
import type { Store } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Best, Emit, Phase, RunEnding, Score, Warn } from '../core/events.ts';
import type { Engine } from '../core/policy.ts';
import { START } from '../rollout/scheduler.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { AgreementBound } from '../trainer/agreement.ts';
import { curatedHarvest } from './curated-harvest.ts';
import { endingAt, endingWithoutSignal } from './ending.ts';
import { groupsOf } from './groups.ts';
import { HeldOut } from './held-out.ts';
import { keepHeldOut } from './held-out-file.ts';
import { planNew, planResumed, type ResumeRequest, type RunPlan } from './plan.ts';
import { type Resumption, takeUp } from './resume.ts';
import { createRunDirectory, reopenRunDirectory } from './run-directory.ts';
import { learningRateAt, type TrainRequest, unusualIn } from './settings.ts';
import { meansOf, nothingTrainable, rolloutReport, roundWithoutSignal, trajectoriesOf } from './signal.ts';
import { agreementIn, batchOf, checkpointAt, type Ledger, takeStep } from './step.ts';
import { telling } from './telling.ts';
import { openWorkshop, type Rollouts } from './workshop.ts';

/** This many steps in a row without a single group with signal end the training. */
const STALLED_STEPS = 3;

export interface TrainResult {
  /** The run's directory. */
  readonly run: string;
  readonly before: Score | null;
  readonly after: Score | null;
  readonly steps: number;
  /** Folder of the trained model. */
  readonly checkpoint: string | null;
  readonly best: Best | null;
  readonly ending: RunEnding;
}

export interface TrainOptions {
  /** Ends the run after the step in hand. */
  readonly finish?: AbortSignal;
  /** Ends the run at once: rollouts in hand are given up. */
  readonly stop?: AbortSignal;
  /** When the command began, on `performance.now()`'s clock: what `seconds` and `maxTime` count from. */
  readonly since?: number;
  /** Whether to find and name what blocks the event loop. */
  readonly watchStalls?: boolean;
  /** Stand between the run and its parts, to watch them or to disturb them. */
  readonly through?: { readonly store?: (store: Store) => Store; readonly engine?: (engine: Engine) => Engine };
}

/** Runs to the last step. Everything that can be wrong with the call is found before the run directory is made. */
export async function train(request: TrainRequest, emit?: Emit, options?: TrainOptions): Promise<TrainResult> {
  return await execute(await planNew(request), emit, options);
}

/** Goes on with a run that was interrupted, killed or stopped by a budget; also with more `steps` than it was begun with. */
export async function resume(request: ResumeRequest, emit?: Emit, options?: TrainOptions): Promise<TrainResult> {
  return await execute(await planResumed(request), emit, options);
}

async function execute(plan: RunPlan, emit: Emit = () => {}, options: TrainOptions = {}): Promise<TrainResult> {
  const { settings, entry, tasks, heldOut, record, isResumed, kernels } = plan;
  const {
    since = performance.now(),
    through = {},
    finish = new AbortController().signal,
    stop = new AbortController().signal,
  } = options;
  const tell = telling(emit);
  const warn: Warn = (code, message) => tell({ type: 'warning', code, message });
  const { trainable } = settings;
  // Before the run has begun there is nothing to finish.
  const begun = linkUntilSettled(stop, finish, () => new TrainyardError('CANCELLED', 'interrupted before the run began'));
  const { engine } = through;
  await using workshop = await openWorkshop(settings, entry, {
    stop: begun.signal,
    warn,
    kernels,
    engine,
    trainable,
    files: { run: settings.run, tasks: [settings.tasks, settings.heldOut] },
    watchStalls: options.watchStalls,
  });
  begun.settle();
  await using directory = await (isResumed ? reopenRunDirectory(settings.run) : createRunDirectory(settings.run, record));
  await using opened = await openSqliteStore(directory.storePath, directory.id);
  const store = through.store?.(opened) ?? opened;
  const { policy, recovery } = workshop;
  const { trainer } = policy;
  const where = policy.server === undefined ? {} : { server: policy.server };
  const { seed, steps, run } = settings;
  return await tell.guarding(directory, async () => {
    for (const { code, message } of plan.warnings) warn(code, message);
    await keepHeldOut(settings, heldOut);
    if (settings.kl > 0) await recovery.step(() => trainer.freezeReference());
    const bound = new AgreementBound(await store.manifests());
    const ledger: Ledger = { trainer, recovery, directory, store, settings, identity: plan.identity, bound, warn };
    recovery.restore = async () => void (await takeUp(ledger));
    const from = isResumed ? await recovery.step(() => takeUp(ledger)) : { step: 0, groups: START };
    if (isResumed) await directory.keep(record);
    const sizes = { seed, steps, tasks: tasks.length, heldOut: heldOut.length };
    const resumedAt = isResumed ? { resumedAt: from.step } : {};
    tell({ type: 'run-start', run, entry: workshop.entryName, model: policy.name, ...where, ...sizes, ...resumedAt });
    const rollouts = workshop.rolloutsInto(store, join(run, 'artifacts'));
    const progress: Parts['progress'] = (phase, done = 0, of = 0) =>
      tell({ type: 'progress', phase, done, of, sampledTokens: rollouts.sampledTokens });
    const unusual = unusualIn(settings);
    const result = await learn({ plan, ledger, rollouts, from, finish, since, tell, progress });
    tell({ type: 'done', ...result, ...where, ...unusual, seconds: (performance.now() - since) / 1000 });
    return result;
  });
}

interface Parts {
  readonly plan: RunPlan;
  readonly ledger: Ledger;
  readonly rollouts: Rollouts;
  readonly from: Resumption;
  readonly finish: AbortSignal;
  readonly since: number;
  readonly tell: Emit;
  readonly progress: (phase: Phase, done?: number, of?: number) => void;
}

async function learn(parts: Parts): Promise<TrainResult> {
  const { plan, ledger, from, rollouts, progress } = parts;
  const { settings } = plan;
  const onProgress = (done: number, of: number): void => progress('evaluating', done, of);
  const heldOut = new HeldOut({ ...parts, settings, tasks: plan.heldOut, onProgress, halt: parts.finish });
  await heldOut.recall(ledger.store, from.step);
  const before = await heldOut.full('before', 0);
  const scheduler = groupsOf(plan, from, rollouts, (done, of) => progress('rolling-out', done, of));
  let [step, stalled] = [from.step, 0];
  let ending = await assess(step, parts, heldOut);
  try {
    while (ending === undefined) {
      const start = performance.now();
      const harvest = await curatedHarvest(await scheduler.take(), ledger.store);
      const rolloutSeconds = (performance.now() - start) / 1000;
      const batch = batchOf(trajectoriesOf(harvest.groups), settings);
      if (batch.trainedTokens === 0) {
        if (harvest.groups.length > 0) throw nothingTrainable(trajectoriesOf(harvest.groups));
        parts.tell(roundWithoutSignal(harvest));
        if (++stalled === STALLED_STEPS) ending = endingWithoutSignal(harvest);
        continue;
      }
      stalled = 0;
      step++;
      const learningRate = learningRateAt(step, settings);
      const means = meansOf(trajectoriesOf(harvest.groups));
      const { excluded } = harvest;
      const inHand = { step, batch, excluded, learningRate, groups: scheduler.position, means, best: heldOut.best?.step };
      const { loss, gradNorm, metrics, trainSeconds, saveSeconds } = await takeStep(ledger, inHand, progress);
      scheduler.published(step);
      parts.tell({
        ...{ type: 'step-end', step, policyVersion: step, loss, ...(gradNorm !== undefined && { gradNorm }) },
        ...agreementIn(metrics),
        ...rolloutReport(harvest),
        ...{ trainedTokens: batch.trainedTokens, rolloutSeconds, trainSeconds, saveSeconds },
      });
      ending = await assess(step, parts, heldOut);
    }
  } finally {
    await scheduler.close();
  }
  const checkpoint = await checkpointAt(ledger, step);
  const after = ending === 'interrupted' ? null : await heldOut.full('after', step);
  if (after === null && plan.heldOut.length > 0) ending = 'interrupted';
  const best = heldOut.recommended(step);
  const bestCheckpoint = best === undefined ? null : { ...best, checkpoint: ledger.directory.checkpointPath(best.step) };
  return { run: settings.run, before, after, steps: step, checkpoint, best: bestCheckpoint, ending };
}

/** After a step: the evaluation on the way, a checkpoint if it was the best so far, and whether the run ends here. */
async function assess(step: number, parts: Parts, heldOut: HeldOut): Promise<RunEnding | undefined> {
  await heldOut.onTheWay(step);
  if (heldOut.best?.step === step) await checkpointAt(parts.ledger, step);
  const { finish, since, plan, rollouts } = parts;
  const { settings } = plan;
  return endingAt(step, { settings, finish, since, sampledTokens: rollouts.sampledTokens, outOfPatience: heldOut.outOfPatience });
}
