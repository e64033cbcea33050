/**
 * What a run reports: one flat JSON object per event, named noun-verb. The terminal, `--json` and events.jsonl show only these.
 * docs/reference/events.md and events.schema.json are made from these types and their comments; a test validates real runs against them.
 */
import type { WarningCode } from './error-codes.ts';
import { messageOf, TrainyardError } from './errors.ts';
import type { ModelPlan } from './policy.ts';

/** A whole number. */
type Count = number;

/** 95 % confidence interval. */
type Interval = readonly [low: number, high: number];

type ByName = Readonly<Record<string, number>>;

/** Absent if no graded rollout has any. */
interface Measured {
  /** Parts of the reward by name, each a mean over the graded rollouts that have it. */
  readonly parts?: ByName;
  /** The grader's metrics by name, likewise. */
  readonly metrics?: ByName;
}

interface Tally {
  /** Share of each task's rollouts that solved it, averaged over tasks. */
  readonly success: number;
  /** Mean reward of each task's graded rollouts, averaged over tasks; null if nothing was graded. */
  readonly meanReward: number | null;
  /** Tasks. Failed and rejected rollouts count as unsuccessful. */
  readonly n: Count;
  /** Rollouts that failed, or whose grading failed. */
  readonly failed: Count;
  /** Rollouts that the workflow or the grader rejected. */
  readonly ungraded: Count;
  /** Interval of `success`, with tasks as the independent units. */
  readonly ci?: Interval;
}

/** Result of an evaluation during a run: one rollout per task. */
export interface Score extends Tally, Measured {}

/** Result of an evaluation of its own, or of those of its tasks that share a tag. */
export interface TagReport extends Tally {
  readonly ci: Interval;
  /** Null if there is no spread to estimate it from. */
  readonly meanRewardCi: Interval | null;
}

export interface EvaluationReport extends TagReport, Measured {
  readonly temperature: number;
  /** Rollouts requested per task. */
  readonly perTask: Count;
  /** Rollouts in all. */
  readonly rollouts: Count;
  /** By k = 1, 2, 4 … and `perTask`: the probability that at least one of k rollouts solves a task. */
  readonly passAtK: ByName;
  /** By k: the probability that all k rollouts solve a task. */
  readonly passHatK: ByName;
  readonly byTag: Readonly<Record<string, TagReport>>;
  /** Behind an API only. */
  readonly calls?: CallReport;
}

/** Model calls that were answered, of all roles. */
export interface CallReport {
  readonly n: Count;
  /** From the agent's request to the answer, waits for a busy server included. */
  readonly medianSeconds: number;
  readonly p95Seconds: number;
  /** As servers counted them. */
  readonly promptTokens: Count;
  readonly completionTokens: Count;
  /** Of these tokens, in the currency of the setting `price`; absent without prices. */
  readonly cost?: number;
}

/** What is known before a run: its rollouts, and upper bounds for them. A training tries more groups where some have no signal. */
export interface Planned {
  readonly rollouts: Count;
  readonly calls: Count;
  readonly sampledTokens: Count;
  /** Upper bound for the sampled tokens alone: prompts are not known yet. Absent without prices. */
  readonly cost?: number;
}

interface Start {
  /** Path of the entry, or the name of its workflow. */
  readonly entry: string;
  /** Folder of the policy, or its name and server. */
  readonly model: string;
  /** Address of the policy's server. */
  readonly server?: string;
  /** Of a large model that is computed in this process. */
  readonly plan?: ModelPlan;
  readonly seed: Count;
  readonly tasks: Count;
  /** When resuming: the last committed step, or the number of rollouts already done. */
  readonly resumedAt?: Count;
  /** Of the whole run; absent when resuming. */
  readonly planned?: Planned;
}

/** A training starts or resumes. */
interface RunStart extends Start {
  readonly type: 'run-start';
  readonly run: string;
  /** Optimizer steps to take. */
  readonly steps: Count;
  /** Held-out tasks. */
  readonly heldOut: Count;
  /** The run whose rollouts it trains from; absent if it makes new ones. */
  readonly from?: string;
}

