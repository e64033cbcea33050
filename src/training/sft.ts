/**
 * Supervised fine-tuning: teaches the policy what others said, or what it said itself where it succeeded, by cross-entropy on exactly the
 * tokens of the responses. Some tasks are left out to measure when to end; the checkpoint of the lowest loss on them is kept. A warm start
 * is such a run beside a training run, which begins where it ended. Deterministic on the embedded policy; a run that was killed begins anew.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import { type Emit, type SftDone, type SftEnding, warnBy } from '../core/events.ts';
import { digestOf } from '../core/json.ts';
import type { Trainer } from '../core/policy.ts';
import type { Sample, Task } from '../core/types.ts';
import { checkpointName, modelDigest, removeCheckpoint, saveCheckpoint, savedSteps } from '../engines/checkpoint.ts';
import { withModelPath } from '../engines/model-path.ts';
import { openSampled, planToTell } from '../engines/open-policy.ts';
import { createRunDirectory, eventLog, eventsIn, type RunDirectory, readRunFile, requireEmpty } from '../run/directory.ts';
import { openGrader } from '../run/parts.ts';
import { startingWith, type TrainPlan } from '../run/plan.ts';
import { adamFor, type SftRequest, type SftSettings, sftSettings } from '../settings/check-settings.ts';
import { TRAIN_DEFAULTS } from '../settings/setting-rows.ts';
import { learningRateAt } from '../settings/settings.ts';
import { tokensIn } from './batch.ts';
import { type Demonstrations, readDemonstrations } from './demonstrations.ts';
import { inPasses, shuffled } from './groups.ts';
import { crossEntropy } from './losses.ts';
import { samplesDigest } from './step.ts';

interface SftOptions {
  /** Ends after the current step. */
  readonly finish?: AbortSignal;
  /** Ends at once. */
  readonly stop?: AbortSignal;
  readonly since?: number;
  /** Tasks that the policy will be measured on, which are not taught, and those that it will be trained on. */
  readonly heldOut?: readonly Task[];
  readonly tasks?: readonly Task[];
}

/** Measurements of the validation loss in one pass over the conversations. */
const MEASURED_PER_EPOCH = 2;
/** Validation on fewer tasks says nothing. */
const LEAST_VALIDATED = 4;

export async function sft(request: SftRequest, emit: Emit = () => {}, options: SftOptions = {}): Promise<SftDone> {
  const settings = sftSettings(await withModelPath(request));
  const { since = performance.now(), stop = new AbortController().signal } = options;
  const tell = eventLog(emit, 'sft');
  const warn = warnBy(tell);
  await using policy = await openSampled({ ...settings, apiKeyEnv: undefined }, { warn, stop, use: 'training' });
  const { sampled, trainer } = policy;
  if (!('engine' in sampled) || trainer === undefined)
    throw new TrainyardError('USAGE', 'a policy behind an API cannot be taught');
  const { contextLength } = sampled.engine;
  const given = await readDemonstrations(settings.from, { renderer: sampled.renderer, contextLength, ...options });
  const record = await recordOf(settings, given);
  const before = await earlier(settings.run, record);
  if (before !== undefined) {
    warn('DONE_BEFORE', `${settings.run} holds the result of the same command already`);
    tell(before);
    return before;
  }
  const replaces = (path: string): boolean => isOf(path, record.identity);
  await using directory = await createRunDirectory(settings.run, record, { replaces });
  return await tell.during(directory, async () => {
    const split = splitOf(given.samples, settings);
    const { leftOut } = given;
    const [conversations, tasks] = (['rolloutId', 'groupId'] as const).map(
      (id) => new Set(split.taught.map((one) => one[id])).size,
    ) as [number, number];
    const [trained, validation] = [split.taught, split.validation].map((all) => all.reduce((sum, one) => sum + tokensIn(one), 0));
    const { run, from, epochs } = settings;
    const sizes = { conversations, tasks, leftOut, tokens: trained!, validationTokens: validation!, epochs };
    const server = policy.server === undefined ? {} : { server: policy.server };
    const plan = planToTell(policy);
    tell({ type: 'sft-start', run, from, model: policy.name, ...server, ...(plan && { plan }), ...sizes });
    const taught = new Teaching(trainer, { settings, directory, identity: record.identity, ...split, tell });
    const done = { ...(await taught.run(options.finish)), seconds: (performance.now() - since) / 1000 };
    tell(done);
    return done;
  });
}

