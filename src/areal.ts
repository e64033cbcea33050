/** `trainyard/areal`: agents in the style of AReaL. docs/coming-from/areal.md maps the names. */
export {
  type Agent,
  type AgentExtras,
  type AgentOptions,
  type AgentReward,
  agentWorkflow,
} from './shapes/areal/agent-workflow.ts';
export {
  type AsyncReward,
  type AsyncRewardOptions,
  AsyncRewardWrapper,
  type RewardReference,
} from './shapes/areal/async-reward.ts';
export {
  type EpisodeData,
  type EpisodeGroup,
  type HttpClient,
  type RewardData,
  type WorkflowContextView,
  workflowContext,
} from './shapes/areal/episode.ts';
export {
  type ExportOptions,
  exportInteractions,
  type TrajectoryTensors,
} from './shapes/areal/export-interactions.ts';
export { type EpisodeSample, episodeSample, type ModelResponse } from './shapes/areal/returned-samples.ts';
export {
  type EpisodeResult,
  type GenerationConfig,
  type InferenceEngine,
  type Interactions,
  type ModelRequest,
  RolloutWorkflow,
} from './shapes/areal/rollout-workflow.ts';