/** An evaluation of its own starts or resumes. */
interface EvalStart extends Start {
  readonly type: 'eval-start';
  /** Null if nothing is stored. */
  readonly run: string | null;
  /** Rollouts per task. */
  readonly perTask: Count;
  readonly temperature: number;
  /** Behind an API: the temperature that the agent asks for wins. */
  readonly agentTemperature?: true;
}

/** An evaluation ended: before, during or after a training, or one of its own. */
interface EvalEnd {
  readonly type: 'eval-end';
  readonly when: 'before' | 'during' | 'after' | 'only';
  /** Steps taken before it. */
  readonly step: Count;
  readonly score: Score;
  /** Default: 0. */
  readonly temperature?: number;
  readonly seconds: number;
}

export interface StepReport extends Measured {
  /** From 1. */
  readonly step: Count;
  /** The version that the step made. */
  readonly policyVersion: Count;
  /** Mean over all graded rollouts of the step, trained or not. */
  readonly reward: number;
  /** Of the mean reward, with groups as the independent units; absent if there is no spread to estimate it from. */
  readonly rewardCi?: Interval;
  readonly groups: Count;
  /** Groups whose rewards are all equal, so that there is nothing to learn. */
  readonly groupsWithoutSignal: Count;
  readonly rollouts: Count;
  /** Rollouts that threw, reached their deadline, or never called the policy. */
  readonly failedRollouts: Count;
  readonly failedGrades: Count;
  /** Rejected by the workflow or the grader. */
  readonly ungraded: Count;
  /** Rollouts that marks removed from their groups. */
  readonly excludedRollouts: Count;
  /** Groups that exceeded the staleness bound, in policy versions. */
  readonly staleGroups: Count;
  /** What happened to them, if there were any. */
  readonly staleRule?: 'drop' | 'weigh' | 'keep';
  /** Tokens sampled for training since the last step. */
  readonly sampledTokens: Count;
  readonly trainedTokens: Count;
  readonly loss: number;
  /** Before clipping. */
  readonly gradNorm?: number;
  /** Trainer probability divided by engine probability, averaged over the trained tokens. */
  readonly ratio?: number;
  /** Estimate of KL(policy that sampled ‖ policy in training), averaged over the trained tokens. */
  readonly offPolicyKl?: number;
  /** Share of the trained tokens whose ratio was clipped. */
  readonly clipped?: number;
  /** Absolute engine–trainer difference in log-probability, on tokens the version in training sampled, where only rounding causes it. */
  readonly meanDifference?: number;
  readonly largestDifference?: number;
  /** Waiting for rollouts. */
  readonly rolloutSeconds: number;
  readonly trainSeconds: number;
  readonly saveSeconds: number;
}

/** An optimizer step was taken, and its checkpoint and manifest are committed. */
interface StepEnd extends StepReport {
  readonly type: 'step-end';
}

export type Phase = 'evaluating' | 'rolling-out' | 'training' | 'saving' | 'teaching';

/** For a live view, several times a second; in a pipe, a line after a silence. Not written to events.jsonl. */
interface Progress {
  readonly type: 'progress';
  readonly phase: Phase;
  /** Rollouts done, out of those this phase is known to need. 0 of 0 if there is nothing to count. */
  readonly done: Count;
  readonly of: Count;
  /** Those done that failed, or whose grading failed; absent if not counted. */
  readonly failed?: Count;
  /** Since the run started. */
  readonly sampledTokens: Count;
}

/** A conversation to show (the setting `transcripts`). */
interface Transcript {
  readonly type: 'transcript';
  /** As in `eval-end`. */
  readonly when: string;
  readonly taskId: string;
  /** A message each, shortened. */
  readonly lines: readonly string[];
  readonly reward: number | null;
}

interface Told {
  readonly code: string;
  /** What was found. */
  readonly message: string;
  /** What to do. */
  readonly hint?: string;
}

/** Something that the run goes on with. */
interface Warned extends Told {
  readonly type: 'warning';
}

/** What ended the command. */
interface Failed extends Told {
  readonly type: 'error';
}

