/** `trainyard/areal`: agents as AReaL's documents write them. docs/guide/09-coming-from-areal.md says what is called what. */
export {
  type Agent,
  type AgentExtras,
  type AgentOptions,
  type AgentReward,
  agentWorkflow,
} from './areal/agent-workflow.ts';
export {
  type AsyncReward,
  type AsyncRewardOptions,
  AsyncRewardWrapper,
  type RewardReference,
} from './areal/async-reward.ts';
export type { GenerationConfig, InferenceEngine, ModelRequest, ModelResponse } from './areal/engine.ts';
export type { EpisodeData } from './areal/episode-data.ts';
export { type ExportOptions, exportInteractions, type TrajectoryTensors } from './areal/export-interactions.ts';
export type { HttpClient } from './areal/http-client.ts';
export type { EpisodeGroup } from './areal/lowered.ts';
export { type EpisodeSample, episodeSample } from './areal/returned-samples.ts';
export { type EpisodeResult, type Interactions, RolloutWorkflow } from './areal/rollout-workflow.ts';
export { checkTrajectoryFormat } from './areal/trajectory-format.ts';
export { type WorkflowContextView, workflowContext } from './areal/workflow-context.ts';
