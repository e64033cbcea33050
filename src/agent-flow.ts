/** `trainyard/agent-flow`: flows in the manner of Claw-R1. */
export { AgentFlowBase } from './flows/agent-flow-base.ts';
export {
  AgentFlowManager,
  AgentFlowWorker,
  type EpisodeResult,
  type FlowRow,
  type ManagerOptions,
} from './flows/batch.ts';
export { type BlackBoxAgent, BlackBoxAgentFlowBase, type BlackBoxOutcome } from './flows/black-box-flow.ts';
export { type FlowRegistry, flowRegistry, register } from './flows/flow-registry.ts';
export type { FlowClass, FlowFields, FlowSetup, RegisteredFlow } from './flows/flow-types.ts';
export { readFlowsFile } from './flows/flows-file.ts';
export type {
  FlowMessage,
  GatewayGeneration,
  GatewayReward,
  GenerateFields,
  RewardFields,
  SamplingParams,
} from './flows/gateway-client.ts';
export { type FlowTool, MultiStepAgentFlow } from './flows/multi-step-flow.ts';
export { ProcessAgentFlow } from './flows/process-flow.ts';
export { SingleStepSingleTurnAgentFlow } from './flows/single-step-flow.ts';
export { Step, type StepFields } from './flows/step.ts';
