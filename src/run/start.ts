/**
 * Whole runs, for `trainyard` itself: each function loads what it needs when it is called. A module that only defines an agent or a grader
 * imports the same package, in every grading process too, and must not pay for training.
 */

/** Runs to the last step. Everything that can be wrong with the call is found before the run directory is made. */
export const train: typeof import('./train.ts').train = async (...given) => (await import('./train.ts')).train(...given);

/** Goes on with a run that was interrupted, killed or stopped by a budget; also with more `steps` than it was begun with. */
export const resume: typeof import('./train.ts').resume = async (...given) => (await import('./train.ts')).resume(...given);

/** Measures a policy on held-out tasks. Without a `run` directory nothing is kept. */
export const evaluateOnly: typeof import('./evaluate.ts').evaluateOnly = async (...given) =>
  (await import('./evaluate.ts')).evaluateOnly(...given);

/** Goes on with an evaluation. One that is finished is only reported again. */
export const resumeEvaluation: typeof import('./evaluate.ts').resumeEvaluation = async (...given) =>
  (await import('./evaluate.ts')).resumeEvaluation(...given);

/** Rollouts of some tasks, without training: a group for each task, null where it has no graded rollout that the workflow accepts. */
export const rolloutBatch: typeof import('./groups.ts').rolloutBatch = async (...given) =>
  (await import('./groups.ts')).rolloutBatch(...given);

/** Does a run again from its store, and says whether turns, rewards, steps and checkpoints are as they were kept. */
export const verify: typeof import('./verify.ts').verify = async (...given) => (await import('./verify.ts')).verify(...given);
