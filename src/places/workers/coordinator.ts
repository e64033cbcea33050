/**
 * Rollouts that workers run elsewhere, as the coordinating run sees them: it queues a rollout and waits for the ungraded trajectory, which
 * it then grades and stores like its own. What workers return is checked as if it had been sampled here; a result that is refused runs
 * again. A rollout whose workers were lost, or whose results were refused, in every attempt ends as a failed one.
 */
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { shortLine } from '../../core/describe.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import type { Warn } from '../../core/events.ts';
import { defined } from '../../core/json.ts';
import type { Trainer } from '../../core/policy.ts';
import type { Limits, LogLine, RolloutIdentity, Trajectory, Turn } from '../../core/types.ts';
import { checkRecorded, type RecordedElsewhere } from '../../gateway/sampling.ts';
import { removeFolder, temporaryFolder } from '../../processes/limits.ts';
import { type Ended, endedAs, gradedTurns, resultOf } from '../../rollout/record.ts';
import { artifactsFolder } from '../../rollout/rollout-context.ts';
import type { Place, RolloutParts, RolloutSpec } from '../../rollout/runner.ts';
import { writeFiles } from './files.ts';
import { ATTEMPTS, jobIdOf, type LostAttempt, type RolloutJob, type RunSpec, SEEN_MS, WorkQueue } from './queue.ts';
import { sendWeights } from './sent-weights.ts';

/** Milliseconds that a database may be away at the end. */
const LEAVE_MS = 3_000;
/** Milliseconds between looks for results. */
const LOOK_MS = 25;
/** Milliseconds between looks for parked rollouts. */
const PARKED_MS = 1_000;
/** Milliseconds without a result before it is told, and the longest before it is told again. */
const TELL_MS = 15_000;
const TELL_MOST_MS = 600_000;
/** A database that was away for longer kept workers from renewing their leases; back for so long, it has heard of those that live. */
const AWAY_MS = 2_000;
const BACK_MS = 4_000;

export interface CoordinatorOptions {
  readonly url: string;
  /** The run's id. */
  readonly run: string;
  readonly spec: RunSpec;
  /** Versions that rollouts may be behind, so that many are kept. */
  readonly staleness: number;
  /** Writes into a folder what a worker needs to sample from the policy. Absent if it is behind an API. */
  readonly save?: (folder: string) => Promise<unknown>;
  /** Called with a folder that `save` has written, once no worker needs it any more. */
  readonly forget?: (folder: string) => Promise<unknown>;
  readonly policy: RecordedElsewhere['policy'];
  readonly limits: Limits;
  /** Whether turns of a role may be trained. */
  readonly isTrained: (role: string) => boolean;
  readonly warn: Warn;
}

/** What became of a job: what a worker made of it, undefined if that cannot be read, or how it ended without one. */
type Fate = { readonly made: Trajectory | undefined } | { readonly lost: Ended };

interface Waiting {
  readonly spec: RolloutSpec;
  readonly resolve: (fate: Fate) => void;
  readonly reject: (thrown: unknown) => void;
}

interface SavedFolder {
  readonly version: number;
  readonly folder: string;
}

export class Coordinator implements Place, AsyncDisposable {
  readonly #queue: WorkQueue;
  readonly #options: CoordinatorOptions;
  /** By job. */
  readonly #waiting = new Map<string, Waiting>();
  /** Of rollouts that are not stored yet. */
  readonly #jobs = new Map<string, string>();
  #unsent: RolloutJob[] = [];
  #stored: string[] = [];
  #version = 0;
  /** The newest version of the policy that workers may sample with. */
  #newest = 0;
  #weights = '';
  #looking: Promise<void> | undefined;
  #isClosed = false;
  /** Whether the run has ended, so that nothing of it is needed any more. */
  isDone = false;

  /** What `save` has written and workers may still need, at the server of a policy that is not embedded. */
  #folders: SavedFolder[] = [];
  #saved = 0;
  readonly #folder = temporaryFolder('trainyard-weights');
  #watching: Promise<void> | undefined;

