/**
 * Entry points of the `trainyard` package for whole runs. Each loads its implementation on demand: modules that only define an agent or a
 * grader import the same package, in every grading process too, and must not pay for training.
 */

/** Trains to the last step. Finds all problems with the request before it creates the run directory. */
export const train: typeof import('./train.ts').train = async (...given) => (await import('./train.ts')).train(...given);

/** Teaches the policy what a run's successes, or a file's conversations, say. */
export const sft: typeof import('./sft.ts').sft = async (...given) => (await import('./sft.ts')).sft(...given);

/** Resumes a run that was interrupted, killed or stopped by a budget, optionally with more `steps`. */
export const resume: typeof import('./train.ts').resume = async (...given) => (await import('./train.ts')).resume(...given);

/** Measures a policy on held-out tasks. Without a `run` directory, nothing is kept. */
export const evaluateOnly: typeof import('./evaluate.ts').evaluateOnly = async (...given) =>
  (await import('./evaluate.ts')).evaluateOnly(...given);

/** Resumes an evaluation. A finished one is only reported again. */
export const resumeEvaluation: typeof import('./evaluate.ts').resumeEvaluation = async (...given) =>
  (await import('./evaluate.ts')).resumeEvaluation(...given);

/** Runs rollouts without training. Returns one group per task; null if it has no graded rollout that the workflow accepts. */
export const rolloutBatch: typeof import('./groups.ts').rolloutBatch = async (...given) =>
  (await import('./groups.ts')).rolloutBatch(...given);

/** Redoes a run from its store and reports whether turns, rewards, steps and checkpoints match. */
export const verify: typeof import('./verify.ts').verify = async (...given) => (await import('./verify.ts')).verify(...given);
