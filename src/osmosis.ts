/** `trainyard/osmosis`: workflows and graders as classes, in the style of the Osmosis SDK. Re-exports only. */

export type { SampleSource } from './core/context.ts';
export type { Patience } from './shapes/osmosis/callbacks.ts';
export { AgentWorkflowConfig, ConcurrencyConfig, type ConfigFields, GraderConfig } from './shapes/osmosis/class-config.ts';
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
} from './shapes/osmosis/execution.ts';
export { Grader, GraderContext } from './shapes/osmosis/grader-class.ts';
export type { EntryParts } from './shapes/osmosis/local-backend.ts';
export { LocalBackend, type LocalBackendOptions } from './shapes/osmosis/local-backend.ts';
export { createRolloutServer, type RolloutServer, type RolloutServerOptions } from './shapes/osmosis/rollout-server.ts';
export {
  getRolloutContext,
  RolloutContext,
  type RolloutContextFields,
  RolloutSample,
  type RolloutSampleFields,
} from './shapes/osmosis/samples.ts';
export {
  AgentWorkflow,
  type AgentWorkflowContext,
  type AgentWorkflowOutput,
  type AgentWorkflowReturn,
  type Metadata,
} from './shapes/osmosis/workflow-class.ts';