  private constructor(queue: WorkQueue, options: CoordinatorOptions) {
    this.#queue = queue;
    this.#options = options;
  }

  static async open(options: CoordinatorOptions): Promise<Coordinator> {
    const { url, run, spec, warn } = options;
    const queue = await WorkQueue.create(url, warn);
    try {
      const before = await queue.lastSeen(run);
      const coordinator = new Coordinator(queue, options);
      // Before workers know of the run, which begin with them.
      await coordinator.publish(0);
      await queue.openRun(run, spec, Number(process.env['TRAINYARD_LEASE_SECONDS'] ?? '') || undefined, before);
      coordinator.#watching = coordinator.#watch();
      return coordinator;
    } catch (thrown) {
      await queue[Symbol.asyncDispose]();
      throw thrown;
    }
  }

  /** Resolves with what a worker made of it. Rejects when the signal aborts. */
  async run({ signal, artifacts }: Pick<RolloutParts, 'signal' | 'artifacts'>, spec: RolloutSpec): Promise<Ended> {
    const { run, warn } = this.#options;
    const { rolloutId } = spec.identity;
    for (const refused: LostAttempt[] = []; ; ) {
      const version = this.#version;
      const fate = await this.#fateOf(spec, signal);
      if ('lost' in fate) return fate.lost;
      const job = this.#jobs.get(rolloutId)!;
      try {
        const asked = { ...this.#options, sampling: spec.sampling, versions: [version, this.#newest] };
        const made = checkResult(fate.made, spec, asked);
        return endedAs(made, await this.#filesInto(artifactsFolder(artifacts, rolloutId), job));
      } catch (thrown) {
        if (!(thrown instanceof TrainyardError) || thrown.code !== 'RESULT_REFUSED') throw thrown;
        const last = { ...(await this.#attemptOf(job)), attempt: refused.length + 1 };
        const found = `worker ${shortLine(last.worker, 200)} returned rollout ${rolloutId} ${thrown.message}`;
        if (refused.push(last) === ATTEMPTS) return failed('RESULT_REFUSED', found, refused);
        warn('RESULT_REFUSED', `${found}; it runs again`);
        await this.#queue.forget(run, [job], true);
        signal.throwIfAborted();
      }
    }
  }

  #fateOf(spec: RolloutSpec, signal: AbortSignal): Promise<Fate> {
    const { identity, task, sampling } = spec;
    const { id, prompt, metadata } = task;
    // Field by field: spreading the task would include its answer.
    const view = { id, prompt, ...(metadata === undefined ? {} : { metadata }) };
    const { promise, resolve, reject } = Promise.withResolvers<Fate>();
    const version = this.#version;
    const weights = this.#weights;
    const asked = { identity, task: view, sampling, version, weights };
    const job = jobIdOf(this.#options.run, asked);
    const stop = (): void => this.#fail(job, signal.reason);
    this.#waiting.set(job, { spec, resolve, reject });
    this.#jobs.set(identity.rolloutId, job);
    this.#unsent.push(asked);
    signal.addEventListener('abort', stop, { once: true });
    this.#looking ??= this.#look().finally(() => {
      this.#looking = undefined;
    });
    return promise.finally(() => signal.removeEventListener('abort', stop));
  }

  async #filesInto(folder: string | null, job: string): Promise<string | null> {
    const files = folder === null ? [] : await this.#queue.files(this.#options.run, job);
    if (folder === null || files.length === 0) return null;
    await writeFiles(folder, files);
    return folder;
  }

  /** The attempt whose result is there. */
  async #attemptOf(job: string): Promise<Pick<LostAttempt, 'worker' | 'at'>> {
    const sql = `SELECT left(worker, 200) AS worker, at FROM trainyard.attempts JOIN trainyard.results USING (run, job, attempt)
      WHERE run = $1 AND job = $2 ORDER BY at DESC LIMIT 1`;
    const [found] = await this.#queue.query<LostAttempt>('read attempts', sql, [this.#options.run, job]);
    return found ?? { worker: 'unknown', at: new Date() };
  }

