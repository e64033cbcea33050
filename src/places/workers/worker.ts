/**
 * A worker: takes rollouts of a coordinating run from the queue, runs their workflow against its own gateway and engine, and writes the
 * ungraded results. It may join and leave at any time, and needs nothing of the run but the database and the same code. Its code, release
 * and kernels are checked against the run's before it takes anything.
 */
import { hostname } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { linkSignals } from '../../core/async.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import type { Warn } from '../../core/events.ts';
import { defined } from '../../core/json.ts';
import type { Trajectory } from '../../core/types.ts';
import { KERNEL_VARIANTS, type KernelVariant } from '../../engines/embedded/wasm.ts';
import { removeFolder, temporaryFolder } from '../../processes/limits.ts';
import { artifactsFolder } from '../../rollout/rollout-context.ts';
import { openParts, type RunParts } from '../../run/parts.ts';
import { besideOf, changedBeside, changedSources, preflight, sourcesOf } from '../../run/preflight.ts';
import type { TrainSettings } from '../../settings/check-settings.ts';
import { EVAL_DEFAULTS } from '../../settings/setting-rows.ts';
import { isApi, ownRelease } from '../../settings/settings.ts';
import { withoutPassword } from '../../store/url.ts';
import { filesIn } from './files.ts';
import { type ClaimedJob, type FinishedJob, type JobAttempt, type RunSpec, WorkQueue } from './queue.ts';
import { fetchWeights } from './sent-weights.ts';

export interface WorkerOptions {
  readonly store: string;
  /** Rollouts at once. */
  readonly concurrency: number;
  /** Where the entry is here. Default: where the coordinator has it, relative to the working directory. */
  readonly entry?: string | undefined;
  /** The run's id. Default: whichever is open. */
  readonly run?: string | undefined;
  readonly threads?: number | undefined;
}

export interface WorkerSignals {
  /** Takes no more rollouts, and ends when those in hand have ended. */
  readonly finish: AbortSignal;
  /** Gives back what is in hand. */
  readonly stop: AbortSignal;
  readonly warn: Warn;
  readonly tell: (text: string, event: object) => void;
}

/** Milliseconds between looks for a run, for rollouts, and between renewals of leases. */
const RUN_MS = 500;
const LOOK_MS = 50;
const RENEW_MS = 1_000;
/** Milliseconds between looks of a worker that has found nothing for a while. */
const IDLE_MS = 200;

/** What a process has once imported stays as it was then. By entry. */
const LOADED = new Map<string, Record<'sources' | 'files', RunSpec['sources']>>();

/** Works until it is told to leave. Returns how many rollouts it finished. */
export async function work(options: WorkerOptions, signals: WorkerSignals): Promise<number> {
  const name = `${hostname()}-${process.pid}`;
  signals.tell(`looking for ${options.run === undefined ? 'a run' : `run ${options.run}`} in ${withoutPassword(options.store)}`, {
    type: 'looking',
  });
  await using queue = await awaited(() => WorkQueue.join(options.store, signals.stop, signals.warn), signals);
  let finished = 0;
  while (queue !== undefined) {
    const opened = await awaited(() => queue.openedRun(options.run), signals);
    if (opened === undefined) break;
    try {
      await using one = await Work.open({ ...options, name, queue, ...opened }, signals);
      signals.tell(`works for run ${opened.run} as ${name}`, { type: 'working', run: opened.run, worker: name });
      finished += await one.untilClosed();
    } catch (thrown) {
      // It may have ended meanwhile, and its weights and queue with it.
      if (signals.stop.aborted || (await queue.openedRun(opened.run)) !== undefined) throw thrown;
    }
  }
  return finished;
}

/** Looks until there is something, or until it is told to leave. */
async function awaited<T>(look: () => Promise<T | undefined>, { finish, stop, tell }: WorkerSignals): Promise<T | undefined> {
  for (let looks = 0; !finish.aborted && !stop.aborted; looks++) {
    const found = await look();
    if (found !== undefined) return found;
    if (looks === 0) tell('waiting for a run', { type: 'waiting' });
    await sleep(RUN_MS);
  }
  return undefined;
}

interface RunWork extends WorkerOptions {
  readonly name: string;
  readonly queue: WorkQueue;
  readonly run: string;
  readonly spec: RunSpec;
}

/** The work for one run. */
class Work implements AsyncDisposable {
  readonly #options: RunWork;
  readonly #signals: WorkerSignals;
  readonly #folder: string;
  readonly #parts: RunParts;
  #version: number;
  #weights: string;
  /** By job. */
  readonly #held = new Map<string, ClaimedJob & { readonly leave: AbortController }>();
  #ended: FinishedJob[] = [];
  /** Results in one transaction: 1 after a failure, to find the result that cannot be written. */
  #most = Infinity;
  #batch: readonly FinishedJob[] = [];
  #writing: Promise<void> | undefined;
  #loading = Promise.resolve(true);
  #isRenewing = false;
  #finished = 0;
  #failure: { readonly thrown: unknown } | undefined;

