/** `trainyard/osmosis`: workflows and graders as classes, after the Osmosis SDK. Re-exports only. */

export { AgentWorkflow, type AgentWorkflowReturn } from './authoring/osmosis/agent-workflow.ts';
export type { AgentWorkflowContext, Metadata } from './authoring/osmosis/agent-workflow-context.ts';
export type { AgentWorkflowOutput } from './authoring/osmosis/agent-workflow-output.ts';
export { AgentWorkflowConfig, ConcurrencyConfig, type ConfigFields, GraderConfig } from './authoring/osmosis/config.ts';
export { Grader } from './authoring/osmosis/grader.ts';
export { GraderContext } from './authoring/osmosis/grader-context.ts';
export {
  getRolloutContext,
  RolloutContext,
  type RolloutContextFields,
  type SampleSource,
} from './authoring/osmosis/rollout-context.ts';
export { RolloutSample, type RolloutSampleFields } from './authoring/osmosis/rollout-sample.ts';