  /** The graded trajectory is in the store. */
  stored(rolloutId: string): void {
    this.#stored.push(this.#jobs.get(rolloutId)!);
    this.#jobs.delete(rolloutId);
  }

  /** Workers sample with the current weights from the next rollout on. */
  async publish(version: number): Promise<void> {
    const { save, run, staleness } = this.#options;
    if (save !== undefined) {
      const oldest = version - staleness - 1;
      const folder = join(this.#folder, `${++this.#saved}`);
      await save(folder);
      this.#newest = version;
      this.#folders.push({ version, folder });
      this.#weights = await sendWeights(this.#queue, run, version, folder, oldest);
      await this.#forgetFolders((kept) => kept.version < oldest || (kept.version === version && kept.folder !== folder));
    }
    this.#version = version;
  }

  async #forgetFolders(isOver: (kept: SavedFolder) => boolean): Promise<void> {
    const over = this.#folders.filter(isOver);
    this.#folders = this.#folders.filter((kept) => !over.includes(kept));
    for (const { folder } of over) {
      await this.#options.forget?.(folder);
      await removeFolder(folder);
    }
  }

  /** The same trainer; what it publishes is for workers too. */
  around(trainer: Trainer): Trainer {
    const publish = async (version: number): Promise<void> => {
      await trainer.publish(version);
      await this.publish(version);
    };
    return new Proxy(trainer, {
      get: (target, name) => {
        if (name === 'publish') return publish;
        const value: unknown = Reflect.get(target, name, target);
        return typeof value === 'function' ? value.bind(target) : value;
      },
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    // A database that is away must not hold up who was told to leave.
    this.#queue.patience = LEAVE_MS;
    await Promise.race([
      Promise.all([this.#watching, this.#looking?.catch(() => {})]),
      sleep(LEAVE_MS, undefined, { ref: false }),
    ]);
    try {
      await this.#forget();
      await this.#queue.closeRun(this.#options.run, this.isDone);
      await this.#forgetFolders(() => true);
    } finally {
      await removeFolder(this.#folder);
      await this.#queue[Symbol.asyncDispose]();
    }
  }

  /** Says that the run goes on, and looks for lost workers. Whoever needs the database tells that it is away. */
  async #watch(): Promise<void> {
    const { run } = this.#options;
    for (let backAt = performance.now(); !this.#isClosed; await sleep(SEEN_MS)) {
      const since = performance.now();
      const isThere = await this.#queue.seen(run).then(
        () => performance.now() - since < AWAY_MS,
        (thrown) => {
          // Whoever was away for long finds that the run goes on elsewhere.
          if (thrown.code === 'RUN_LOCKED') for (const job of this.#waiting.keys()) this.#fail(job, thrown);
          return false;
        },
      );
      if (!isThere) backAt = performance.now();
      if (performance.now() - backAt > BACK_MS) await this.#queue.watch(run).catch(() => {});
    }
  }

  /** Runs while rollouts are waited for. A database that stays away fails them all. */
  async #look(): Promise<void> {
    const { run, warn } = this.#options;
    let parkedAt = performance.now();
    let resultAt = performance.now();
    let tellAfter = TELL_MS;
    try {
      while (this.#waiting.size > 0 && !this.#isClosed) {
        await this.#queue.send(run, this.#unsent.splice(0));
        const results = await this.#queue.results(run, [...this.#waiting.keys()]);
        for (const [job, made] of results) this.#settle(job, { made });
        await this.#forget();
        const now = performance.now();
        if (results.size > 0) {
          resultAt = now;
          tellAfter = TELL_MS;
        }
        if (now - resultAt > tellAfter) {
          const found = `no result of ${this.#waiting.size} queued rollouts for ${Math.round((now - resultAt) / 1000)} s`;
          warn('WAITING_FOR_WORKERS', `${found}; are workers running? trainyard worker --store URL`);
          tellAfter += Math.min(tellAfter, TELL_MOST_MS);
        }
        if (now - parkedAt > PARKED_MS) {
          parkedAt = now;
          await this.#park();
        }
        if (results.size === 0 && this.#unsent.length === 0) await sleep(LOOK_MS);
      }
    } catch (thrown) {
      for (const job of [...this.#waiting.keys()]) this.#fail(job, thrown);
    }
  }

  async #forget(): Promise<void> {
    const stored = this.#stored.splice(0);
    if (stored.length > 0) await this.#queue.forget(this.#options.run, stored);
  }

  #settle(job: string, fate: Fate): void {
    const waiting = this.#waiting.get(job);
    if (waiting === undefined) return;
    this.#waiting.delete(job);
    waiting.resolve(fate);
  }

  async #park(): Promise<void> {
    for (const [job, { reason, attempts }] of await this.#queue.parked(this.#options.run)) {
      this.#settle(job, { lost: failed('WORKER_LOST', reason, attempts) });
    }
  }

  #fail(job: string, thrown: unknown): void {
    const waiting = this.#waiting.get(job);
    if (waiting === undefined) return;
    this.#waiting.delete(job);
    this.#jobs.delete(waiting.spec.identity.rolloutId);
    waiting.reject(thrown);
  }
}

type Asked = RecordedElsewhere & Pick<CoordinatorOptions, 'limits' | 'isTrained'>;

/** Throws RESULT_REFUSED, with what follows `worker … returned rollout …`. A record that can be read is of our format. */
function checkResult(made: Trajectory | undefined, { identity }: RolloutSpec, asked: Asked): Trajectory {
  if (made === undefined) throw refusal('damaged');
  const isAsked = Object.entries(identity).every(([name, value]) => made[name as keyof RolloutIdentity] === value);
  if (!isAsked) throw refusal('as another one');
  if (made.grade.kind !== 'ungraded') throw refusal('with a reward');
  const { limits, isTrained } = asked;
  const { turns, metadata, metrics, returned, outcome } = made;
  if (outcome.kind === 'completed' && turns.length === 0) throw refusal('as completed, without a turn');
  if (turns.length > limits.turns) throw refusal(`with ${turns.length} turns, expected at most ${limits.turns}`);
  const tokens = turns.reduce((sum, { sampledIds }) => sum + sampledIds.length, 0);
  if (tokens > limits.tokens) throw refusal(`with ${tokens} sampled tokens, expected at most ${limits.tokens}`);
  const isInOrder = ({ index, after = -1, fork }: Turn, place: number): boolean =>
    index === place && after < place && (fork === undefined || fork.from < place);
  if (!turns.every(isInOrder)) throw refusal('with turns that are not in order');
  const other = turns.find((turn) => turn.trainable && !isTrained(turn.role));
  if (other !== undefined) throw refusal(`with turns of a role that is not trained: ${shortLine(other.role, 100)}`);
  try {
    for (const turn of turns) checkRecorded(turn, asked);
    const { reward, success, credit } = returned ?? {};
    resultOf(defined({ metadata, metrics, reward, success, credit }), identity, gradedTurns(made));
  } catch (cause) {
    throw refusal(`which cannot have been made: ${messageOf(cause)}`);
  }
  return made;
}

function refusal(found: string): TrainyardError {
  return new TrainyardError('RESULT_REFUSED', found);
}

function failed(code: 'WORKER_LOST' | 'RESULT_REFUSED', reason: string, attempts: readonly LostAttempt[]): Ended {
  const logs: LogLine[] = attempts.map(({ attempt, worker, at }) => ({
    at: at.getTime(),
    text: `attempt ${attempt} began on ${worker}, which gave no result that counts`,
  }));
  const workers = [...new Set(attempts.map(({ worker }) => worker))].join(', ');
  const what = code === 'WORKER_LOST' ? 'its workers were lost' : 'its results were refused';
  const message = `${what} in ${ATTEMPTS} attempts (${workers || 'unknown'}): ${reason}`;
  return {
    outcome: { kind: 'failed', code, message },
    turns: [],
    unanswered: [],
    result: {},
    logs,
    artifactsDir: null,
    startedAt: logs[0]?.at ?? Date.now(),
  };
}
