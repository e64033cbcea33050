/**
 * The settings of a run and their defaults, in one place. docs/reference/settings.md explains each.
 *
 * The defaults are the demo's recipe; bench/LOG.md holds the runs they come from.
 */
import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { AdamSettings } from '../core/contracts.ts';
import type { Limits, SamplingSettings } from '../core/types.ts';
import { defaultThreads } from '../nn/policy.ts';
import type { Entry } from '../rollout/discovery.ts';

/** The policy that ships with the package. */
export const BASE_MODEL = fileURLToPath(new URL('../../models/base', import.meta.url));

export interface EvalSettings {
  /** Path of the module that exports the workflow and the grader, or the two themselves (the grader then cannot be killed). */
  readonly entry: string | Entry;
  /** Model folder: config.json, model.safetensors, tokenizer.json, tokenizer_config.json. */
  readonly model: string;
  readonly seed: number;
  /** Rollouts at once. */
  readonly concurrency: number;
  /** Threads of the embedded policy. */
  readonly threads: number;
  readonly limits: Limits;
  /** Most tokens one model call may sample. */
  readonly maxTokens: number;
  readonly graderWorkers: number;
  readonly graderDeadlineMs: number;
  /** Held-out conversations to keep for showing. */
  readonly transcripts: number;
  /** Task file that is evaluated. */
  readonly heldOut: string;
}

export interface TrainSettings extends Omit<EvalSettings, 'heldOut'> {
  readonly run: string;
  readonly tasks: string;
  /** Without one nothing is evaluated. */
  readonly heldOut: string | undefined;
  readonly steps: number;
  /** Rollouts per group. */
  readonly group: number;
  /** Groups with signal per step. */
  readonly groupsPerStep: number;
  /** A step gives up filling after this many times `groupsPerStep` groups. */
  readonly refill: number;
  /** Temperature for training; evaluation is at 0. */
  readonly temperature: number;
  readonly adam: AdamSettings;
  /** The learning rate falls linearly to a tenth of its value; over these first steps it is also scaled up from near zero. */
  readonly warmupSteps: number;
  readonly clipLow: number;
  readonly clipHigh: number;
}

export const EVAL_DEFAULTS = {
  model: BASE_MODEL,
  seed: 1,
  concurrency: 64,
  threads: defaultThreads(),
  limits: { turns: 16, tokens: 4096, deadlineMs: 60_000 },
  maxTokens: 256,
  graderWorkers: Math.min(availableParallelism(), 2),
  graderDeadlineMs: 10_000,
  transcripts: 0,
} as const satisfies Partial<EvalSettings>;

export const TRAIN_DEFAULTS = {
  ...EVAL_DEFAULTS,
  steps: 40,
  group: 8,
  groupsPerStep: 8,
  refill: 3,
  temperature: 1,
  adam: { learningRate: 5e-4, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 },
  warmupSteps: 3,
  clipLow: 0.2,
  clipHigh: 0.28,
} as const satisfies Partial<TrainSettings>;

/** What a caller gives; the rest has defaults. */
export type EvalRequest = Pick<EvalSettings, 'entry'> & Partial<EvalSettings>;
export type TrainRequest = Pick<TrainSettings, 'entry'> & Partial<TrainSettings>;

/** Fills in the defaults; task files are looked for beside the entry. */
export function evalSettings(request: EvalRequest): EvalSettings {
  return { ...EVAL_DEFAULTS, ...request, heldOut: request.heldOut ?? beside(request.entry, 'held-out.jsonl') };
}

/** Fills in the defaults. Without `heldOut`, and without a held-out.jsonl beside the entry, nothing is evaluated. */
export function trainSettings(request: TrainRequest): TrainSettings {
  const found = beside(request.entry, 'held-out.jsonl');
  return {
    ...TRAIN_DEFAULTS,
    ...request,
    tasks: request.tasks ?? beside(request.entry, 'train.jsonl'),
    heldOut: request.heldOut ?? (existsSync(found) ? found : undefined),
    run: request.run ?? defaultRun(request.entry),
    model: resolve(request.model ?? BASE_MODEL),
  };
}

function beside(entry: string | Entry, name: string): string {
  return join(typeof entry === 'string' ? dirname(entry) : '.', name);
}

/** runs/shop-20261115-081703: named by the entry's folder and the time. */
function defaultRun(entry: string | Entry): string {
  const time = new Date().toISOString().replace(/[-:]/g, '').replace('T', '-').slice(0, 15);
  const name = typeof entry === 'string' ? basename(dirname(resolve(entry))) : entry.workflow.name;
  return join('runs', `${name || 'run'}-${time}`);
}

export function trainingSampling({ temperature, maxTokens }: Pick<TrainSettings, 'temperature' | 'maxTokens'>): SamplingSettings {
  return { temperature, topP: 1, topK: 0, maxTokens };
}

export function evaluationSampling({ maxTokens }: Pick<EvalSettings, 'maxTokens'>): SamplingSettings {
  return { temperature: 0, topP: 1, topK: 0, maxTokens };
}

export function learningRateAt(
  step: number,
  { steps, warmupSteps, adam }: Pick<TrainSettings, 'steps' | 'warmupSteps' | 'adam'>,
): number {
  const warmup = Math.min(1, step / warmupSteps);
  const decay = 1 - (0.9 * (step - 1)) / Math.max(1, steps - 1);
  return adam.learningRate * warmup * decay;
}
