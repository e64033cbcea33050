/** `trainyard/osmosis`: workflows and graders as classes, in the style of the Osmosis SDK. Re-exports only. */

export type { SampleSource } from './core/context.ts';
export type { Patience } from './osmosis/callbacks.ts';
export { AgentWorkflowConfig, ConcurrencyConfig, type ConfigFields, GraderConfig } from './osmosis/class-config.ts';
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
export { Grader, GraderContext } from './osmosis/grader-class.ts';
export type { EntryParts } from './osmosis/local-backend.ts';
export { LocalBackend, type LocalBackendOptions } from './osmosis/local-backend.ts';
export { createRolloutServer, type RolloutServer, type RolloutServerOptions } from './osmosis/rollout-server.ts';
export {
  getRolloutContext,
  RolloutContext,
  type RolloutContextFields,
  RolloutSample,
  type RolloutSampleFields,
} from './osmosis/samples.ts';
export {
  AgentWorkflow,
  type AgentWorkflowContext,
  type AgentWorkflowOutput,
  type AgentWorkflowReturn,
  type Metadata,
} from './osmosis/workflow-class.ts';
