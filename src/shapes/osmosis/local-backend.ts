/**
 * Runs rollouts in this process, with limits on concurrency and time, against the policy that each request names. A workflow that ignores
 * its deadline cannot be stopped here: its signal aborts, and the backend no longer waits for it. Workflow and grader are values or
 * `"module:export"` references; all their mistakes are reported together, before anything runs.
 */
import { createRequire } from 'node:module';
import { isAbsolute, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { CloseStack, Semaphore } from '../../core/async.ts';
import type { EntryModule, Grader, Workflow } from '../../core/contracts.ts';
import { asGrader, asWorkflow } from '../../core/define.ts';
import { checkNames, describeThrown, describeValue } from '../../core/describe.ts';
import { TrainyardError, tried } from '../../core/errors.ts';
import type { Json } from '../../core/types.ts';
import { removeFolder, temporaryFolder } from '../../processes/limits.ts';
import { importUserModule } from '../../processes/user-modules.ts';
import { exportsOf, together } from '../../rollout/discovery.ts';
import { startWorkflow } from '../../rollout/runner.ts';
import type {
  CancelSelector,
  Disposition,
  ExecutionBackend,
  ExecutionHooks,
  RolloutRequest,
  RolloutStatus,
} from './execution.ts';
import { noDefaultModels } from './remote-policy.ts';
import { type Progress, type RemoteParts, runRemoteRollout } from './remote-rollout.ts';

export interface LocalBackendOptions extends EntryParts {
  /** The most rollouts accepted and not yet ended, including queued ones. Default 10,000. */
  readonly capacity?: number;
  /** The most seconds for a workflow or a grader; a request can only ask for less. Default one day. */
  readonly longestSec?: number;
  /** Parent folder of the rollouts' own folders. Default: a new temporary folder. */
  readonly artifacts?: string;
}

const CAPACITY = 10_000;
const LONGEST_SEC = 86_400;
/** Timers set to more than this fire immediately. */
const MOST_SEC = 2_147_483;
/** How many ended rollouts keep their status. */
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
  readonly #started = new CloseStack();
  #parts: Promise<RemoteParts> | undefined;
  #maxConcurrent: number | null;

  /** Throws the mistakes of values; `start` loads referenced modules. */
  constructor(options: LocalBackendOptions) {
    checkNames(options, [...NAMES, 'capacity', 'longestSec', 'artifacts'], 'LocalBackend');
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
      await runRemoteRollout({ ...(await this.#ready()), request, progress: live, hooks });
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

  async [Symbol.asyncDispose](): Promise<void> {
    this.cancel({ all: true });
    await this.#started[Symbol.asyncDispose]();
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
    // Without a folder, if none can be made, rollouts run all the same.
    const own = this.#options.artifacts === undefined ? tried(() => temporaryFolder('trainyard-rollouts')) : undefined;
    if (own !== undefined) this.#started.defer(() => removeFolder(own));
    return {
      started: this.#started.use(await startWorkflow(concurrency === null ? unlimited : { ...workflow, concurrency })),
      grader,
      graderSemaphore: grader?.concurrency === undefined ? undefined : new Semaphore(grader.concurrency),
      artifacts: this.#options.artifacts ?? own,
      longestSec: this.#longestSec,
    };
  }
}

const statusOf = ({ state, reward, errMessage }: Progress): RolloutStatus => ({ status: state, reward, errMessage });

function usage(name: string, expected: string, found: number): TrainyardError {
  return new TrainyardError('USAGE', `${name} is ${found}, expected ${expected}`);
}

/** Each is a value or a `"module:export"` reference. */
export interface EntryParts {
  readonly workflow: unknown;
  readonly workflowConfig?: unknown;
  readonly grader?: unknown;
  readonly graderConfig?: unknown;
}

interface BackendEntry {
  readonly workflow: Workflow;
  readonly grader: Grader | undefined;
  /** The most rollouts at once; null: no limit. */
  readonly concurrency: number | null;
}

/** The concurrency limit if neither the workflow nor a config sets one. */
const CAREFUL = 4;
const NAMES = ['workflow', 'workflowConfig', 'grader', 'graderConfig'] as const;

/** The entry if all its parts are values; undefined if modules have to be loaded. Throws the mistakes of values and references. */
function entryOf(parts: EntryParts): BackendEntry | undefined {
  const texts = NAMES.filter((name) => typeof parts[name] === 'string');
  const mistakes = texts
    .filter((name) => !/.:.*[^:]$/s.test(parts[name] as string))
    .map((name) => noReference(name, parts[name]));
  if (mistakes.length > 0) throw together(mistakes);
  return texts.length === 0 ? lowered(parts) : undefined;
}

async function loadEntry(parts: EntryParts): Promise<BackendEntry> {
  const problems: TrainyardError[] = [];
  const values: { -readonly [name in keyof EntryParts]: unknown } = { workflow: undefined };
  for (const name of NAMES) {
    try {
      values[name] = await loaded(parts[name]);
    } catch (cause) {
      const message = `cannot import ${JSON.stringify(parts[name])}: ${describeThrown(cause)}`;
      problems.push(cause instanceof TrainyardError ? cause : new TrainyardError('ENTRY_UNLOADABLE', message, { cause }));
    }
  }
  if (problems.length > 0) throw together(problems);
  return lowered(values);
}

function lowered(parts: EntryParts): BackendEntry {
  const { workflowConfig: config } = parts;
  const problems: TrainyardError[] = [];
  const module: EntryModule = {
    exports: NAMES.map((name): [string, unknown] => [name, parts[name]]).filter(([, value]) => value != null),
    problem: (mistake) => void problems.push(mistake),
  };
  const use = <T>(what: keyof typeof NOT_FOUND, lower: (value: unknown) => T | undefined): T | undefined => {
    const before = problems.length;
    const [made] = exportsOf({ ...module, exports: [[what, parts[what]]] }, lower);
    if (made === undefined && problems.length === before) problems.push(notFound(what, parts[what]));
    return made?.value;
  };
  const workflow = use('workflow', (value) => asWorkflow(value, module));
  const grader = parts.grader == null ? undefined : use('grader', (value) => asGrader(value, module));
  if (workflow === undefined) throw together(problems);
  checkOffered(workflow, module);
  // Workflow classes read their own config and accept only its class; a plain workflow gets the given one.
  const isPlain = workflow === parts.workflow;
  if (!isPlain && config != null && workflow.config !== config && problems.length === 0) {
    problems.push(notTaken(workflow, config));
  }
  if (problems.length > 0) throw together(problems);
  const concurrency = workflow.concurrency ?? (isPlain ? maxConcurrentOf(config) : undefined);
  const isConfigured = config != null || workflow.config !== undefined;
  return {
    workflow: isPlain && config != null ? { ...workflow, config } : workflow,
    grader,
    concurrency: concurrency ?? (isConfigured ? null : CAREFUL),
  };
}

function maxConcurrentOf(config: unknown): number | undefined {
  const { concurrency } = (config ?? {}) as { readonly concurrency?: { readonly maxConcurrent?: unknown } };
  const most = concurrency?.maxConcurrent;
  return typeof most === 'number' ? most : undefined;
}

function checkOffered({ name, isolation, roles }: Workflow, { problem }: EntryModule): void {
  if (isolation === 'process') {
    problem(
      new TrainyardError(
        'WORKFLOW_INVALID',
        `workflow ${name} wants a process per rollout, which LocalBackend does not give`,
        'leave isolation out; on a rollout server keys and answers of other rollouts are in the same process',
      ),
    );
  }
  for (const [role, { trainable, default: given }] of Object.entries(roles)) {
    if (!trainable && given !== undefined) problem(noDefaultModels(role));
  }
}

async function loaded(given: unknown): Promise<unknown> {
  if (typeof given !== 'string') return given;
  const colon = given.lastIndexOf(':');
  const specifier = given.slice(0, colon);
  const name = given.slice(colon + 1);
  const exports = await importUserModule(urlOf(specifier, given));
  if (Object.hasOwn(exports, name)) return exports[name];
  const names = Object.keys(exports).join(', ') || 'nothing';
  throw new TrainyardError(
    'WORKFLOW_NOT_FOUND',
    `${specifier} does not export ${JSON.stringify(name)}; it exports ${names}`,
    'give "module:export", with a name that the module exports',
  );
}

/** Paths are relative to the working directory; other specifiers are packages, resolved from there. */
function urlOf(specifier: string, given: string): string {
  if (specifier.startsWith('file:')) return specifier;
  if (specifier.startsWith('.') || isAbsolute(specifier)) return pathToFileURL(resolve(specifier)).href;
  if (specifier.includes(':')) throw noReference('a module', given);
  return pathToFileURL(createRequire(join(process.cwd(), 'package.json')).resolve(specifier)).href;
}

function noReference(what: string, text: unknown): TrainyardError {
  return new TrainyardError(
    'USAGE',
    `${what}: invalid import path ${JSON.stringify(text)}, expected "module:export"`,
    'write "./rollout.ts:MyWorkflow", or give the value itself',
  );
}

function notTaken({ name }: Workflow, config: unknown): TrainyardError {
  const found = `workflowConfig is ${describeValue(config)}, which the workflow ${name} does not take`;
  return new TrainyardError(
    'CONFIG_INVALID',
    found,
    'give an instance of its config class, such as one that extends AgentWorkflowConfig, or leave it out',
  );
}

const NOT_FOUND = {
  workflow: ['WORKFLOW_NOT_FOUND', 'defineWorkflow', 'AgentWorkflow'],
  grader: ['GRADER_NOT_FOUND', 'defineGrader', 'Grader'],
} as const;

function notFound(what: keyof typeof NOT_FOUND, given: unknown): TrainyardError {
  const [code, define, base] = NOT_FOUND[what];
  return new TrainyardError(
    code,
    `expected a ${what}, found ${describeValue(given)}`,
    `give what ${define}(…) made, or a concrete class of a shape, such as one that extends ${base}`,
  );
}
