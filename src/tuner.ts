/** `trainyard/tuner`: agents written as for AgentScope's tuner, and environments at a service that speaks its env_service. */
export type { DefaultModelGiven, LanguageModelLike } from './tuner/default-model.ts';
export {
  EnvironmentClient,
  EnvironmentInstance,
  type EnvironmentOptions,
  type EnvironmentTasksOptions,
  environmentTasks,
  type StepResult,
} from './tuner/environment.ts';
export { BaseJudge, type ComputeReward, defineJudge, type Verdict } from './tuner/judge.ts';
export { ModelTuner, type RegisterOptions } from './tuner/model-tuner.ts';
export type { Structured, StructuredModel, StructuredRequest } from './tuner/structured.ts';
export { TunedModel } from './tuner/tuned-model.ts';
export { Workflow } from './tuner/workflow.ts';
export { type OutputReward, WorkflowOutput, type WorkflowOutputFields } from './tuner/workflow-output.ts';
export { type JudgeTask, type Task, WorkflowTask } from './tuner/workflow-task.ts';
