/** `trainyard/tuner`: agents in the style of AgentScope's tuner, and environments served through its env_service protocol. */
// Loaded for their side effect: they declare and register the forms in which the tuner is a model of these SDKs.
export {} from './integrations/ai-sdk.ts';
export {} from './integrations/openai-agents.ts';
export {
  EnvironmentClient,
  EnvironmentInstance,
  type EnvironmentOptions,
  type EnvironmentTasksOptions,
  environmentTasks,
  type StepResult,
} from './shapes/tuner/environment.ts';
export { executePythonCode, type PythonOptions } from './shapes/tuner/execute-python-code.ts';
export {
  type ChatModelLike,
  type DefaultModelGiven,
  type LanguageModelLike,
  ModelTuner,
  type RegisterOptions,
  TunedModel,
} from './shapes/tuner/model-tuner.ts';
export type { Structured, StructuredModel, StructuredRequest } from './shapes/tuner/structured.ts';
export {
  BaseJudge,
  type ComputeReward,
  defineJudge,
  type JudgeTask,
  type OutputReward,
  type Task,
  type Verdict,
  Workflow,
  WorkflowOutput,
  type WorkflowOutputFields,
  WorkflowTask,
} from './shapes/tuner/workflow.ts';
