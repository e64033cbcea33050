/**
 * Whole runs, for `trainyard` itself: each function loads what it needs when it is called. A module that only defines an agent or a grader
 * imports the same package, in every grading process too, and must not pay for training.
 */
import type { Emit } from '../core/events.ts';
import type { Trajectory } from '../core/types.ts';
import type { EvaluationOptions, EvaluationResult } from './evaluate.ts';
import type { RolloutBatchOptions, RolloutBatchRequest } from './groups.ts';
import type { EvaluationResumeRequest, ResumeRequest } from './plan.ts';
import type { EvaluationRequest, TrainRequest } from './settings.ts';
import type { TrainOptions, TrainResult } from './train.ts';
import type { Verification, VerifyOptions } from './verify.ts';

/** Runs to the last step. Everything that can be wrong with the call is found before the run directory is made. */
export async function train(request: TrainRequest, emit?: Emit, options?: TrainOptions): Promise<TrainResult> {
  return await (await import('./train.ts')).train(request, emit, options);
}

/** Goes on with a run that was interrupted, killed or stopped by a budget; also with more `steps` than it was begun with. */
export async function resume(request: ResumeRequest, emit?: Emit, options?: TrainOptions): Promise<TrainResult> {
  return await (await import('./train.ts')).resume(request, emit, options);
}

/** Measures a policy on held-out tasks. Without a `run` directory nothing is kept. */
export async function evaluateOnly(
  request: EvaluationRequest,
  emit?: Emit,
  stop?: AbortSignal,
  options?: EvaluationOptions,
): Promise<EvaluationResult> {
  return await (await import('./evaluate.ts')).evaluateOnly(request, emit, stop, options);
}

/** Goes on with an evaluation. One that is finished is only reported again. */
export async function resumeEvaluation(
  request: EvaluationResumeRequest,
  emit?: Emit,
  stop?: AbortSignal,
  options?: EvaluationOptions,
): Promise<EvaluationResult> {
  return await (await import('./evaluate.ts')).resumeEvaluation(request, emit, stop, options);
}

/** Rollouts of some tasks, without training: a group for each task, null where it has no graded rollout that the workflow accepts. */
export async function rolloutBatch(
  request: RolloutBatchRequest,
  options?: RolloutBatchOptions,
): Promise<(readonly Trajectory[] | null)[]> {
  return await (await import('./groups.ts')).rolloutBatch(request, options);
}

/** Does a run again from its store, and says whether turns, rewards, steps and checkpoints are as they were kept. */
export async function verify(request: ResumeRequest, options?: VerifyOptions): Promise<Verification> {
  return await (await import('./verify.ts')).verify(request, options);
}
