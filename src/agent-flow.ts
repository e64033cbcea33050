/** `trainyard/agent-flow`: agent flows in the style of Claw-R1. */
export {
  AgentFlowBase,
  type FlowTool,
  MultiStepAgentFlow,
  SingleStepSingleTurnAgentFlow,
} from './shapes/flows/agent-flow-base.ts';
export {
  type BlackBoxAgent,
  BlackBoxAgentFlowBase,
  type BlackBoxOutcome,
  ProcessAgentFlow,
} from './shapes/flows/black-box-flow.ts';
export {
  AgentFlowManager,
  AgentFlowWorker,
  type EpisodeResult,
  type FlowRow,
  type ManagerOptions,
} from './shapes/flows/flow-batch.ts';
export {
  type FlowClass,
  type FlowFields,
  type FlowRegistry,
  type FlowSetup,
  flowRegistry,
  type RegisteredFlow,
  register,
} from './shapes/flows/flow-registry.ts';
export { readFlowsFile } from './shapes/flows/flows-file.ts';
export {
  type FlowMessage,
  type GatewayGeneration,
  type GatewayReward,
  type GenerateFields,
  type RewardFields,
  type SamplingParams,
  Step,
  type StepFields,
} from './shapes/flows/gateway-client.ts';
