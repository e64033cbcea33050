/**
 * Runs rollouts in this process: a workflow and a grader, so many at once, each under its deadlines, against whatever policy the request
 * names. What a workflow does after its deadline cannot be stopped in the same process: its signal tells it, and nobody waits for it.
 */
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Semaphore } from '../core/async.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Json } from '../core/types.ts';
import { startWorkflow } from '../rollout/runner.ts';
import { type EntryParts, entryOf, loadEntry } from './entry.ts';
import type {
  CancelSelector,
  Disposition,
  ExecutionBackend,
  ExecutionHooks,
  RolloutRequest,
  RolloutStatus,
} from './execution.ts';
import { type Progress, type RemoteParts, runRemoteRollout } from './remote-rollout.ts';

export interface LocalBackendOptions extends EntryParts {
  /** Rollouts accepted and not ended, waiting ones included. Default 10,000. */
  readonly capacity?: number;
  /** Seconds that a workflow or a grader may take where the request does not say less. Default one day. */
  readonly longestSec?: number;
  /** Folder under which rollouts may keep files. Default: a new one for temporary files. */
  readonly artifacts?: string;
}

const CAPACITY = 10_000;
const LONGEST_SEC = 86_400;
/** Beyond this timers fire at once. */
const MOST_SEC = 2_147_483;
/** Ended rollouts whose status can still be asked for. */
const REMEMBERED = 10_000;
const UNKNOWN: RolloutStatus = { status: 'unknown', reward: null, errMessage: null };

interface Live extends Progress {
  readonly controller: AbortController;
}

export class LocalBackend implements ExecutionBackend {
  readonly #options: LocalBackendOptions;
  readonly #capacity: number;
  readonly #longestSec: number;
  readonly #live = new Map<string, Live>();
  readonly #ended = new Map<string, RolloutStatus>();
  #parts: Promise<RemoteParts> | undefined;
  #started: AsyncDisposable | undefined;
  #maxConcurrent: number | null;

  /** Throws what is wrong with values; modules that are only named are loaded by `start`. */
  constructor(options: LocalBackendOptions) {
    const { capacity = CAPACITY, longestSec = LONGEST_SEC } = options;
    if (!(Number.isSafeInteger(capacity) && capacity >= 1)) throw usage('capacity', 'a whole number from 1 up', capacity);
    if (!(longestSec > 0 && longestSec <= MOST_SEC)) throw usage('longestSec', `seconds up to ${MOST_SEC}`, longestSec);
    this.#options = options;
    this.#capacity = capacity;
    this.#longestSec = longestSec;
    this.#maxConcurrent = entryOf(options)?.concurrency ?? null;
  }

  async start(): Promise<void> {
    await this.#ready();
  }

  hasCapacity(): boolean {
    return this.#live.size < this.#capacity;
  }

  async execute(request: RolloutRequest, hooks: ExecutionHooks): Promise<void> {
    const { rolloutId } = request;
    if (this.#live.has(rolloutId)) {
      throw new TrainyardError('REQUEST_CONFLICT', `rollout ${JSON.stringify(rolloutId)} is under way`);
    }
    const controller = new AbortController();
    const live: Live = { controller, cancel: controller.signal, state: 'queued', reward: null, errMessage: null };
    this.#live.set(rolloutId, live);
    try {
      await runRemoteRollout(await this.#ready(), request, live, hooks);
    } catch (thrown) {
      live.state = 'failure';
      throw thrown;
    } finally {
      this.#live.delete(rolloutId);
      this.#remember(rolloutId, live);
    }
  }

  status(rolloutId: string): RolloutStatus {
    const live = this.#live.get(rolloutId);
    return live === undefined ? (this.#ended.get(rolloutId) ?? UNKNOWN) : statusOf(live);
  }

  cancel(selector: CancelSelector): Readonly<Record<string, Disposition>> {
    const ids = 'ids' in selector ? selector.ids : [...this.#live.keys()];
    const chosen = 'prefix' in selector ? ids.filter((id) => id.startsWith(selector.prefix)) : ids;
    return Object.fromEntries(chosen.map((id) => [id, this.#cancelOne(id)]));
  }

  health(): Readonly<Record<string, Json>> {
    const queued = [...this.#live.values()].filter(({ state }) => state === 'queued').length;
    return {
      status: 'ok',
      concurrency: { max_concurrent: this.#maxConcurrent, queued, running: this.#live.size - queued },
    };
  }

  /** Cancels what is under way. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.cancel({ all: true });
    const started = this.#started;
    this.#started = undefined;
    await started?.[Symbol.asyncDispose]();
  }

  #cancelOne(id: string): Disposition {
    const live = this.#live.get(id);
    if (live === undefined) return 'not_found';
    const wasQueued = live.state === 'queued';
    live.controller.abort(new TrainyardError('CANCELLED', 'the rollout was cancelled'));
    return wasQueued ? 'cancelled_queued' : 'cancelled_running';
  }

  #remember(id: string, live: Live): void {
    this.#ended.delete(id);
    this.#ended.set(id, statusOf(live));
    const [oldest] = this.#ended.keys();
    if (this.#ended.size > REMEMBERED && oldest !== undefined) this.#ended.delete(oldest);
  }

  #ready(): Promise<RemoteParts> {
    this.#parts ??= this.#open();
    return this.#parts;
  }

  async #open(): Promise<RemoteParts> {
    const { workflow, grader, concurrency } = await loadEntry(this.#options);
    this.#maxConcurrent = concurrency;
    const { concurrency: _, ...unlimited } = workflow;
    const started = await startWorkflow(concurrency === null ? unlimited : { ...workflow, concurrency });
    this.#started = started;
    return {
      started,
      grader,
      graderSlots: grader?.concurrency === undefined ? undefined : new Semaphore(grader.concurrency),
      artifacts: this.#options.artifacts ?? temporaryFolder(),
      longestSec: this.#longestSec,
    };
  }
}

const statusOf = ({ state, reward, errMessage }: Progress): RolloutStatus => ({ status: state, reward, errMessage });

/** Files are a convenience: where none can be made, rollouts go without. */
function temporaryFolder(): string | undefined {
  try {
    return mkdtempSync(join(tmpdir(), 'trainyard-rollouts-'));
  } catch {
    return undefined;
  }
}

function usage(name: string, expected: string, found: number): TrainyardError {
  return new TrainyardError('USAGE', `${name} is ${found}, expected ${expected}`);
}
