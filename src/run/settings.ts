/**
 * The settings of a run and their defaults, in one place; docs/reference/settings.md explains each. Loads nothing: what settings may be is
 * checked in check-settings.ts.
 *
 * The defaults are the demo's recipe; bench/LOG.md holds the runs they come from.
 */
import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Unusual } from '../core/events.ts';
import type { AdamSettings } from '../core/policy.ts';
import type { Limits, SamplingSettings } from '../core/types.ts';
import type { TaskSource } from '../dataset/rows.ts';
import type { Entry } from '../rollout/discovery.ts';
import type { Algorithm, Weighting } from '../trainer/advantages.ts';

/** The policy that ships with the package. */
export const BASE_MODEL = fileURLToPath(new URL('../../models/base', import.meta.url));

/** Those of the trainer, which is not loaded for their names. */
export const ALGORITHM_NAMES = ['grpo', 'dr-grpo', 'rloo'] as const satisfies readonly Algorithm[];
export const WEIGHTING_NAMES = ['tokens', 'rollouts'] as const satisfies readonly Weighting[];
export const ENGINES = ['embedded', 'tinker'] as const;
export type EngineName = (typeof ENGINES)[number];

/** What trainings and evaluations have in common. */
export interface RunSettings {
  /** Path of the module that exports the workflow and the grader, or the two themselves (the grader then cannot be killed). */
  readonly entry: string | Entry;
  /** The flow that is the workflow, by its name; then the entry may hold the grader alone, or be the flows file. */
  readonly flow: string | undefined;
  /** The file that lists flows. */
  readonly flows: string | undefined;
  /** Where the policy is sampled and trained: in this process, or on a server of the Tinker API. */
  readonly engine: EngineName;
  /** Model folder: config.json, tokenizer.json, tokenizer_config.json and, for the embedded engine, model.safetensors. */
  readonly model: string;
  /** The server's name for the model in `model`; undefined: what a checkpoint says, or the only one it has. */
  readonly baseModel: string | undefined;
  /** Of the Tinker server; undefined: TINKER_BASE_URL. */
  readonly baseURL: string | undefined;
  /** Rank of the adapter that a Tinker server trains. */
  readonly loraRank: number;
  readonly seed: number;
  /** Rollouts at once. */
  readonly concurrency: number;
  /** Threads of the embedded policy. */
  readonly threads: number;
  readonly limits: Limits;
  /** Most tokens one model call may sample. */
  readonly callTokens: number;
  /** Processes of a workflow with isolation 'process', and so its rollouts at once. */
  readonly workflowWorkers: number;
  readonly graderWorkers: number;
  readonly graderDeadlineMs: number;
  /** How often a grading that failed is tried again, where the grader says nothing else. */
  readonly graderRetries: number;
  /** Of one process that grades, with all it starts. */
  readonly graderMemoryMb: number;
  /** Held-out conversations to keep for showing. */
  readonly transcripts: number;
  /** Roles to train, whatever the workflow says; undefined: those it says. In an evaluation: the roles that the policy plays. */
  readonly trainable: readonly string[] | undefined;
  /** Share of gradings that may fail before the run ends; judged over 64 or more. */
  readonly maxErrorShare: number;
}

export interface EvaluationSettings extends RunSettings {
  /** Tasks that are evaluated: a file, or the rows. */
  readonly heldOut: TaskSource;
  /** Directory it is kept in; undefined: nothing is kept, and it cannot be resumed. */
  readonly run: string | undefined;
  /** Rollouts per task. */
  readonly n: number;
  readonly temperature: number;
  /** Rows of the task file, such as 3,7,10-20; undefined: all. */
  readonly rows: string | undefined;
}

