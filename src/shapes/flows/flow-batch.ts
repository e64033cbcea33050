/**
 * Runs flows on a batch of rows against any gateway, with a limit on concurrent episodes. Results are in row order. A flow that fails or
 * times out gives a `failed` result and does not affect the others. `trainyard train` has its own scheduler instead.
 */
import { randomBytes } from 'node:crypto';
import { deadlineSignal, mapConcurrently, orAborted } from '../../core/async.ts';
import { checkNames } from '../../core/describe.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import type { PromptMessage } from '../../core/types.ts';
import type { FlowFields, FlowRegistry } from './flow-registry.ts';
import { flowFields, runEpisode } from './flow-workflow.ts';
import { baseOf, completeTrajectory, type GatewayDoor, type SamplingParams } from './gateway-client.ts';

const OPTIONS = ['flows', 'defaultFlow', 'gatewayUrl', 'gatewayKey', 'samplingParams', 'workers', 'timeoutMs', 'fetch'];
const WORKERS = 8;
const TIMEOUT_MS = 600_000;
/** Longer timers fire at once. */
const MOST_MS = 2 ** 31 - 1;
/** Only graders may see these fields. */
const ANSWERS: ReadonlySet<string> = new Set(['answer', 'ground_truth', 'label']);

export interface FlowRow {
  readonly prompt: string | readonly PromptMessage[];
  /** Rollouts with the same `promptUid` form a group. Defaults to `id`, else to a random one. */
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
  readonly defaultFlow: string;
  readonly gatewayUrl: string;
  /** A key with the `flow` capability. */
  readonly gatewayKey: string;
  readonly samplingParams?: SamplingParams;
  /** Concurrent episodes. Default: 8. */
  readonly workers?: number;
  /** Per episode, in milliseconds. Default: ten minutes. */
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

  /** Returns one result per row, in row order. Throws only if a row names an unknown flow, before any episode starts. */
  async run(rows: readonly FlowRow[], signal: AbortSignal = new AbortController().signal): Promise<readonly EpisodeResult[]> {
    const { workers = WORKERS, flows, defaultFlow } = this.#options;
    for (const row of rows) flows.flow(row?.agent_name ?? defaultFlow);
    const worker = new AgentFlowWorker(this.#options);
    return (await mapConcurrently(rows, workers, (row) => worker.run(row, signal))) ?? [];
  }
}

export class AgentFlowWorker {
  readonly #options: ManagerOptions;

  constructor(options: ManagerOptions) {
    this.#options = options;
  }

  /** Runs one episode. Never throws because of the flow or the row. */
  async run(row: FlowRow, outer: AbortSignal = new AbortController().signal): Promise<EpisodeResult> {
    const { timeoutMs = TIMEOUT_MS } = this.#options;
    const started = performance.now();
    const trajectoryUid = randomBytes(16).toString('hex');
    // Not `AbortSignal.timeout`: its timer does not keep the process alive when a hanging flow is all that is left.
    using deadline = deadlineSignal(timeoutMs, () => new Error(`not done within ${timeoutMs} ms`), outer);
    const { signal } = deadline;
    const seconds = () => (performance.now() - started) / 1000;
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
      // Abandon a flow that ignores its signal: its later requests find the trajectory complete.
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

/** Statuses that mean there is nothing to complete: the trajectory never began, or has another name or prompt, as black boxes' do. */
const NONE_OF_OURS: ReadonlySet<unknown> = new Set([404, 409, 410]);

/** Completes the trajectory so that its group does not wait for it. Throws if the gateway could not store it. */
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
