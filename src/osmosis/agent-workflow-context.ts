/** What `AgentWorkflow.run` gets: the row's prompt and metadata, the config, and the door to the policy. Never the label. */
import type { ModelHandle, WorkflowContext } from '../core/contracts.ts';
import type { Json, PromptMessage, Purpose } from '../core/types.ts';
import type { AgentWorkflowConfig } from './config.ts';

/** A row's `metadata` column. */
export type Metadata = { readonly [key: string]: Json };

export interface AgentWorkflowContext<TConfig = AgentWorkflowConfig> {
  /** The messages of the row; a copy of the rollout's own. */
  readonly prompt: PromptMessage[];
  /** A copy of the rollout's own; null where the entry module exports none. */
  readonly config: TConfig | null;
  /** Null where the row has none. */
  readonly metadata: Metadata | null;
  /** A folder of the rollout's own; null where none can be made. */
  readonly artifactsDir: string | null;
  readonly rolloutId: string;
  readonly purpose: Purpose;
  /** A number of the rollout's own, the same whenever it is run again. */
  readonly seed: number;
  /** Aborts at the rollout's deadline or when the run stops. */
  readonly signal: AbortSignal;
  /** Keeps a line with the trajectory. */
  log(text: string): void;
  /** Ends the rollout without a reward. */
  reject(reason: string): never;
  /** The policy without a framework: everything a stock client needs. Each `thread(name)` of it is a sample. */
  model(): ModelHandle;
}

export function agentWorkflowContext(ctx: WorkflowContext): AgentWorkflowContext<unknown> {
  return {
    prompt: ctx.prompt,
    config: ctx.config ?? null,
    metadata: (ctx.metadata ?? null) as Metadata | null,
    get artifactsDir() {
      return ctx.artifactsDir;
    },
    rolloutId: ctx.rolloutId,
    purpose: ctx.purpose,
    seed: ctx.seed,
    signal: ctx.signal,
    log: (text) => ctx.log(text),
    reject: (reason) => ctx.reject(reason),
    model: () => ctx.model(),
  };
}
