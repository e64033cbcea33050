/**
 * What `run` may return: nothing, the conversation, or `{ messages, metrics, info }`. Anything else is refused: what a workflow meant to
 * say must not be lost without a word.
 */
import type { WorkflowResult } from '../core/contracts.ts';
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Json, Message } from '../core/types.ts';
import type { RolloutContext } from './rollout-context.ts';

export interface AgentWorkflowOutput {
  /** The conversation as the workflow would have it graded; absent or null: as the gateway saw it. */
  readonly messages?: readonly Message[] | null;
  /** Finite numbers, for reports. */
  readonly metrics?: Readonly<Record<string, number>>;
  /** Whatever else a grader should see. */
  readonly info?: Readonly<Record<string, Json>>;
}

const KEYS: readonly string[] = ['messages', 'metrics', 'info'];

/** As the core has it: messages are the output, info is metadata, sample sources give the threads. */
export async function resultOf(returned: unknown, rollout: RolloutContext): Promise<WorkflowResult> {
  const { messages, metrics, info } = outputOf(returned);
  const samples = Object.entries(await rollout.getSamples());
  const threads = Object.fromEntries(samples.map(([name, sample]) => [name, sample.messages]));
  return {
    ...(messages == null ? {} : { output: messages as readonly object[] as Json }),
    ...(metrics === undefined ? {} : { metrics }),
    ...(info === undefined ? {} : { metadata: info }),
    ...(samples.length === 0 ? {} : { threads }),
  };
}

function outputOf(returned: unknown): AgentWorkflowOutput {
  if (returned === undefined || returned === null) return {};
  if (Array.isArray(returned)) return { messages: returned as Message[] };
  if (typeof returned !== 'object') throw bad(`got ${describeValue(returned)}`);
  const unknown = Object.keys(returned).filter((key) => !KEYS.includes(key));
  if (unknown.length > 0) throw bad(`got an object with ${unknown.join(', ')}`);
  const { messages, metrics } = returned as AgentWorkflowOutput;
  if (messages != null && !Array.isArray(messages)) throw bad(`got messages ${describeValue(messages)}`);
  const broken = Object.entries(metrics ?? {}).find(([, value]) => !Number.isFinite(value));
  if (broken !== undefined) throw bad(`got the metric ${describeValue(broken[0])} as ${describeValue(broken[1])}`);
  return returned;
}

function bad(found: string): TrainyardError {
  return new TrainyardError(
    'WORKFLOW_BAD_RESULT',
    `run() must return AgentWorkflowOutput ({ messages?, metrics?, info? }), a message list, or nothing; ${found}`,
    { hint: 'rewards are given by the Grader' },
  );
}