export interface TrainSettings extends RunSettings {
  readonly run: string;
  /** Tasks to train on: a file, or the rows. */
  readonly tasks: TaskSource;
  /** Fewer tasks are refused. */
  readonly minTasks: number;
  /** Without them, and without `split`, nothing is evaluated. */
  readonly heldOut: TaskSource | undefined;
  /** The share of `tasks` that is held out instead. */
  readonly split: number | undefined;
  readonly steps: number;
  /** Rollouts per group. */
  readonly group: number;
  /** Groups with signal per step. */
  readonly groupsPerStep: number;
  /** A step gives up filling after this many times `groupsPerStep` groups. */
  readonly refill: number;
  /** Policy versions that may lie between sampling and training: 0 is synchronous, more lets rollouts run ahead of the trainer. */
  readonly staleness: number;
  /** Temperature for training; evaluation is at 0. */
  readonly temperature: number;
  /** How rewards become advantages. */
  readonly algorithm: Algorithm;
  /** What counts alike in a step: every trained token, or every rollout. */
  readonly weighting: Weighting;
  /** How much of what later turns earn counts for an earlier one, where the workflow does not say; undefined: rewards hold as given. */
  readonly turnDiscount: number | undefined;
  readonly learningRate: number;
  /** The learning rate falls linearly to a tenth of its value; over these first steps it is also scaled up from near zero. */
  readonly warmupSteps: number;
  readonly adam: Omit<AdamSettings, 'learningRate'>;
  readonly clipLow: number;
  readonly clipHigh: number;
  /** Coefficient of the KL penalty against the policy that training began with. 0: none. */
  readonly kl: number;
  /** Steps between evaluations on `evalTasks` held-out tasks. 0: only before and after. */
  readonly evalEvery: number;
  readonly evalTasks: number;
  /** Evaluations without a new best after which training ends. 0: never. */
  readonly patience: number;
  /** Steps between checkpoints. What lies between two is computed again from the store when a run is resumed. */
  readonly checkpointEvery: number;
  /** Seconds after which no further step is begun. */
  readonly maxTime: number | undefined;
  /** Sampled tokens after which no further step is begun. */
  readonly maxTokens: number | undefined;
}

export const EVAL_DEFAULTS = {
  flow: undefined,
  flows: undefined,
  engine: 'embedded',
  model: BASE_MODEL,
  baseModel: undefined,
  baseURL: undefined,
  loraRank: 32,
  seed: 1,
  concurrency: 64,
  // One thread a gradient buffer: more could not train, and would only split the sampler's batches.
  threads: Math.min(availableParallelism(), 16),
  limits: { turns: 16, tokens: 4096, deadlineMs: 60_000 },
  callTokens: 256,
  workflowWorkers: Math.min(2 * availableParallelism(), 16),
  graderWorkers: Math.min(availableParallelism(), 2),
  graderDeadlineMs: 10_000,
  graderRetries: 1,
  graderMemoryMb: 2_048,
  transcripts: 0,
  trainable: undefined,
  // An evaluation reports what failed, so it bears more of it than a training does.
  maxErrorShare: 0.25,
} as const satisfies Partial<EvaluationSettings>;

export const TRAIN_DEFAULTS = {
  ...EVAL_DEFAULTS,
  minTasks: 4,
  split: undefined,
  steps: 40,
  group: 8,
  groupsPerStep: 8,
  refill: 3,
  staleness: 0,
  temperature: 1,
  algorithm: 'grpo',
  weighting: 'tokens',
  turnDiscount: undefined,
  maxErrorShare: 0.05,
  learningRate: 5e-4,
  warmupSteps: 3,
  adam: { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 },
  clipLow: 0.2,
  clipHigh: 0.28,
  kl: 0,
  evalEvery: 10,
  evalTasks: 64,
  patience: 0,
  checkpointEvery: 1,
  maxTime: undefined,
  maxTokens: undefined,
} as const satisfies Partial<TrainSettings>;

/** Of `trainyard serve`, and of `trainyard tinker`. */
const HOST = '127.0.0.1';
const { model, threads, seed } = EVAL_DEFAULTS;
export const SERVE_DEFAULTS = { model, threads, seed, host: HOST, port: 0, temperature: 1, group: 8 } as const;
export const TINKER_DEFAULTS = { model, threads, host: HOST, port: 0, state: 'runs/tinker' } as const;

