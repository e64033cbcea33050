/**
 * Base classes of flows whose agent is a black box that speaks the OpenAI API to a base URL. They wrap it in the protocol, init → register
 * → complete, and complete the trajectory even if the agent fails. A subclass runs the agent in `_runAgent` or names a program.
 */
import { orAborted } from '../../core/async.ts';
import { type EntryModule, type Workflow, workflowSymbol } from '../../core/contracts.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import type { ByName, Json } from '../../core/types.ts';
import { type AgentProcessEnd, agentEnvironment, runAgentProcess } from '../../processes/agent-process.ts';
import { AgentFlowBase, lowerFlow } from './agent-flow-base.ts';
import type { FlowFields } from './flow-registry.ts';
import { completeTrajectory, initTrajectory, registerTrajectory, type SamplingParams } from './gateway-client.ts';

export interface BlackBoxAgent {
  /** Allows model calls and nothing else. */
  readonly apiKey: string;
  readonly signal: AbortSignal;
  /** Calls an in-process gateway directly; requests to the base URL have the same effect. */
  readonly fetch: typeof globalThis.fetch;
}

/** Without a reward, the grader decides. */
// biome-ignore lint/suspicious/noConfusingVoidType: an agent that says nothing returns nothing
export type BlackBoxOutcome = { readonly reward?: number } | undefined | void;

export abstract class BlackBoxAgentFlowBase<Config = unknown, Row extends object = Record<never, never>> extends AgentFlowBase<
  Config,
  Row
> {
  static override readonly abstract: boolean = true;

  /** Runs the agent on one task. If it throws, the rollout fails, and the trajectory is still completed. */
  abstract _runAgent(baseURL: string, fields: FlowFields<Row>, agent: BlackBoxAgent): Promise<BlackBoxOutcome>;

  async run(_samplingParams: SamplingParams, fields: FlowFields<Row>): Promise<number> {
    const door = this.gatewayDoor;
    const { trajectoryUid, baseUrl, apiKey } = await initTrajectory(door);
    const base = baseUrl.replace(/[^/]+\/v1$/, `${encodeURIComponent(fields.promptUid)}/v1`);
    let reward: number | undefined;
    try {
      await registerTrajectory(door, base, { channel: fields.channel, metadata: metadataOf(fields) });
      const own = { ...fields, trajectoryUid };
      // Abandon an agent that ignores its signal: its trajectory has failed, whatever it reports later.
      const running = this._runAgent(base, own, { apiKey, signal: door.signal, fetch: door.fetch });
      reward = (await orAborted(Promise.resolve(running), door.signal))?.reward;
    } catch (thrown) {
      await completeTrajectory(door, base, { error: messageOf(thrown).slice(0, 2000) }).catch(() => 0);
      throw thrown;
    }
    return await completeTrajectory(door, base, { reward });
  }

  static override readonly [workflowSymbol]: (this: unknown, module: EntryModule) => Workflow | undefined = lowerBlackBox;
}

function lowerBlackBox(this: unknown, module: EntryModule): Workflow | undefined {
  const { name, prototype } = this as { readonly name: string; readonly prototype: { readonly _runAgent?: unknown } };
  if (Object.hasOwn(this as object, 'abstract') || typeof prototype._runAgent === 'function') return lowerFlow.call(this);
  module.problem(
    new TrainyardError(
      'WORKFLOW_INVALID',
      `the flow ${name} has no _runAgent`,
      'write async _runAgent(baseURL, fields, { apiKey }) { … }',
    ),
  );
  return undefined;
}

/** Not part of the agent's metadata: protocol names and the prompt itself. */
const OURS: ReadonlySet<string> = new Set(['trajectoryUid', 'promptUid', 'rawPrompt', 'prompt', 'channel', 'agent_name']);
/** The gateway's limit, in characters of JSON. */
const MOST_METADATA = 100_000;

/** Leaves out fields that exceed the limit; the task has them, and the agent received them. */
function metadataOf(fields: object): ByName<Json> {
  let left = MOST_METADATA;
  const kept = Object.entries(fields).filter(([name, value]) => {
    const length = OURS.has(name) ? Infinity : JSON.stringify({ [name]: value }).length;
    if (length > left) return false;
    left -= length;
    return true;
  });
  return Object.fromEntries(kept) as ByName<Json>;
}

const DEADLINE_MS = 600_000;
const SHOWN = 500;

/**
 * Runs any program as the agent, once per rollout. Its environment holds the base URL and key under the names stock clients read; its
 * standard input is the task's fields as JSON. It is killed at its deadline, above its memory limit, and when the rollout ends. It cannot
 * report a reward: only a grader gives one.
 */
export abstract class ProcessAgentFlow<Config = unknown, Row extends object = Record<never, never>> extends BlackBoxAgentFlowBase<
  Config,
  Row
> {
  static override readonly abstract: boolean = true;
  abstract readonly command: readonly [string, ...string[]];
  readonly deadlineMs: number = DEADLINE_MS;
  /** Resident memory of the program and its child processes. If absent, only the system's limit applies. */
  readonly memoryMb?: number;
  /** Defaults to an empty folder of its own, as its home and temporary folder are. */
  readonly cwd?: string;
  readonly env: ByName<string> = {};
  /** Variables of the run's environment to pass on, by name. */
  readonly inheritEnv: readonly string[] = [];

  async _runAgent(baseURL: string, fields: FlowFields<Row>, { apiKey, signal }: BlackBoxAgent): Promise<void> {
    const [command, ...args] = this.command;
    const { memoryMb, cwd, deadlineMs, inheritEnv } = this;
    const env = { ...this.env, ...agentEnvironment({ baseURL, apiKey }) };
    const input = JSON.stringify(fields);
    const bounds = { signal, deadlineMs, memoryMb, cwd };
    const { end, stderr } = await runAgentProcess({ command, args, env, inheritEnv, input, ...bounds });
    if (end.kind === 'exited' && end.code === 0) return;
    const said = stderr.trim().slice(-SHOWN);
    throw new TrainyardError('WORKFLOW_FAILED', `the agent ${command} ${inWords(end)}${said === '' ? '' : `: ${said}`}`);
  }
}

function inWords(end: AgentProcessEnd): string {
  switch (end.kind) {
    case 'exited':
      return `exited with ${end.code}`;
    case 'killed':
      return `was killed by ${end.signal}`;
    case 'deadline':
      return `did not end within ${end.deadlineMs} ms`;
    case 'memory':
      return `used ${end.residentMb} MB; it may use ${end.limitMb}`;
    case 'cancelled':
      return 'was ended with its rollout';
    case 'unstartable':
      return `cannot be started: ${end.message}`;
  }
}
