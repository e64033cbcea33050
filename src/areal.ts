/** `trainyard/areal`: agents as AReaL's documents write them. docs/guide/09-coming-from-areal.md says what is called what. */
export {
  type Agent,
  type AgentExtras,
  type AgentOptions,
  type AgentReward,
  agentWorkflow,
} from './authoring/areal/agent-workflow.ts';
export {
  type AsyncReward,
  type AsyncRewardOptions,
  AsyncRewardWrapper,
  type RewardReference,
} from './authoring/areal/async-reward.ts';
export type { GenerationConfig, InferenceEngine, ModelRequest, ModelResponse } from './authoring/areal/engine.ts';
export type { EpisodeData } from './authoring/areal/episode-data.ts';
export { type ExportOptions, exportInteractions, type TrajectoryTensors } from './authoring/areal/export-interactions.ts';
export type { HttpClient } from './authoring/areal/http-client.ts';
export type { EpisodeGroup } from './authoring/areal/lowered.ts';
export { type EpisodeSample, episodeSample } from './authoring/areal/returned-samples.ts';
export { type EpisodeResult, type Interactions, RolloutWorkflow } from './authoring/areal/rollout-workflow.ts';
export { checkTrajectoryFormat } from './authoring/areal/trajectory-format.ts';
export { type WorkflowContextView, workflowContext } from './authoring/areal/workflow-context.ts';
