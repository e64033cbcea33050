/** The public surface of `trainyard`: what a person needs to write an agent, a grader, or a run of their own. */
export { currentRollout } from './core/context.ts';
export type {
  AdamSettings,
  Engine,
  ForwardBackwardResult,
  Grader,
  GraderInput,
  GraderResult,
  GraderRunner,
  Loss,
  LossInput,
  LossOutput,
  ModelHandle,
  OnTokens,
  Role,
  SampleRequest,
  SampleResult,
  Session,
  SessionHost,
  SessionSpec,
  Store,
  Trainer,
  TrajectoryFilter,
  Workflow,
  WorkflowContext,
} from './core/contracts.ts';
export { defineGrader, defineWorkflow, type WorkflowDefinition } from './core/define.ts';
export { type Boundary, boundary, ERROR_CODES, type ErrorCode, TrainyardError } from './core/errors.ts';
export type { Best, Emit, Phase, RunEnding, RunEvent, Score, StepReport } from './core/events.ts';
export type {
  BatchManifest,
  Grade,
  Json,
  LimitName,
  Limits,
  Message,
  Outcome,
  PromptMessage,
  Purpose,
  Reward,
  RolloutIdentity,
  Sample,
  SamplingSettings,
  StopReason,
  Task,
  TaskView,
  Tool,
  ToolCall,
  Trajectory,
  Turn,
} from './core/types.ts';
export { evaluateOnly } from './run/eval.ts';
export type { ResumeRequest } from './run/plan.ts';
export type { EvalRequest, EvalSettings, TrainRequest, TrainSettings } from './run/settings.ts';
export { resume, type TrainOptions, type TrainResult, train } from './run/train.ts';