/** What a caller gives; the rest has defaults. */
export type EvaluationRequest = Pick<EvaluationSettings, 'entry'> & Partial<EvaluationSettings>;
export type TrainRequest = Pick<TrainSettings, 'entry'> & Partial<TrainSettings>;

/** A setting given as undefined is one that was not given. */
export function withoutUndefined<T extends object>(given: T): T {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) as T;
}

/** Where tasks are looked for when no file is given. */
export function usualTasks(entry: string | Entry): string {
  return beside(entry, 'train.jsonl');
}

/** Where held-out tasks are looked for when no file is given. */
export function usualHeldOut(entry: string | Entry): string {
  return beside(entry, 'held-out.jsonl');
}

/**
 * Where a run keeps held-out tasks that are in no file of their own, because they were split off or given as values, so that its models can
 * be measured on them again. Undefined where there is a file, or nothing is held out.
 */
export function heldOutFileOf({ run, heldOut, split }: Pick<TrainSettings, 'run' | 'heldOut' | 'split'>): string | undefined {
  return split !== undefined || typeof heldOut === 'object' ? join(run, 'held-out.jsonl') : undefined;
}

/** What has to be said again to measure as this run did. */
export function unusualIn(settings: TrainSettings): Unusual {
  const { flow, flows, entry, trainable, limits } = settings;
  const heldOut = heldOutFileOf(settings) ?? settings.heldOut;
  return withoutUndefined({
    ...{ flow, flows, trainable },
    heldOut: typeof heldOut === 'string' && heldOut !== usualHeldOut(entry) ? heldOut : undefined,
    turns: limits.turns === EVAL_DEFAULTS.limits.turns ? undefined : limits.turns,
  }) as Unusual;
}

function beside(entry: string | Entry, name: string): string {
  return join(typeof entry === 'string' ? dirname(entry) : '.', name);
}

/** runs/shop-20261115-081703: named by the entry's folder and the time, numbered where that is taken. */
export function usualRun(entry: string | Entry, prefix = ''): string {
  return freeRun(`${prefix}${typeof entry === 'string' ? basename(dirname(resolve(entry))) : entry.workflow.name}`);
}

export function freeRun(name: string): string {
  const time = new Date().toISOString().replace(/[-:]/g, '').replace('T', '-').slice(0, 15);
  const path = join('runs', `${name || 'run'}-${time}`);
  let number = 2;
  let free = path;
  while (existsSync(free)) free = `${path}-${number++}`;
  return free;
}

/** The command that goes on with a run, for a shell that finds `trainyard`; the command line adapts it to how it was called. */
export function resumeCommand(run: string, verb: 'train' | 'eval' = 'train'): string {
  return `trainyard ${verb} --resume ${shellWord(run)}`;
}

/** A path as an argument that a shell takes as one word. */
export function shellWord(path: string): string {
  return /^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", `'\\''`)}'`;
}

/** A path as a person in this folder would write it. */
export function shortPath(path: string): string {
  const near = relative('.', path);
  return near === '' || near.startsWith('..') ? path : near;
}

/** The temperature is said by the caller each time: a training has one for its rollouts, and 0 for what is held out. */
export function samplingAt(temperature: number, { callTokens }: Pick<RunSettings, 'callTokens'>): SamplingSettings {
  return { temperature, topP: 1, topK: 0, maxTokens: callTokens };
}

export function learningRateAt(
  step: number,
  { steps, warmupSteps, learningRate }: Pick<TrainSettings, 'steps' | 'warmupSteps' | 'learningRate'>,
): number {
  const warmup = Math.min(1, step / Math.max(1, warmupSteps));
  const decay = 1 - (0.9 * (step - 1)) / Math.max(1, steps - 1);
  return learningRate * warmup * decay;
}
