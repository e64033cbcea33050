/**
 * Runs rollouts in this process: a workflow and a grader, so many at once, each under its deadlines, against whatever policy the request
 * names. What a workflow does after its deadline cannot be stopped in the same process: it is told by its signal, and not waited for.
 */
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Semaphore } from '../core/async.ts';
import type { Workflow } from '../core/contracts.ts';
import { boundary, TrainyardError } from '../core/errors.ts';
import type { Json } from '../core/types.ts';
import { checkReferences, type EntryParts, loadEntry, lowered } from './entry.ts';
import type {
  CancelSelector,
  Disposition,
  ExecutionBackend,
  ExecutionHooks,
  RolloutRequest,
  RolloutStatus,
} from './execution.ts';
import { type Progress, type RolloutParts, runRemoteRollout } from './rollout.ts';

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
/** Ended rollouts whose end can still be asked for. */
const REMEMBERED = 10_000;
const UNKNOWN: RolloutStatus = { status: 'unknown', reward: null, errMessage: null };

interface Live extends Progress {
  readonly controller: AbortController;
}

export class LocalBackend implements ExecutionBackend {
  readonly #options: LocalBackendOptions;
  readonly #live = new Map<string, Live>();
  readonly #ended = new Map<string, RolloutStatus>();
  #parts: Promise<RolloutParts> | undefined;
  /** Set up and not yet torn down. */
  #started: Workflow | undefined;
  #maxConcurrent: number | null = null;

  /** Throws what is wrong with values; modules that are only named are loaded by `start`. */
  constructor(options: LocalBackendOptions) {
    this.#options = options;
    const { capacity = CAPACITY, longestSec = LONGEST_SEC } = options;
    if (!(Number.isSafeInteger(capacity) && capacity >= 1)) throw usage('capacity', 'a whole number from 1 up', capacity);
    if (!(longestSec > 0 && longestSec <= MOST_SEC)) throw usage('longestSec', `seconds up to ${MOST_SEC}`, longestSec);
    checkReferences(options);
    const { workflow, workflowConfig, grader, graderConfig } = options;
    const values = { workflow, workflowConfig, grader, graderConfig };
    if (!Object.values(values).some((value) => typeof value === 'string')) this.#maxConcurrent = lowered(values).concurrency;
  }

  async start(): Promise<void> {
    await this.#ready();
  }

  hasCapacity(): boolean {
    return this.#live.size < (this.#options.capacity ?? CAPACITY);
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
    await started?.teardown?.();
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

  #ready(): Promise<RolloutParts> {
    this.#parts ??= this.#open();
    return this.#parts;
  }

  async #open(): Promise<RolloutParts> {
    const entry = await loadEntry(this.#options);
    const { concurrency, grader } = entry;
    this.#maxConcurrent = concurrency;
    const { workflow } = entry;
    await boundary('WORKFLOW_INIT_FAILED', `the setup of workflow ${workflow.name} failed`, async () => workflow.setup?.());
    this.#started = workflow;
    return {
      ...entry,
      slots: concurrency === null ? undefined : new Semaphore(concurrency),
      graderSlots: grader?.concurrency === undefined ? undefined : new Semaphore(grader.concurrency),
      artifacts: this.#options.artifacts ?? temporaryFolder(),
      longestSec: this.#options.longestSec ?? LONGEST_SEC,
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