/** Supervised fine-tuning starts. */
interface SftStart {
  readonly type: 'sft-start';
  readonly run: string;
  /** What is taught: a run or a file. */
  readonly from: string;
  readonly model: string;
  readonly server?: string;
  readonly plan?: ModelPlan;
  readonly conversations: Count;
  readonly tasks: Count;
  /** Rollouts, conversations or responses, by the reason why they are not taught. */
  readonly leftOut: Readonly<Record<string, Count>>;
  /** Taught in each pass. */
  readonly tokens: Count;
  /** Left out to measure the validation loss. */
  readonly validationTokens: Count;
  /** Most passes. */
  readonly epochs: Count;
}

/** A step of supervised fine-tuning. */
interface SftStep {
  readonly type: 'sft-step';
  readonly step: Count;
  /** At most. */
  readonly steps: Count;
  /** Cross-entropy in nats, mean over tokens. */
  readonly loss: number;
  /** The same on tasks that are not taught, where it was measured. */
  readonly validationLoss?: number;
  /** Taught in this step. */
  readonly tokens: Count;
  readonly seconds: number;
}

/** Why supervised fine-tuning ended: all passes done, no lower validation loss for a while, or Ctrl-C. */
export type SftEnding = 'epochs' | 'patience' | 'interrupted';

/** Supervised fine-tuning ended. */
export interface SftDone {
  readonly type: 'sft-end';
  readonly run: string;
  readonly steps: Count;
  /** That of the lowest validation loss. Null if no step was taken. */
  readonly checkpoint: string | null;
  /** Mean over tokens, before the first step and at the checkpoint; absent if nothing was left out to measure it. */
  readonly validationLoss?: { readonly before: number; readonly after: number };
  readonly ending: SftEnding;
  readonly seconds: number;
}

/**
 * Why a run ended: all steps done, every rollout perfect, no group with signal any more, no better evaluation for a while, a budget or the
 * rollouts of another run used up, or Ctrl-C.
 */
export type RunEnding = 'steps' | 'solved' | 'no-signal' | 'patience' | 'max-time' | 'max-tokens' | 'rollouts' | 'interrupted';

/** The checkpoint to use: the last, unless an earlier one did significantly better on the same held-out tasks. */
export interface Best {
  readonly step: Count;
  readonly success: number;
  readonly checkpoint: string;
}

/** Settings that differ from the defaults and matter for measuring the run's model again. */
export interface Unusual {
  readonly flow?: string;
  readonly flows?: string;
  readonly heldOut?: string;
  readonly turns?: Count;
  readonly trainable?: readonly string[];
  /** Database with the rollouts, without its password; absent if they are in the run's directory. */
  readonly store?: string;
}

/** A training ended. */
export interface TrainDone extends Unusual {
  readonly type: 'done';
  readonly before: Score | null;
  readonly after: Score | null;
  readonly steps: Count;
  /** Of this command. */
  readonly seconds: number;
  readonly run: string;
  /** The last one. */
  readonly checkpoint: string | null;
  readonly best: Best | null;
  readonly ending: RunEnding;
  /** Address of the Tinker server that holds the checkpoints' weights. */
  readonly server?: string;
}

/** An evaluation of its own ended. */
export interface EvalDone extends EvaluationReport {
  readonly type: 'done';
  readonly run: string | null;
  readonly seconds: number;
  readonly store?: string;
}

export type RunEvent =
  | RunStart
  | EvalStart
  | EvalEnd
  | StepEnd
  | Progress
  | Transcript
  | Warned
  | Failed
  | SftStart
  | SftStep
  | SftDone
  | TrainDone
  | EvalDone;

export type Emit = (event: RunEvent) => void;

/** As told, written to events.jsonl and by `--json`. `at`: milliseconds since the epoch. */
export type LoggedEvent = RunEvent & { readonly at: number };

export function lineOf(event: RunEvent | LoggedEvent): string {
  return `${JSON.stringify({ ...event, at: 'at' in event ? event.at : Date.now() })}\n`;
}

export type Warn = (code: WarningCode, message: string) => void;

export function warnBy(emit: Emit): Warn {
  return (code, message) => emit({ type: 'warning', code, message });
}

export function errorEvent(thrown: unknown): RunEvent & { readonly type: 'error' } {
  const { code, hint } = thrown instanceof TrainyardError ? thrown : { code: 'INTERNAL', hint: undefined };
  return { type: 'error', code, message: messageOf(thrown), ...(hint === undefined ? {} : { hint }) };
}
