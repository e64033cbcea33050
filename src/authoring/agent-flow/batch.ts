/**
 * Flows on a batch of rows, against a gateway anywhere: the manager hands rows to workers, one at a time each, until none is left.
 *
 * Results are in the order of the rows, whatever their number and however long each took. A flow that fails or takes too long is a
 * result, too, and keeps nobody else. Runs of `trainyard train` have a scheduler of their own and need none of this.
 */
import { randomBytes } from 'node:crypto';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import type { Json, PromptMessage } from '../../core/types.ts';
import { runEpisode } from './episode.ts';
import type { FlowRegistry } from './flow-registry.ts';
import type { FlowFields } from './flow-types.ts';
import { completeTrajectory, type GatewayDoor, type SamplingParams } from './gateway-client.ts';

const WORKERS = 8;
const TIMEOUT_MS = 600_000;
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

export type EpisodeResult =
  | { readonly kind: 'completed'; readonly numSteps: number; readonly trajectoryUid: string; readonly seconds: number }
  | {
      readonly kind: 'failed';
      readonly numSteps: 0;
      readonly error: string;
      readonly trajectoryUid: string;
      readonly seconds: number;
    };

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
    const { workers = WORKERS, timeoutMs = TIMEOUT_MS } = options;
    if (!(Number.isSafeInteger(workers) && workers >= 1))
      throw new TrainyardError('USAGE', `workers: expected 1 or more, found ${workers}`);
    if (!(timeoutMs > 0)) throw new TrainyardError('USAGE', `timeoutMs: expected a number above 0, found ${timeoutMs}`);
    options.flows.flow(options.defaultFlow);
    this.#options = options;
  }

  /** One result for each row, in their order. Throws only where a row names a flow that is not there, before anything runs. */
  async run(rows: readonly FlowRow[], signal: AbortSignal = new AbortController().signal): Promise<readonly EpisodeResult[]> {
    const { workers = WORKERS, flows, defaultFlow } = this.#options;
    for (const { agent_name: name = defaultFlow } of rows) flows.flow(name);
    const results: EpisodeResult[] = [];
    let next = 0;
    const work = async (worker: AgentFlowWorker): Promise<void> => {
      for (let place = next++; place < rows.length; place = next++) results[place] = await worker.run(rows[place]!, signal);
    };
    await Promise.all(Array.from({ length: Math.min(workers, rows.length) }, () => work(new AgentFlowWorker(this.#options))));
    return results;
  }
}

/** Runs one episode after the other. */
export class AgentFlowWorker {
  readonly #options: ManagerOptions;

  constructor(options: ManagerOptions) {
    this.#options = options;
  }

  /** Never throws for what a flow did. */
  async run(row: FlowRow, outer: AbortSignal = new AbortController().signal): Promise<EpisodeResult> {
    const { flows, defaultFlow, gatewayUrl: url, gatewayKey: key, samplingParams = {}, timeoutMs = TIMEOUT_MS } = this.#options;
    const { fetch = globalThis.fetch } = this.#options;
    const started = performance.now();
    const fields = fieldsOf(row);
    const signal = AbortSignal.any([outer, AbortSignal.timeout(timeoutMs)]);
    const door: GatewayDoor = { url, key, fetch, signal };
    const seconds = (): number => (performance.now() - started) / 1000;
    const { trajectoryUid } = fields;
    try {
      const flow = flows.flow(row.agent_name ?? defaultFlow);
      const numSteps = await orAborted(runEpisode({ flow, door, samplingParams, fields }), signal);
      await conclude(door, fields);
      return { kind: 'completed', numSteps, trajectoryUid, seconds: seconds() };
    } catch (thrown) {
      const error = signal.aborted && !outer.aborted ? `not done within ${timeoutMs} ms` : messageOf(thrown);
      await conclude(door, fields, error.slice(0, 2000));
      return { kind: 'failed', numSteps: 0, error, trajectoryUid, seconds: seconds() };
    }
  }
}

/** A flow that does not mind its signal is left behind: what it does later finds its trajectory complete. */
function orAborted<T>(running: Promise<T>, signal: AbortSignal): Promise<T> {
  const aborted = new Promise<never>((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    else signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  });
  return Promise.race([running, aborted]);
}

/** Its group must not wait for it. A trajectory that never began, or has another name, as those of black boxes do, is none. */
async function conclude(door: GatewayDoor, { trajectoryUid, promptUid }: FlowFields, error?: string): Promise<void> {
  const base = `${door.url.replace(/\/$/, '')}/${encodeURIComponent(trajectoryUid)}/${encodeURIComponent(promptUid)}/v1`;
  await completeTrajectory(door, base, { error }).catch(() => 0);
}

function fieldsOf(row: FlowRow): FlowFields {
  const prompt: PromptMessage[] =
    typeof row.prompt === 'string' ? [{ role: 'user', content: row.prompt }] : structuredClone([...row.prompt]);
  const own = Object.fromEntries(Object.entries(row).filter(([name]) => !ANSWERS.has(name)));
  const id = typeof row['id'] === 'string' ? row['id'] : undefined;
  return {
    ...(structuredClone(own) as Readonly<Record<string, Json>>),
    trajectoryUid: randomBytes(16).toString('hex'),
    promptUid: row.promptUid ?? id ?? randomBytes(16).toString('hex'),
    rawPrompt: prompt.findLast(({ role }) => role === 'user')?.content ?? '',
    prompt,
    channel: row.channel ?? 'train',
  } as unknown as FlowFields;
}
