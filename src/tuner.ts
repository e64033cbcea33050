/** `trainyard/tuner`: agents written as for AgentScope's tuner. */
export type { DefaultModelGiven, LanguageModelLike } from './authoring/tuner/default-model.ts';
export { BaseJudge, type ComputeReward, defineJudge, type Verdict } from './authoring/tuner/judge.ts';
export { ModelTuner, type RegisterOptions } from './authoring/tuner/model-tuner.ts';
export type { Structured, StructuredModel, StructuredRequest } from './authoring/tuner/structured.ts';
export { TunedModel } from './authoring/tuner/tuned-model.ts';
export { Workflow } from './authoring/tuner/workflow.ts';
export { type OutputReward, WorkflowOutput, type WorkflowOutputFields } from './authoring/tuner/workflow-output.ts';
export { type JudgeTask, type Task, WorkflowTask } from './authoring/tuner/workflow-task.ts';
