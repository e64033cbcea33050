/**
 * The public API of `trainyard`: what you need to write an agent or a grader, and to start a run. Cheap to load, because grading processes
 * load it too; runs load their parts when called. `trainyard/loop` has the pieces for writing your own loop.
 */

export type { Verification } from './audit/verify.ts';
export type { Difference, VerifyOptions } from './audit/verify-records.ts';
export { ambientModel, currentRollout, rolloutFetch } from './core/context.ts';
export type {
  ClientOptions,
  DefaultModel,
  DefaultModelAnswer,
  DefaultModelLike,
  DefaultModelRequest,
  GenerateRequest,
  Generation,
  Grader,
  GraderContext,
  GraderInput,
  GraderModel,
  GraderResult,
  GraderRunner,
  GraderTurn,
  ModelHandle,
  ModelServer,
  Role,
  SeatOptions,
  Session,
  SessionHost,
  SessionSpec,
  Store,
  TrajectoryFilter,
  Ungraded,
  Workflow,
  WorkflowContext,
  WorkflowResult,
} from './core/contracts.ts';
export {
  defineGrader,
  defineWorkflow,
  type GradeFunction,
  type GraderClass,
  type GraderOptions,
  rejected,
  unscorable,
  type WorkflowDefinition,
  type WorkflowOptions,
} from './core/define.ts';
export { type Boundary, ERROR_CODES, type ErrorCode } from './core/error-codes.ts';
export { boundary, TrainyardError } from './core/errors.ts';
export type {
  Best,
  Emit,
  EvalDone,
  EvaluationReport,
  Phase,
  RunEnding,
  RunEvent,
  Score,
  StepReport,
  TagReport,
  TrainDone,
} from './core/events.ts';
export type {
  AdamSettings,
  Engine,
  ForwardBackwardResult,
  Loss,
  LossInput,
  LossOutput,
  OnTokens,
  SampleRequest,
  SampleResult,
  Trainer,
} from './core/policy.ts';
export type {
  BatchManifest,
  Exclusion,
  Grade,
  Json,
  LimitName,
  Limits,
  Mark,
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
export type { EvaluationOptions, EvaluationResult } from './evaluation/evaluate.ts';
export type { RolloutResult, TaskResult } from './evaluation/results.ts';
export {
  type AgentProcessEnd,
  type AgentProcessOptions,
  type AgentProcessResult,
  agentEnvironment,
  runAgentProcess,
} from './processes/agent-process.ts';
export type { EvaluationResumeRequest, ResumeRequest } from './run/plan.ts';
export { evaluateOnly, resume, resumeEvaluation, rolloutBatch, sft, train, verify } from './run/start.ts';
export type {
  EvaluationRequest,
  EvaluationSettings,
  TrainFromRequest,
  TrainRequest,
  TrainSettings,
} from './settings/check-settings.ts';
export { type Config, type ConfigSettings, defineConfig } from './settings/config.ts';
export { BASE_MODEL } from './settings/settings.ts';
export type { RawRow, TaskRow, TaskSource } from './tasks/rows.ts';
export type { RolloutBatchRequest } from './training/groups.ts';
export type { TrainOptions, TrainResult } from './training/train.ts';
