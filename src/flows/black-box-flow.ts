/**
 * The base of flows whose agent is a black box: it speaks OpenAI to a base URL, and the gateway does the rest. This does the protocol
 * around it, init → register → complete, the last in every case; a subclass runs the agent, or names a program that is one.
 */
import { orAborted } from '../core/async.ts';
import { type EntryModule, type Workflow, workflowSymbol } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import type { Json } from '../core/types.ts';
import { type AgentProcessEnd, agentEnvironment, runAgentProcess } from '../processes/agent-process.ts';
import { AgentFlowBase, lowerFlow } from './agent-flow-base.ts';
import type { FlowFields } from './flow-registry.ts';
import { completeTrajectory, initTrajectory, registerTrajectory, type SamplingParams } from './gateway-client.ts';

/** What an agent needs besides the base URL. */
export interface BlackBoxAgent {
  /** May call the model, and nothing else. */
  readonly apiKey: string;
  readonly signal: AbortSignal;
  /** The gateway in this process, where it is; the base URL does the same. */
  readonly fetch: typeof globalThis.fetch;
}

/** Nothing, where a grader decides. */
// biome-ignore lint/suspicious/noConfusingVoidType: an agent that says nothing returns nothing
export type BlackBoxOutcome = { readonly reward?: number } | undefined | void;

export abstract class BlackBoxAgentFlowBase<Config = unknown, Row extends object = Record<never, never>> extends AgentFlowBase<
  Config,
  Row
> {
  static override readonly abstract: boolean = true;

  /** Runs the agent on one task. What it throws fails the rollout; the trajectory is completed all the same. */
  abstract _runAgent(baseURL: string, fields: FlowFields<Row>, agent: BlackBoxAgent): Promise<BlackBoxOutcome>;

  async run(_samplingParams: SamplingParams, fields: FlowFields<Row>): Promise<number> {
    const door = this.gatewayDoor;
    const { trajectoryUid, baseUrl, apiKey } = await initTrajectory(door);
    // The prompt is the second segment of a base URL.
    const base = baseUrl.replace(/[^/]+\/v1$/, `${encodeURIComponent(fields.promptUid)}/v1`);
    let reward: number | undefined;
    try {
      await registerTrajectory(door, base, { channel: fields.channel, metadata: metadataOf(fields) });
      const own = { ...fields, trajectoryUid };
      // An agent that does not mind its signal is left behind: its trajectory has failed, whatever it says later.
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
    new TrainyardError('WORKFLOW_INVALID', `the flow ${name} has no _runAgent`, {
      hint: 'write async _runAgent(baseURL, fields, { apiKey }) { … }',
    }),
  );
  return undefined;
}

/** Not for the agent's metadata: ours, or the prompt itself. */
const OURS: ReadonlySet<string> = new Set(['trajectoryUid', 'promptUid', 'rawPrompt', 'prompt', 'channel', 'agent_name']);
/** Characters of JSON that the gateway takes. */
const MOST_METADATA = 100_000;

/** What is too long for the protocol is left out: the task has it, and the agent was given it. */
function metadataOf(fields: object): Readonly<Record<string, Json>> {
  let left = MOST_METADATA;
  const kept = Object.entries(fields).filter(([name, value]) => {
    const length = OURS.has(name) ? Infinity : JSON.stringify({ [name]: value }).length;
    if (length > left) return false;
    left -= length;
    return true;
  });
  return Object.fromEntries(kept) as Readonly<Record<string, Json>>;
}

// ── programs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

const DEADLINE_MS = 600_000;
const SHOWN = 500;

/**
 * A black box that is any program: started for each rollout with base URL and key in its environment, as stock clients look for them,
 * and with the task's fields as JSON on its standard input. Ended at its deadline, beyond its memory, and with the rollout.
 *
 * What it prints is not looked at: a reward is for a grader to give.
 */
export abstract class ProcessAgentFlow<Config = unknown, Row extends object = Record<never, never>> extends BlackBoxAgentFlowBase<
  Config,
  Row
> {
  static override readonly abstract: boolean = true;
  /** The program and its arguments. */
  abstract readonly command: readonly [string, ...string[]];
  readonly deadlineMs: number = DEADLINE_MS;
  /** Of the program and whatever it starts; absent: no limit but the system's. */
  readonly memoryMb?: number;
  /** Absent: an empty folder of its own, as its home and its temporary folder are. */
  readonly cwd?: string;
  /** Added to its environment. */
  readonly env: Readonly<Record<string, string>> = {};
  /** Names of variables of the run's environment that it gets too. */
  readonly inheritEnv: readonly string[] = [];

  async _runAgent(baseURL: string, fields: FlowFields<Row>, { apiKey, signal }: BlackBoxAgent): Promise<void> {
    const [command, ...args] = this.command;
    const { memoryMb, cwd, deadlineMs, inheritEnv } = this;
    const env = { ...this.env, ...agentEnvironment({ baseURL, apiKey }) };
    const input = JSON.stringify(fields);
    const bounds = { signal, deadlineMs, ...defined({ memoryMb, cwd }) };
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
