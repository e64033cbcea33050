/**
 * The base of flows whose agent is a black box: it speaks OpenAI to a base URL, and the gateway does the rest. This does the protocol
 * around it, init → register → complete, the last in every case; a subclass runs the agent.
 */
import { orAborted } from '../core/async.ts';
import { type EntryModule, workflowSymbol } from '../core/contracts.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { FlowWorkflow } from '../core/flow-door.ts';
import type { Json } from '../core/types.ts';
import { AgentFlowBase, lowerFlow } from './agent-flow-base.ts';
import type { FlowFields } from './flow-types.ts';
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

/** Not for the agent's metadata: ours, or the prompt itself. */
const OURS: ReadonlySet<string> = new Set(['trajectoryUid', 'promptUid', 'rawPrompt', 'prompt', 'channel', 'agent_name']);

/** Characters of JSON that the gateway takes. */
const MOST_METADATA = 100_000;

export abstract class BlackBoxAgentFlowBase<Config = unknown, Row extends object = Record<never, never>> extends AgentFlowBase<
  Config,
  Row
> {
  static override readonly abstract: boolean = true;

  /** Runs the agent on one task. What it throws fails the rollout; the trajectory is completed all the same. */
  abstract _runAgent(baseURL: string, fields: FlowFields<Row>, agent: BlackBoxAgent): Promise<BlackBoxOutcome>;

  async run(_samplingParams: SamplingParams, fields: FlowFields<Row>): Promise<number> {
    const door = this.gatewayDoor;
    const { trajectoryUid, baseURL, apiKey } = await initTrajectory(door);
    const base = ofPrompt(baseURL, fields.promptUid);
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

  static override readonly [workflowSymbol]: (this: unknown, module: EntryModule) => FlowWorkflow | undefined = lowerBlackBox;
}

function lowerBlackBox(this: unknown, module: EntryModule): FlowWorkflow | undefined {
  const { name, prototype } = this as { readonly name: string; readonly prototype: { readonly _runAgent?: unknown } };
  if (Object.hasOwn(this as object, 'abstract') || typeof prototype._runAgent === 'function') return lowerFlow.call(this);
  module.problem(
    new TrainyardError('WORKFLOW_INVALID', `the flow ${name} has no _runAgent`, {
      hint: 'write async _runAgent(baseURL, fields, { apiKey }) { … }',
    }),
  );
  return undefined;
}

/** The base URL of another prompt: its second segment. */
function ofPrompt(baseURL: string, promptUid: string): string {
  return baseURL.replace(/[^/]+\/v1$/, `${encodeURIComponent(promptUid)}/v1`);
}

/** What is too long for the protocol is left out: the task has it, and the agent was given it. */
function metadataOf(fields: object): Readonly<Record<string, Json>> {
  const own = Object.entries(fields).filter(([name]) => !OURS.has(name));
  let left = MOST_METADATA;
  const kept = own.filter(([name, value]) => {
    const length = JSON.stringify({ [name]: value }).length;
    if (length > left) return false;
    left -= length;
    return true;
  });
  return Object.fromEntries(kept) as Readonly<Record<string, Json>>;
}
