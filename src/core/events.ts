/**
 * What a run tells the world while it works: one flat JSON object per event, named noun-verb. The terminal, `--json` and the
 * run's events.jsonl all show these and nothing else.
 */
import { messageOf, TrainyardError } from './errors.ts';

/** What rewards were made of and what else graders measured, by name: means over what was graded and has it. Absent where nothing has any. */
interface Measured {
  readonly parts?: Readonly<Record<string, number>>;
  readonly metrics?: Readonly<Record<string, number>>;
}

/** How tasks went. Those that failed, or that the workflow or the grader rejected, are in `n` and count as not successful. */
interface Tally {
  /** Mean over tasks of the share of their rollouts that solved them. */
  readonly success: number;
  /** Mean over tasks of what was graded of them; null if nothing was. */
  readonly meanReward: number | null;
  /** Tasks. */
  readonly n: number;
  /** Rollouts that failed, or whose grading did. */
  readonly failed: number;
  /** Rollouts that were rejected. */
  readonly ungraded: number;
  /** 95 % interval of `success`, tasks being what is independent. */
  readonly ci?: readonly [low: number, high: number];
}

/** Of an evaluation during a run: one rollout a task. */
export interface Score extends Tally, Measured {}

/** Of an evaluation on its own, or of those of its tasks that have a tag. */
export interface TagReport extends Tally {
  readonly ci: readonly [low: number, high: number];
  /** Null where there is no spread to judge by. */
  readonly meanRewardCi: readonly [low: number, high: number] | null;
}

/** What an evaluation on its own came to. */
export interface EvaluationReport extends TagReport, Measured {
  readonly temperature: number;
  /** Rollouts that each task was to have, and how many there were in all. */
  readonly perTask: number;
  readonly rollouts: number;
  /** By k = 1, 2, 4 … and `perTask`: the chance that one of k rollouts of a task, or all of them, solve it. */
  readonly passAtK: Readonly<Record<string, number>>;
  readonly passHatK: Readonly<Record<string, number>>;
  readonly byTag: Readonly<Record<string, TagReport>>;
}

export interface StepReport extends Measured {
  readonly step: number;
  readonly policyVersion: number;
  /** Mean reward over all graded rollouts of the step, trained or not. */
  readonly reward: number;
  readonly groups: number;
  /** Groups in which every reward was equal: nothing to learn from. */
  readonly groupsWithoutSignal: number;
  readonly rollouts: number;
  /** Rollouts that threw, ran into their deadline, or never asked the policy. */
  readonly failedRollouts: number;
  readonly failedGrades: number;
  /** Rollouts that the workflow or the grader rejected. */
  readonly ungraded: number;
  /** Rollouts that marks took out of their groups. */
  readonly excludedRollouts: number;
  /** Groups that were thrown away because they were sampled more policy versions ago than the staleness bound allows. */
  readonly staleGroups: number;
  /** Tokens sampled for training since the last step. */
  readonly sampledTokens: number;
  readonly trainedTokens: number;
  readonly loss: number;
  readonly gradNorm?: number;
  /** Of the trainer's probability of a token to the engine's, mean over the trained tokens. */
  readonly ratio?: number;
  /** Estimate of KL(policy that sampled ‖ policy in training), mean over the trained tokens. */
  readonly offPolicyKl?: number;
  /** Share of the trained tokens whose ratio was clipped. */
  readonly clipped?: number;
  /** Of the two log-probabilities of a token, over the tokens that the version in training sampled: there only rounding tells them apart. */
  readonly meanDifference?: number;
  readonly largestDifference?: number;
  /** Waiting for rollouts, training, and writing checkpoint and manifest. */
  readonly rolloutSeconds: number;
  readonly trainSeconds: number;
  readonly saveSeconds: number;
}

/** What a run is doing. */
export type Phase = 'evaluating' | 'rolling-out' | 'training' | 'saving';

/** Why a run ended: all steps done, every rollout perfect, no better evaluation for a while, a budget used up, or Ctrl-C. */
export type RunEnding = 'steps' | 'solved' | 'patience' | 'max-time' | 'max-tokens' | 'interrupted';

/** The checkpoint to use: the last, unless an earlier one did better on the same held-out tasks by more than chance; its success on those. */
export interface Best {
  readonly step: number;
  readonly success: number;
  readonly checkpoint: string;
}

/** What a run was told that is not the default, as far as measuring its model again depends on it. */
export interface Unusual {
  readonly flow?: string;
  readonly flows?: string;
  /** Held-out tasks that are not beside the entry. */
  readonly heldOut?: string;
  /** Model calls that a rollout may make. */
  readonly turns?: number;
  readonly trainable?: readonly string[];
}

/** The last event of a training. */
export interface TrainDone extends Unusual {
  readonly type: 'done';
  readonly before: Score | null;
  readonly after: Score | null;
  readonly steps: number;
  readonly seconds: number;
  readonly run: string;
  readonly checkpoint: string | null;
  readonly best: Best | null;
  readonly ending: RunEnding;
  /** Address of the Tinker server that the weights of the checkpoints are at. */
  readonly server?: string;
}

/** The last event of an evaluation on its own. */
export interface EvalDone extends EvaluationReport {
  readonly type: 'done';
  readonly run: string | null;
  readonly seconds: number;
}

interface Start {
  readonly entry: string;
  readonly model: string;
  /** Address of the Tinker server that the policy is at. */
  readonly server?: string;
  readonly seed: number;
  readonly tasks: number;
  /** For what is resumed: the last committed step, or the rollouts that were done before. */
  readonly resumedAt?: number;
}

export type RunEvent =
  | ({ readonly type: 'run-start'; readonly run: string; readonly steps: number; readonly heldOut: number } & Start)
  /** An evaluation on its own begins, or is resumed. `run`: null where nothing is kept. */
  | ({
      readonly type: 'eval-start';
      readonly run: string | null;
      readonly perTask: number;
      readonly temperature: number;
    } & Start)
  | {
      readonly type: 'eval-end';
      readonly when: 'before' | 'during' | 'after' | 'only';
      /** Steps taken so far. */
      readonly step: number;
      readonly score: Score;
      /** Absent: 0. */
      readonly temperature?: number;
      readonly seconds: number;
    }
  | ({ readonly type: 'step-end' } & StepReport)
  /** For a live view, several times a second; in a pipe a line where there was silence. Not kept in events.jsonl. */
  | {
      readonly type: 'progress';
      readonly phase: Phase;
      /** Rollouts done, of those that this phase is known to need. 0 of 0 where there is nothing to count. */
      readonly done: number;
      readonly of: number;
      /** Of those done, where it is counted: rollouts that failed, or whose grading did. */
      readonly failed?: number;
      /** Tokens sampled since the run started. */
      readonly sampledTokens: number;
    }
  | {
      readonly type: 'transcript';
      readonly when: string;
      readonly taskId: string;
      readonly lines: readonly string[];
      readonly reward: number | null;
    }
  | { readonly type: 'warning' | 'error'; readonly code: string; readonly message: string; readonly hint?: string }
  | TrainDone
  | EvalDone;

export type Emit = (event: RunEvent) => void;

/** Tells the person something they should know; the run goes on. */
export type Warn = (code: string, message: string) => void;

/** What ends a run that failed. */
export function errorEvent(thrown: unknown): RunEvent & { readonly type: 'error' } {
  const { code, hint } = thrown instanceof TrainyardError ? thrown : { code: 'INTERNAL', hint: undefined };
  return { type: 'error', code, message: messageOf(thrown), ...(hint === undefined ? {} : { hint }) };
}
