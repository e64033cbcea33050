/**
 * The public surface of `trainyard`: what a person needs to write an agent, a grader, or a run of their own.
 *
 * Two layers. `train` and `evaluateOnly` are whole runs. Below them are the pieces those are made of, for a loop of one's own:
 * examples/loop.ts is one, on a page.
 */
export { ambientModel, currentRollout, rolloutFetch } from './core/context.ts';
export type {
  ClientOptions,
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
export type { DefaultModel, DefaultModelAnswer, DefaultModelLike, DefaultModelRequest } from './core/default-model.ts';
export { defineWorkflow, type WorkflowDefinition, type WorkflowOptions } from './core/define.ts';
export {
  defineGrader,
  type GradeFunction,
  type GraderClass,
  type GraderOptions,
  rejected,
  unscorable,
} from './core/define-grader.ts';
export { type Boundary, boundary, ERROR_CODES, type ErrorCode, TrainyardError } from './core/errors.ts';
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
export type { RawRow, TaskRow, TaskSource } from './dataset/rows.ts';
export { type Dataset, type DatasetOptions, readDataset, readRows, readTasks } from './dataset/tasks.ts';
export { Gateway, type GatewayOptions } from './gateway/gateway.ts';
export { type Listener, listen } from './gateway/listener.ts';
export { EmbeddedModel, type ThreadOptions } from './nn/policy.ts';
export {
  type AgentProcessEnd,
  type AgentProcessOptions,
  type AgentProcessResult,
  agentEnvironment,
  runAgentProcess,
} from './processes/agent-process.ts';
export { contextOf, type OwnContext } from './rollout/rollout-context.ts';
export { type EvaluationOptions, type EvaluationResult, evaluateOnly, resumeEvaluation } from './run/eval.ts';
export type { EvaluationResumeRequest } from './run/evaluation-plan.ts';
export type { RolloutResult, TaskResult } from './run/evaluation-results.ts';
export type { EvaluationRequest, EvaluationSettings } from './run/evaluation-settings.ts';
export type { ResumeRequest } from './run/plan.ts';
export { type RolloutBatchRequest, rolloutBatch } from './run/rollout-batch.ts';
export { BASE_MODEL, type TrainRequest, type TrainSettings } from './run/settings.ts';
export { resume, type TrainOptions, type TrainResult, train } from './run/train.ts';
export { type Difference, type Verification, type VerifyOptions, verify } from './run/verify.ts';
export { memoryStore } from './store/memory.ts';
export { openSqliteStore } from './store/sqlite.ts';
export { loadRenderer, type Renderer } from './tokens/renderer.ts';
export { type StitchOptions, stitch } from './tokens/stitch.ts';
export {
  ALGORITHMS,
  type Algorithm,
  advantagesOf,
  hasSignal,
  turnAdvantagesOf,
  WEIGHTINGS,
  type Weighting,
} from './trainer/advantages.ts';
export { attachReference, type Batch, makeBatch } from './trainer/batch.ts';
export { type ClipSettings, cispo, crossEntropy, dro, importanceSampling, ppo, withKl } from './trainer/losses.ts';
export {
  EnvironmentClient,
  EnvironmentInstance,
  type EnvironmentOptions,
  type EnvironmentTasksOptions,
  environmentTasks,
  type StepResult,
} from './tuner/environment.ts';
