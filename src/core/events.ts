/**
 * What a run reports: one flat JSON object per event, named noun-verb. The terminal, `--json` and events.jsonl show only these.
 * docs/reference/events.schema.json describes the same for other programs; a test validates real runs against it.
 */
import { messageOf, TrainyardError } from './errors.ts';
import type { ModelPlan } from './policy.ts';
import type { StaleRule } from './types.ts';

/** Reward parts and grader metrics by name, each averaged over the graded rollouts that have it. Absent if none do. */
interface Measured {
  readonly parts?: Readonly<Record<string, number>>;
  readonly metrics?: Readonly<Record<string, number>>;
}

/** Results over `n` tasks, which include failed and rejected ones; these count as unsuccessful. */
interface Tally {
  /** Fraction of each task's rollouts that solved it, averaged over tasks. */
  readonly success: number;
  /** Mean reward of each task's graded rollouts, averaged over tasks; null if nothing was graded. */
  readonly meanReward: number | null;
  readonly n: number;
  /** Rollouts that failed, or whose grading failed. */
  readonly failed: number;
  /** Rollouts that the workflow or the grader rejected. */
  readonly ungraded: number;
  /** 95 % confidence interval of `success`, with tasks as the independent units. */
  readonly ci?: readonly [low: number, high: number];
}

/** Result of an evaluation during a run: one rollout per task. */
export interface Score extends Tally, Measured {}

/** Result of a standalone evaluation, or of its tasks that share a tag. */
export interface TagReport extends Tally {
  readonly ci: readonly [low: number, high: number];
  /** Null if there is no spread to estimate it from. */
  readonly meanRewardCi: readonly [low: number, high: number] | null;
}

export interface EvaluationReport extends TagReport, Measured {
  readonly temperature: number;
  /** Rollouts requested per task, and the total number run. */
  readonly perTask: number;
  readonly rollouts: number;
  /** By k = 1, 2, 4 … and `perTask`: the probability that at least one (passAtK) or all (passHatK) of k rollouts solve a task. */
  readonly passAtK: Readonly<Record<string, number>>;
  readonly passHatK: Readonly<Record<string, number>>;
  readonly byTag: Readonly<Record<string, TagReport>>;
  /** Behind an API only. */
  readonly calls?: CallReport;
}

/** Model calls that were answered, of all roles. Seconds from the agent's request to the answer, waits for a busy server included. */
export interface CallReport {
  readonly n: number;
  readonly medianSeconds: number;
  readonly p95Seconds: number;
  /** As servers counted them. */
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** Of these tokens, in the currency of the setting `price`. Absent without prices. */
  readonly cost?: number;
}

/** What is known before a run: its rollouts, and upper bounds for them. A training tries more groups where some have no signal. */
export interface Planned {
  readonly rollouts: number;
  readonly calls: number;
  readonly sampledTokens: number;
  /** Upper bound for the sampled tokens alone: prompts are not known yet. Absent without prices. */
  readonly cost?: number;
}

export interface StepReport extends Measured {
  readonly step: number;
  readonly policyVersion: number;
  /** Mean over all graded rollouts of the step, trained or not. */
  readonly reward: number;
  /** 95 % confidence interval of the mean reward, with groups as the independent units. Absent if there is no spread to estimate it from. */
  readonly rewardCi?: readonly [low: number, high: number];
  readonly groups: number;
  /** Groups whose rewards are all equal, so that there is nothing to learn. */
  readonly groupsWithoutSignal: number;
  readonly rollouts: number;
  /** Rollouts that threw, reached their deadline, or never called the policy. */
  readonly failedRollouts: number;
  readonly failedGrades: number;
  readonly ungraded: number;
  /** Rollouts that marks removed from their groups. */
  readonly excludedRollouts: number;
  /** Groups that exceeded the staleness bound, in policy versions. */
  readonly staleGroups: number;
  /** What happened to them, if there were any: all were dropped, weighed or kept. */
  readonly staleRule?: StaleRule['rule'];
  /** Tokens sampled for training since the last step. */
  readonly sampledTokens: number;
  readonly trainedTokens: number;
  readonly loss: number;
  readonly gradNorm?: number;
  /** Trainer probability divided by engine probability, averaged over the trained tokens. */
  readonly ratio?: number;
  /** Estimate of KL(policy that sampled ‖ policy in training), averaged over the trained tokens. */
  readonly offPolicyKl?: number;
  /** Fraction of the trained tokens whose ratio was clipped. */
  readonly clipped?: number;
  /** Absolute engine–trainer difference in log-probability, on tokens the version in training sampled, where only rounding causes it. */
  readonly meanDifference?: number;
  readonly largestDifference?: number;
  readonly rolloutSeconds: number;
  readonly trainSeconds: number;
  readonly saveSeconds: number;
}

export type Phase = 'evaluating' | 'rolling-out' | 'training' | 'saving' | 'teaching';

/**
 * Why a run ended: all steps done, every rollout perfect, no group with signal any more, no better evaluation for a while, a budget or the
 * rollouts of another run used up, or Ctrl-C.
 */
