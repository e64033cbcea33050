/**
 * Entry points of the `trainyard` package for whole runs. Each loads its implementation on demand: modules that only define an agent or a
 * grader import the same package, in every grading process too, and must not pay for training.
 */

/** Trains to the last step. Finds all problems with the request before it creates the run directory. */
export const train: typeof import('../training/train.ts').train = async (...given) =>
  (await import('../training/train.ts')).train(...given);

/** Teaches the policy what a run's successes, or a file's conversations, say. */
export const sft: typeof import('../training/sft.ts').sft = async (...given) =>
  (await import('../training/sft.ts')).sft(...given);

/** Resumes a run that was interrupted, killed or stopped by a budget, optionally with more `steps`. */
export const resume: typeof import('../training/train.ts').resume = async (...given) =>
  (await import('../training/train.ts')).resume(...given);

/** Measures a policy on held-out tasks. Without a `run` directory, nothing is kept. */
export const evaluateOnly: typeof import('../evaluation/evaluate.ts').evaluateOnly = async (...given) =>
  (await import('../evaluation/evaluate.ts')).evaluateOnly(...given);

/** Resumes an evaluation. A finished one is only reported again. */
export const resumeEvaluation: typeof import('../evaluation/evaluate.ts').resumeEvaluation = async (...given) =>
  (await import('../evaluation/evaluate.ts')).resumeEvaluation(...given);

/** Runs rollouts without training. Returns one group per task; null if it has no graded rollout that the workflow accepts. */
export const rolloutBatch: typeof import('../training/groups.ts').rolloutBatch = async (...given) =>
  (await import('../training/groups.ts')).rolloutBatch(...given);

/** Redoes a run from its store and reports whether turns, rewards, steps and checkpoints match. */
export const verify: typeof import('../audit/verify.ts').verify = async (...given) =>
  (await import('../audit/verify.ts')).verify(...given);