/** Teaches the policy in a directory beside a training run's, and gives the plan to begin the training with that checkpoint. */
export async function warmStarted(plan: TrainPlan, emit?: Emit, options?: SftOptions): Promise<TrainPlan> {
  const { settings, entry, heldOut, tasks } = plan;
  await requireEmpty(settings.run);
  // As everything else that can be wrong, a grader shows it before anything is spent.
  const { stop = new AbortController().signal } = options ?? {};
  if (entry.grader) await (await openGrader(settings, entry.grader, entry.graderModule, stop))[Symbol.asyncDispose]();
  const { engine, model, baseModel, baseURL, trained, loraRank, loraAlpha, context, seed, threads } = settings;
  const { warmStartEpochs: epochs, warmStartLearningRate: learningRate } = settings;
  const policy = { engine, model, baseModel, baseURL, trained, loraRank, loraAlpha, context, seed, threads };
  const own = { from: settings.warmStart!, epochs, learningRate, run: `${settings.run}-warm-start` };
  const { checkpoint, ending } = await sft({ ...policy, ...own }, emit, { ...options, heldOut, tasks });
  if (ending !== 'interrupted') return checkpoint === null ? plan : await startingWith(plan, checkpoint);
  throw new TrainyardError('CANCELLED', 'interrupted during the warm start', 'the same command begins it anew');
}

/** What decides the result. */
async function recordOf({ run: _, threads: _threads, ...settings }: SftSettings, { samples }: Demonstrations) {
  const record = { kind: 'sft', settings, model: await modelDigest(settings.model), samples: samplesDigest(samples) };
  return { ...record, identity: digestOf([JSON.stringify(record)]) };
}

/** How an earlier call that was the same ended, if it did and its checkpoint is still there. */
async function earlier(run: string, { identity }: { readonly identity: string }): Promise<SftDone | undefined> {
  if (!isOf(run, identity)) return undefined;
  const done = eventsIn(run).find((event) => event.type === 'sft-end');
  if (done === undefined || done.ending === 'interrupted') return undefined;
  const [saved] = await savedSteps(join(run, 'checkpoints'));
  if (saved === undefined) return done.checkpoint === null ? { ...done, run } : undefined;
  return { ...done, run, checkpoint: join(run, 'checkpoints', checkpointName(saved)) };
}

function isOf(run: string, identity: string): boolean {
  if (!existsSync(join(run, 'run.json'))) return false;
  return (readRunFile(run) as { readonly identity?: unknown }).identity === identity;
}

interface SplitSamples {
  readonly taught: readonly Sample[];
  readonly validation: readonly Sample[];
}

/** By task, so that no task is on both sides. */
function splitOf(samples: readonly Sample[], { validation: share, seed }: SftSettings): SplitSamples {
  const tasks = [...new Set(samples.map(({ groupId }) => groupId))];
  const count = Math.floor(share * tasks.length);
  const left = new Set(count < LEAST_VALIDATED ? [] : shuffled(tasks, (id) => `${seed}/${id}`).slice(0, count));
  const { taught = [], validation = [] } = Object.groupBy(samples, (one) => (left.has(one.groupId) ? 'validation' : 'taught'));
  return { taught, validation };
}

interface TeachingParts extends SplitSamples {
  readonly settings: SftSettings;
  readonly directory: RunDirectory;
  readonly identity: string;
  readonly tell: Emit;
}

interface Measured {
  readonly step: number;
  readonly loss: number;
}

class Teaching {
  readonly #trainer: Trainer;
  readonly #parts: TeachingParts;
  readonly #perEpoch: number;
  readonly #steps: number;
  /** Validation losses in the order of measurement, with their steps. */
  readonly #measured: Measured[] = [];
  /** Each pass has its own order, which the seed decides. */
  readonly #sampleAt: (n: number) => Sample;

  constructor(trainer: Trainer, parts: TeachingParts) {
    this.#trainer = trainer;
    this.#parts = parts;
    this.#perEpoch = Math.ceil(parts.taught.length / parts.settings.batch);
    this.#steps = this.#perEpoch * parts.settings.epochs;
    this.#sampleAt = inPasses(parts.taught, parts.settings.seed);
  }