export type RunEnding = 'steps' | 'solved' | 'no-signal' | 'patience' | 'max-time' | 'max-tokens' | 'rollouts' | 'interrupted';

/** The checkpoint to use: the last, unless an earlier one did significantly better on the same held-out tasks (`success`). */
export interface Best {
  readonly step: number;
  readonly success: number;
  readonly checkpoint: string;
}

/** Non-default settings that matter for evaluating the run's model again. */
export interface Unusual {
  readonly flow?: string;
  readonly flows?: string;
  readonly heldOut?: string;
  readonly turns?: number;
  readonly trainable?: readonly string[];
  /** Database with the rollouts, without its password. Absent if they are in the run's directory. */
  readonly store?: string;
}

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
  /** Address of the Tinker server that holds the checkpoints' weights. */
  readonly server?: string;
}

export interface EvalDone extends EvaluationReport {
  readonly type: 'done';
  readonly run: string | null;
  readonly seconds: number;
  readonly store?: string;
}

/** Why supervised fine-tuning ended: all passes done, no lower validation loss for a while, or Ctrl-C. */
export type SftEnding = 'epochs' | 'patience' | 'interrupted';

export interface SftDone {
  readonly type: 'sft-end';
  readonly run: string;
  readonly steps: number;
  /** That of the lowest validation loss. Null if no step was taken. */
  readonly checkpoint: string | null;
  /** Mean over tokens, before the first step and at the checkpoint. Absent if nothing was left out to measure it. */
  readonly validationLoss?: { readonly before: number; readonly after: number };
  readonly ending: SftEnding;
  readonly seconds: number;
}

interface Start {
  readonly entry: string;
  readonly model: string;
  readonly server?: string;
  /** Of a large model that is computed in this process. */
  readonly plan?: ModelPlan;
  readonly seed: number;
  readonly tasks: number;
  /** When resuming: the last committed step, or the number of rollouts already done. */
  readonly resumedAt?: number;
  /** Of the whole run. Absent when resuming. */
  readonly planned?: Planned;
}

export type RunEvent =
  | ({
      readonly type: 'run-start';
      readonly run: string;
      readonly steps: number;
      readonly heldOut: number;
      /** The run whose rollouts it trains from. Absent if it makes new ones. */
      readonly from?: string;
    } & Start)
  /** A standalone evaluation starts or resumes. `run` is null if nothing is stored. */
  | ({
      readonly type: 'eval-start';
      readonly run: string | null;
      readonly perTask: number;
      readonly temperature: number;
      /** Behind an API: what the agent asks for wins. */
      readonly agentTemperature?: true;
    } & Start)
  | {
      readonly type: 'eval-end';
      readonly when: 'before' | 'during' | 'after' | 'only';
      readonly step: number;
      readonly score: Score;
      /** Default: 0. */
      readonly temperature?: number;
      readonly seconds: number;
    }
  | ({ readonly type: 'step-end' } & StepReport)
  /** For a live view, several times a second; in a pipe, a line after a silence. Not written to events.jsonl. */
  | {
      readonly type: 'progress';
      readonly phase: Phase;
      /** Rollouts done, out of those this phase is known to need. 0 of 0 if there is nothing to count. */
      readonly done: number;
      readonly of: number;
      /** Those done that failed, or whose grading failed; absent if not counted. */
      readonly failed?: number;
      /** Since the run started. */
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
  | {
      readonly type: 'sft-start';
      readonly run: string;
      readonly from: string;
      readonly model: string;
      readonly server?: string;
      readonly plan?: ModelPlan;
      readonly conversations: number;
      readonly tasks: number;
      /** Rollouts, conversations or responses, by the reason why they are not taught. */
      readonly leftOut: Readonly<Record<string, number>>;
      /** Taught in each pass, and left out to measure the validation loss. */
      readonly tokens: number;
      readonly validationTokens: number;
      readonly epochs: number;
    }
  | {
      readonly type: 'sft-step';
      readonly step: number;
      readonly steps: number;
      /** Means over tokens. */
      readonly loss: number;
      readonly validationLoss?: number;
      readonly tokens: number;
      readonly seconds: number;
    }
  | SftDone
  | TrainDone
  | EvalDone;

export type Emit = (event: RunEvent) => void;

/** As told, written to events.jsonl and by `--json`. `at`: milliseconds since the epoch. */
export type LoggedEvent = RunEvent & { readonly at: number };

export function lineOf(event: RunEvent | LoggedEvent): string {
  return `${JSON.stringify({ ...event, at: 'at' in event ? event.at : Date.now() })}\n`;
}

export type Warn = (code: string, message: string) => void;

export function errorEvent(thrown: unknown): RunEvent & { readonly type: 'error' } {
  const { code, hint } = thrown instanceof TrainyardError ? thrown : { code: 'INTERNAL', hint: undefined };
  return { type: 'error', code, message: messageOf(thrown), ...(hint === undefined ? {} : { hint }) };
}
