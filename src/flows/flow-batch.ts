/**
 * Flows on a batch of rows, against a gateway anywhere: the manager hands rows to workers, one at a time each, until none is left.
 *
 * Results are in the order of the rows, whatever their number and however long each took. A flow that fails or takes too long is a
 * result, too, and keeps nobody else. Runs of `trainyard train` have a scheduler of their own and need none of this.
 */
import { randomBytes } from 'node:crypto';
import { deadlineSignal, mapConcurrently, orAborted } from '../core/async.ts';
import { checkNames } from '../core/describe.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { PromptMessage } from '../core/types.ts';
import type { FlowFields, FlowRegistry } from './flow-registry.ts';
import { flowFields, runEpisode } from './flow-workflow.ts';
import { baseOf, completeTrajectory, type GatewayDoor, type SamplingParams } from './gateway-client.ts';

const OPTIONS = ['flows', 'defaultFlow', 'gatewayUrl', 'gatewayKey', 'samplingParams', 'workers', 'timeoutMs', 'fetch'];
const WORKERS = 8;
const TIMEOUT_MS = 600_000;
/** Beyond this timers fire at once. */
const MOST_MS = 2 ** 31 - 1;
/** They go to graders, never to flows. */
const ANSWERS: ReadonlySet<string> = new Set(['answer', 'ground_truth', 'label']);

/** A dataset row. `agent_name` chooses its flow. */
export interface FlowRow {
  readonly prompt: string | readonly PromptMessage[];
  /** Rollouts with the same one are compared; absent: `id`, else one of its own. */
  readonly promptUid?: string;
  readonly channel?: 'train' | 'val';
  readonly agent_name?: string;
  readonly [field: string]: unknown;
}

export type EpisodeResult = { readonly trajectoryUid: string; readonly seconds: number } & (
  | { readonly kind: 'completed'; readonly numSteps: number }
  | { readonly kind: 'failed'; readonly numSteps: 0; readonly error: string }
);

export interface ManagerOptions {
  readonly flows: FlowRegistry;
  /** For rows without an `agent_name`. */
  readonly defaultFlow: string;
  readonly gatewayUrl: string;
  /** A flow key. */
  readonly gatewayKey: string;
  readonly samplingParams?: SamplingParams;
  /** Episodes at once; 8. */
  readonly workers?: number;
  /** For one episode; ten minutes. */
  readonly timeoutMs?: number;
  readonly fetch?: typeof globalThis.fetch;
}

export class AgentFlowManager {
  readonly #options: ManagerOptions;

  constructor(options: ManagerOptions) {
    checkNames(options, OPTIONS, 'AgentFlowManager');
    const { workers = WORKERS, timeoutMs = TIMEOUT_MS } = options;
    if (!(Number.isSafeInteger(workers) && workers >= 1))
      throw new TrainyardError('USAGE', `workers: expected 1 or more, found ${workers}`);
    if (!(timeoutMs > 0 && timeoutMs <= MOST_MS))
      throw new TrainyardError('USAGE', `timeoutMs: expected a number above 0, up to ${MOST_MS}, found ${timeoutMs}`);
    options.flows.flow(options.defaultFlow);
    this.#options = options;
  }

  /** One result for each row, in their order. Throws only where a row names a flow that is not there, before anything runs. */
  async run(rows: readonly FlowRow[], signal: AbortSignal = new AbortController().signal): Promise<readonly EpisodeResult[]> {
    const { workers = WORKERS, flows, defaultFlow } = this.#options;
    for (const row of rows) flows.flow(row?.agent_name ?? defaultFlow);
    const worker = new AgentFlowWorker(this.#options);
    return (await mapConcurrently(rows, workers, (row) => worker.run(row, signal))) ?? [];
  }
}

/** Runs one episode after the other. */
export class AgentFlowWorker {
  readonly #options: ManagerOptions;

  constructor(options: ManagerOptions) {
    this.#options = options;
  }

  /** Never throws for what a flow did, or for what a row is. */
  async run(row: FlowRow, outer: AbortSignal = new AbortController().signal): Promise<EpisodeResult> {
    const { timeoutMs = TIMEOUT_MS } = this.#options;
    const started = performance.now();
    const trajectoryUid = randomBytes(16).toString('hex');
    // `AbortSignal.timeout` would let the process end where a hanging flow is all that is left of it.
    using deadline = deadlineSignal(timeoutMs, () => new Error(`not done within ${timeoutMs} ms`), outer);
    const { signal } = deadline;
    const seconds = (): number => (performance.now() - started) / 1000;
    try {
      const numSteps = await this.#episode(fieldsOf(row, trajectoryUid), row.agent_name, signal);
      return { kind: 'completed', numSteps, trajectoryUid, seconds: seconds() };
    } catch (thrown) {
      const error = messageOf(signal.aborted ? signal.reason : thrown);
      return { kind: 'failed', numSteps: 0, error, trajectoryUid, seconds: seconds() };
    }
  }

  async #episode(fields: FlowFields, name: string | undefined, signal: AbortSignal): Promise<number> {
    const { flows, defaultFlow, gatewayUrl: url, gatewayKey: key, samplingParams = {}, fetch = globalThis.fetch } = this.#options;
    const door: GatewayDoor = { url, key, fetch, signal };
    try {
      const flow = flows.flow(name ?? defaultFlow);
      // A flow that does not mind its signal is left behind: what it does later finds its trajectory complete.
      const numSteps = await orAborted(runEpisode(flow, door, samplingParams, fields), signal);
      await conclude(door, fields);
      return numSteps;
    } catch (thrown) {
      const error = messageOf(signal.aborted ? signal.reason : thrown);
      await conclude(door, fields, error.slice(0, 2000)).catch(() => undefined);
      throw thrown;
    }
  }
}

/** A trajectory that never began, or has another name or prompt, as those of black boxes do, is none to conclude. */
const NONE_OF_OURS: ReadonlySet<unknown> = new Set([404, 409, 410]);

/** Its group must not wait for it. Throws where it could not be kept. */
async function conclude(door: GatewayDoor, { trajectoryUid, promptUid }: FlowFields, error?: string): Promise<void> {
  try {
    await completeTrajectory(door, baseOf(door, trajectoryUid, promptUid), { error });
  } catch (thrown) {
    const { status } = ((thrown as Partial<TrainyardError>).details ?? {}) as { readonly status?: unknown };
    if (!NONE_OF_OURS.has(status)) throw thrown;
  }
}

function fieldsOf(row: FlowRow, trajectoryUid: string): FlowFields {
  const prompt: PromptMessage[] =
    typeof row.prompt === 'string' ? [{ role: 'user', content: row.prompt }] : structuredClone([...row.prompt]);
  const own = Object.fromEntries(Object.entries(row).filter(([name]) => !ANSWERS.has(name)));
  const id = typeof row['id'] === 'string' ? row['id'] : undefined;
  const promptUid = row.promptUid ?? id ?? randomBytes(16).toString('hex');
  return flowFields(structuredClone(own), { trajectoryUid, promptUid, prompt, channel: row.channel ?? 'train' });
}
