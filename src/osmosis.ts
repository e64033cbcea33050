/** `trainyard/osmosis`: workflows and graders as classes, after the Osmosis SDK. Re-exports only. */

export { AgentWorkflow, type AgentWorkflowReturn } from './osmosis/agent-workflow.ts';
export type { AgentWorkflowContext, Metadata } from './osmosis/agent-workflow-context.ts';
export type { AgentWorkflowOutput } from './osmosis/agent-workflow-output.ts';
export type { Patience } from './osmosis/callbacks.ts';
export { AgentWorkflowConfig, ConcurrencyConfig, type ConfigFields, GraderConfig } from './osmosis/config.ts';
export type { EntryParts } from './osmosis/entry.ts';
export type {
  CancelSelector,
  Completion,
  Disposition,
  ErrorCategory,
  ExecutionBackend,
  ExecutionHooks,
  GradedSample,
  Grading,
  RolloutRequest,
  RolloutState,
  RolloutStatus,
} from './osmosis/execution.ts';
export { Grader } from './osmosis/grader.ts';
export { GraderContext } from './osmosis/grader-context.ts';
export { LocalBackend, type LocalBackendOptions } from './osmosis/local-backend.ts';
export {
  getRolloutContext,
  RolloutContext,
  type RolloutContextFields,
  type SampleSource,
} from './osmosis/rollout-context.ts';
export { RolloutSample, type RolloutSampleFields } from './osmosis/rollout-sample.ts';
export { createRolloutServer, type RolloutServer, type RolloutServerOptions } from './osmosis/server.ts';