  async run(finish?: AbortSignal): Promise<Omit<SftDone, 'seconds'>> {
    const { settings, directory, validation, tell } = this.#parts;
    await this.#measure(0);
    let step = 0;
    let ending: SftEnding = 'epochs';
    while (step < this.#steps) {
      if (finish?.aborted) {
        ending = 'interrupted';
        break;
      }
      const begun = performance.now();
      tell({ type: 'progress', phase: 'teaching', done: step, of: this.#steps, sampledTokens: 0 });
      const { loss, tokens } = await this.#step(++step);
      const isDue = step % Math.ceil(this.#perEpoch / MEASURED_PER_EPOCH) === 0 || step === this.#steps;
      const validationLoss = isDue ? await this.#measure(step) : undefined;
      const measured = validationLoss === undefined ? {} : { validationLoss };
      const seconds = (performance.now() - begun) / 1000;
      tell({ type: 'sft-step', step, steps: this.#steps, loss, tokens, ...measured, seconds });
      if (isDue && step < this.#steps && this.#outOfPatience()) {
        ending = 'patience';
        break;
      }
    }
    if (validation.length === 0 && step > 0) await this.#save(step);
    const best = this.#best();
    if (best?.step === 0 && step > 0) this.#warnOfHarm();
    const [saved] = await savedSteps(directory.checkpoints);
    const checkpoint = saved === undefined ? null : directory.checkpointPath(saved);
    const losses = best === undefined ? {} : { validationLoss: { before: this.#measured[0]!.loss, after: best.loss } };
    return { type: 'sft-end', run: settings.run, steps: step, checkpoint, ...losses, ending };
  }

  /** Every token of a batch counts alike. */
  async #step(step: number): Promise<{ readonly loss: number; readonly tokens: number }> {
    const { taught, settings } = this.#parts;
    const { batch, learningRate } = settings;
    const before = Math.floor((step - 1) / this.#perEpoch) * taught.length;
    const place = ((step - 1) % this.#perEpoch) * batch;
    const chosen = Array.from({ length: Math.min(batch, taught.length - place) }, (_, i) =>
      this.#sampleAt(before + place + i + 1),
    );
    const tokens = chosen.reduce((sum, sample) => sum + tokensIn(sample), 0);
    const { warmupSteps } = TRAIN_DEFAULTS;
    const rate = learningRateAt(step, { steps: this.#steps, warmupSteps, learningRate });
    const [{ loss }] = await Promise.all([
      this.#trainer.forwardBackward(
        chosen.map((sample) => ({ ...sample, weight: 1 / tokens })),
        crossEntropy(),
      ),
      this.#trainer.optimStep({ ...adamFor(settings.engine), learningRate: rate }),
    ]);
    return { loss, tokens };
  }

  /** Mean over tokens; saves the checkpoint if it is the lowest so far. Undefined if nothing is left out for it. */
  async #measure(step: number): Promise<number | undefined> {
    const { validation } = this.#parts;
    if (validation.length === 0) return undefined;
    const logprobs = await this.#trainer.forward(validation);
    const tokens = logprobs.reduce((sum, { length }) => sum + length, 0);
    const loss = -logprobs.reduce((sum, own) => own.reduce((part, value) => part + value, sum), 0) / tokens;
    this.#measured.push({ step, loss });
    if (step > 0 && this.#best()!.step === step) await this.#save(step);
    return loss;
  }

  /** The first of the lowest, which may be that before the first step. */
  #best(): Measured | undefined {
    const [first, ...others] = this.#measured;
    return others.reduce((best, one) => (best === undefined || one.loss < best.loss ? one : best), first);
  }

  #warnOfHarm(): void {
    const losses = this.#measured.map(({ loss }) => loss.toPrecision(3)).join(', ');
    const message = `the loss on tasks that are not taught never fell below that of the model as it was (${losses}), so no checkpoint is kept: lower --learning-rate, or teach more conversations`;
    this.#parts.tell({ type: 'warning', code: 'TAUGHT_NOTHING', message });
  }

  #outOfPatience(): boolean {
    const { patience } = this.#parts.settings;
    const best = this.#measured.indexOf(this.#best()!);
    return patience > 0 && best !== -1 && this.#measured.length - 1 - best >= patience;
  }

  /** Then removes the one before: only the best is kept. */
  async #save(step: number): Promise<void> {
    const { directory, identity, settings } = this.#parts;
    const { checkpoints: dir } = directory;
    await saveCheckpoint(this.#trainer, { dir, step, identity, model: settings.model });
    for (const older of (await savedSteps(dir)).filter((saved) => saved !== step)) {
      await removeCheckpoint(this.#trainer, join(dir, checkpointName(older)));
    }
  }
}
