/**
 * The settings of a run and their defaults, in one place. docs/reference/settings.md explains each.
 *
 * The defaults are the demo's recipe; bench/LOG.md holds the runs they come from.
 */
import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { TrainyardError } from '../core/errors.ts';
import type { Unusual } from '../core/events.ts';
import type { AdamSettings } from '../core/policy.ts';
import type { Limits, SamplingSettings } from '../core/types.ts';
import type { TaskSource } from '../dataset/rows.ts';
import { DEFAULT_RETRIES } from '../grader/call.ts';
import { DEFAULT_MEMORY_MB } from '../grader/pool.ts';
import { defaultThreads } from '../nn/policy.ts';
import type { Entry } from '../rollout/discovery.ts';
import type { Algorithm, Weighting } from '../trainer/advantages.ts';
import { heldOutFileOf } from './held-out-file.ts';
import { checkEntry, checkSettings, type EngineName } from './settings-check.ts';

/** The policy that ships with the package. */
export const BASE_MODEL = fileURLToPath(new URL('../../models/base', import.meta.url));

export interface EvalSettings {
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
  /** Tasks that are evaluated: a file, or the rows. */
  readonly heldOut: TaskSource;
}

export interface TrainSettings extends Omit<EvalSettings, 'heldOut'> {
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
  /** Share of gradings that may fail before the run ends; judged over 64 or more. */
  readonly maxErrorShare: number;
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
  /** Steps between checkpoints. What lies between two is computed again from the store when a run is taken up. */
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
  threads: defaultThreads(),
  limits: { turns: 16, tokens: 4096, deadlineMs: 60_000 },
  callTokens: 256,
  workflowWorkers: Math.min(2 * availableParallelism(), 16),
  graderWorkers: Math.min(availableParallelism(), 2),
  graderDeadlineMs: 10_000,
  graderRetries: DEFAULT_RETRIES,
  graderMemoryMb: DEFAULT_MEMORY_MB,
  transcripts: 0,
  trainable: undefined,
} as const satisfies Partial<EvalSettings>;

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

/** Tinker's own: gradients of large models are small, and some servers also average what ours adds up. */
const TINKER_EPSILON = 1e-12;

/** What a caller gives; the rest has defaults. */
export type EvalRequest = Pick<EvalSettings, 'entry'> & Partial<EvalSettings>;
export type TrainRequest = Pick<TrainSettings, 'entry'> & Partial<TrainSettings>;

/** Fills in the defaults; task files are looked for beside the entry. */
export function evalSettings(request: EvalRequest): EvalSettings {
  checkEntry(request.entry);
  const given = withoutUndefined(request);
  const heldOut = request.heldOut ?? usualHeldOut(request.entry);
  const engine = engineOf(request);
  return checkSettings({ ...EVAL_DEFAULTS, ...given, engine, baseURL: baseURLOf(engine, request), heldOut });
}

/** Fills in the defaults. Without `heldOut` or `split`, and without a held-out.jsonl beside the entry, nothing is evaluated. */
export function trainSettings(request: TrainRequest): TrainSettings {
  checkEntry(request.entry);
  const found = usualHeldOut(request.entry);
  const engine = engineOf(request);
  return checkSettings({
    ...TRAIN_DEFAULTS,
    ...(engine === 'tinker' && { adam: { ...TRAIN_DEFAULTS.adam, epsilon: TINKER_EPSILON } }),
    ...withoutUndefined(request),
    engine,
    baseURL: baseURLOf(engine, request),
    tasks: request.tasks ?? usualTasks(request.entry),
    heldOut: request.heldOut ?? (request.split === undefined && existsSync(found) ? found : undefined),
    run: request.run ?? defaultRun(request.entry),
    model: resolve(request.model ?? BASE_MODEL),
  });
}

/** A checkpoint whose weights are on a Tinker server can be used nowhere else. */
function engineOf({ engine, model }: Partial<Pick<EvalSettings, 'engine' | 'model'>>): EngineName {
  const chosen = engine ?? (model !== undefined && existsSync(join(model, 'tinker.json')) ? 'tinker' : EVAL_DEFAULTS.engine);
  if (chosen === 'tinker' && model === undefined) {
    throw new TrainyardError('USAGE', 'model: expected the folder of the model at the Tinker server, found none', {
      hint: 'give --model a folder with its config.json, tokenizer.json and tokenizer_config.json',
    });
  }
  return chosen;
}

/** The environment's, where none was given: so that the run remembers where it was begun. */
export function baseURLOf(engine: EngineName, { baseURL }: { readonly baseURL?: string | undefined }): string | undefined {
  return engine === 'tinker' ? (baseURL ?? (process.env['TINKER_BASE_URL'] || undefined)) : baseURL;
}

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

/** What has to be said again to measure as this run did. */
export function unusualIn(settings: TrainSettings): Unusual {
  const { flow, flows, entry, trainable } = settings;
  const { turns } = settings.limits;
  const heldOut = heldOutFileOf(settings) ?? settings.heldOut;
  return {
    ...(flow === undefined ? {} : { flow }),
    ...(flows === undefined ? {} : { flows }),
    ...(trainable === undefined ? {} : { trainable }),
    ...(typeof heldOut === 'string' && heldOut !== usualHeldOut(entry) ? { heldOut } : {}),
    ...(turns === EVAL_DEFAULTS.limits.turns ? {} : { turns }),
  };
}

function beside(entry: string | Entry, name: string): string {
  return join(typeof entry === 'string' ? dirname(entry) : '.', name);
}

/** runs/shop-20261115-081703: named by the entry's folder and the time, numbered where that is taken. */
function defaultRun(entry: string | Entry): string {
  return freeRun(typeof entry === 'string' ? basename(dirname(resolve(entry))) : entry.workflow.name);
}

export function freeRun(name: string): string {
  const time = new Date().toISOString().replace(/[-:]/g, '').replace('T', '-').slice(0, 15);
  const path = join('runs', `${name || 'run'}-${time}`);
  let number = 2;
  let free = path;
  while (existsSync(free)) free = `${path}-${number++}`;
  return free;
}

/** The temperature is said by the caller each time: a training has one for its rollouts, and 0 for what is held out. */
export function samplingAt(temperature: number, { callTokens }: Pick<EvalSettings, 'callTokens'>): SamplingSettings {
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
