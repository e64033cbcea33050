/** `trainyard/agent-flow`: flows in the manner of Claw-R1. */
export { AgentFlowBase } from './authoring/agent-flow/agent-flow-base.ts';
export {
  AgentFlowManager,
  AgentFlowWorker,
  type EpisodeResult,
  type FlowRow,
  type ManagerOptions,
} from './authoring/agent-flow/batch.ts';
export { type BlackBoxAgent, BlackBoxAgentFlowBase, type BlackBoxOutcome } from './authoring/agent-flow/black-box-flow.ts';
export { type FlowRegistry, flowRegistry, register } from './authoring/agent-flow/flow-registry.ts';
export type { FlowClass, FlowFields, FlowSetup, RegisteredFlow } from './authoring/agent-flow/flow-types.ts';
export { readFlowsFile } from './authoring/agent-flow/flows-file.ts';
export type {
  FlowMessage,
  GatewayGeneration,
  GatewayReward,
  GenerateFields,
  RewardFields,
  SamplingParams,
} from './authoring/agent-flow/gateway-client.ts';
export { type FlowTool, MultiStepAgentFlow } from './authoring/agent-flow/multi-step-flow.ts';
export { ProcessAgentFlow } from './authoring/agent-flow/process-flow.ts';
export { SingleStepSingleTurnAgentFlow } from './authoring/agent-flow/single-step-flow.ts';
export { Step, type StepFields } from './authoring/agent-flow/step.ts';