  private constructor(options: RunWork, signals: WorkerSignals, opened: OpenedRun) {
    this.#options = options;
    this.#signals = signals;
    this.#folder = opened.folder;
    this.#parts = opened.parts;
    this.#version = opened.version;
    this.#weights = opened.weights;
    const { recovery } = opened.parts;
    if (recovery !== undefined) recovery.restore = () => this.#load(this.#version);
  }

  static async open(options: RunWork, signals: WorkerSignals): Promise<Work> {
    return new Work(options, signals, await openRun(options, signals));
  }

  async untilClosed(): Promise<number> {
    const { finish, stop } = this.#signals;
    const { queue, run, spec, concurrency, name } = this.#options;
    const renewing = setInterval(() => void this.#renew(), RENEW_MS);
    try {
      let isOpen = true;
      let lookedAt = performance.now();
      let pause = LOOK_MS;
      while (this.#failure === undefined && !stop.aborted && (this.#held.size > 0 || (isOpen && !finish.aborted))) {
        const free = concurrency - this.#held.size;
        const claimed = free > 0 && isOpen && !finish.aborted ? await queue.claim(run, free, name) : [];
        // Those that this worker still had were lost while it was away.
        this.#lost(claimed);
        for (const job of claimed) void this.#run(job);
        pause = claimed.length > 0 || free === 0 ? LOOK_MS : Math.min(2 * pause, IDLE_MS);
        if (claimed.length === 0) await sleep(pause);
        if (performance.now() - lookedAt < RUN_MS) continue;
        lookedAt = performance.now();
        const now = await queue.openedRun(run);
        // A resumed run may have other code and settings.
        if (now !== undefined && !isDeepStrictEqual(now.spec, spec)) break;
        isOpen = now !== undefined;
      }
    } finally {
      clearInterval(renewing);
      await this.#writing;
      for (const { leave } of this.#held.values()) leave.abort(new TrainyardError('CANCELLED', `worker ${name} left`));
      await queue.giveBack(run, [...this.#held.values()]).catch(() => {});
    }
    if (this.#failure !== undefined) throw this.#failure.thrown;
    return this.#finished;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts[Symbol.asyncDispose]();
    await removeFolder(this.#folder);
  }

  async #run(claimed: ClaimedJob): Promise<void> {
    const leave = new AbortController();
    this.#held.set(claimed.id, { ...claimed, leave });
    const { identity, task, sampling, version, weights } = claimed.job;
    const { signal, release } = linkSignals(leave.signal, this.#signals.stop);
    try {
      if (!(await this.#hasLoaded(version, weights))) return;
      const artifacts = join(this.#folder, 'artifacts');
      const append = async (trajectory: Trajectory): Promise<void> => {
        const files = await filesIn(artifactsFolder(artifacts, identity.rolloutId)!);
        if (this.#holds(claimed)) this.#ended.push({ ...claimed, trajectory, files });
      };
      await this.#parts.rollout({ identity, task, sampling }, { store: { append }, artifacts, signal });
      this.#writing ??= this.#write().finally(() => {
        this.#writing = undefined;
      });
    } catch (thrown) {
      // Its lease is lost, or it is given back when this worker leaves.
      if (signal.aborted || !this.#holds(claimed)) return;
      if (thrown instanceof TrainyardError && thrown.code.startsWith('POLICY_')) {
        this.#failure ??= { thrown };
        return;
      }
      await this.#failed(claimed, thrown);
    } finally {
      release();
    }
  }

  #holds({ id, retryCount }: JobAttempt): boolean {
    return this.#held.get(id)?.retryCount === retryCount;
  }

  /** One transaction for all that have ended meanwhile. */
  async #write(): Promise<void> {
    const { queue, run } = this.#options;
    while (this.#ended.length > 0 && !this.#signals.stop.aborted) {
      this.#batch = this.#ended.splice(0, this.#most);
      const batch = this.#batch;
      try {
        const late = await queue.finish(run, batch);
        this.#finished += batch.length - late.length;
        this.#lost(late.filter((one) => this.#holds(one)));
        for (const one of batch) if (this.#holds(one)) this.#held.delete(one.id);
        this.#most = Infinity;
      } catch (thrown) {
        // A database that is away is waited for: one of these cannot be written.
        if (batch.length === 1) await this.#failed(batch[0]!, thrown);
        else this.#ended.unshift(...batch);
        this.#most = 1;
      }
      this.#batch = [];
    }
  }

  /** Counts as an attempt. */
  async #failed(claimed: ClaimedJob, thrown: unknown): Promise<void> {
    this.#held.delete(claimed.id);
    await this.#options.queue.fail(this.#options.run, [claimed], messageOf(thrown).slice(0, 500)).catch(() => {});
    const { rolloutId } = claimed.job.identity;
    this.#signals.warn('ROLLOUT_RETURNED', `rollout ${rolloutId} goes back to the queue: ${messageOf(thrown)}`);
  }

  async #renew(): Promise<void> {
    if (this.#isRenewing) return;
    this.#isRenewing = true;
    const held = [...this.#held.values()];
    // A database that is away is noticed by whoever writes next.
    const lost = await this.#options.queue.renew(this.#options.run, held).catch(() => []);
    this.#isRenewing = false;
    // Those that are being written may just have been completed.
    this.#lost(lost.filter((one) => this.#holds(one) && !this.#batch.some(({ id }) => id === one.id)));
  }

  /** What this worker has of these jobs. */
  #lost(jobs: readonly { readonly id: string }[]): void {
    for (const { id } of jobs) {
      const held = this.#held.get(id);
      if (held === undefined) continue;
      this.#held.delete(id);
      this.#ended = this.#ended.filter((one) => one.id !== id);
      held.leave.abort(new TrainyardError('CANCELLED', 'the lease of the rollout was lost'));
      this.#signals.warn(
        'LEASE_LOST',
        `rollout ${held.job.identity.rolloutId} runs elsewhere: this worker was away for too long`,
      );
    }
  }

  /** One after the other: rollouts of the next version wait until it is served. A worker that cannot load it leaves. */
  #hasLoaded(version: number, weights: string): Promise<boolean> {
    this.#loading = this.#loading.then(async () => {
      try {
        // The same version may have been computed again, and differently.
        const isOther = version > this.#version || (version === this.#version && weights !== this.#weights);
        if (isOther && this.#parts.policy.trainer !== undefined) await this.#load(version);
        return true;
      } catch (thrown) {
        this.#failure ??= { thrown };
        return false;
      }
    });
    return this.#loading;
  }

  async #load(least: number): Promise<void> {
    const { queue, run } = this.#options;
    const { trainer } = this.#parts.policy;
    const fetched = await fetchWeights(queue, run, least, this.#folder);
    await trainer!.load(fetched.folder, { optimizer: false });
    await trainer!.publish(fetched.version);
    await removeFolder(fetched.folder);
    this.#version = fetched.version;
    this.#weights = fetched.digest;
  }
}

interface OpenedRun {
  readonly folder: string;
  readonly parts: RunParts;
  readonly version: number;
  readonly weights: string;
}

async function openRun(
  { queue, run, spec, store, entry: here, threads }: RunWork,
  { stop, warn }: WorkerSignals,
): Promise<OpenedRun> {
  if (spec.release !== ownRelease()) {
    const found = `the run is of Trainyard ${spec.release}, and this worker of ${ownRelease()}`;
    throw new TrainyardError('WORKER_MISMATCH', found, 'install the same release on both');
  }
  const { flows: listed, hidden = [] } = spec.settings as Pick<TrainSettings, 'flows'> & { readonly hidden?: readonly string[] };
  const own = defined({ threads, flows: listed && resolve(listed) });
  const given = { threads: EVAL_DEFAULTS.threads, ...spec.settings, ...own } as unknown as TrainSettings;
  const path = resolve(here ?? spec.entry);
  const folder = temporaryFolder('trainyard-worker');
  try {
    const { flow, flows, isolation } = given;
    const { entry } = await preflight({ entry: path, flow, flows, isolation });
    const sources = await sourcesOf(path, flows, entry);
    const beside = await besideOf(path, sources);
    // In one folder, what rollouts write is everyone's at once.
    const files = (spec.beside?.folder === beside.folder ? undefined : spec.beside?.files) ?? {};
    const changed = [...changedSources(spec.sources, sources, path), ...changedBeside(files, beside.files, path)];
    if (changed.length > 0) {
      const found = `the code here is not that of the run: ${changed.slice(0, 5).join('; ')}`;
      throw new TrainyardError(
        'WORKER_MISMATCH',
        found,
        'give the worker the same files and packages (npm ci) as the coordinator; what rollouts write beside the entry is not compared if its name, or that of its folder, begins with a dot',
      );
    }
    const before = LOADED.get(path);
    const since = before && [...changedSources(before.sources, sources, path), ...changedBeside(before.files, files, path)];
    if (since !== undefined && since.length > 0) {
      const found = 'the code of the run is not the one that this worker loaded when it began';
      throw new TrainyardError('WORKER_MISMATCH', found, 'start the worker again');
    }
    LOADED.set(path, { sources, files });
    const isServed = isApi(given.engine);
    const fetched = isServed ? undefined : await fetchWeights(queue, run, 0, folder);
    const kernels = KERNEL_VARIANTS.find((name) => name === spec.kernels) as KernelVariant | undefined;
    const settings = { ...given, entry: path, ...(fetched && { model: fetched.folder }) };
    const tasks = hidden.map((one) => resolve(dirname(path), one));
    const options = { stop, warn, kernels, files: { run: folder, tasks, store, isWorker: true }, isWorker: true };
    const parts = await openParts(settings, entry, options);
    if (fetched !== undefined) await parts.policy.trainer?.publish(fetched.version);
    return { folder, parts, version: fetched?.version ?? 0, weights: fetched?.digest ?? '' };
  } catch (thrown) {
    await removeFolder(folder);
    throw thrown;
  }
}
