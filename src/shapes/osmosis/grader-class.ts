/**
 * `Grader`: a class with an async `grade(ctx)` that rewards every sample. `ctx` holds the label and one sample per named conversation,
 * taken from the gateway's record as Chat Completions messages whatever framework the agent uses. Lowered to core's grader: sample rewards
 * become rewards by thread, and their mean is the rollout's. A sample without a reward fails the grading; it never counts as 0.
 */
import {
  type Grader as CoreGrader,
  type EntryModule,
  type GraderInput,
  type GraderResult,
  graderSymbol,
  type Ungraded,
} from '../../core/contracts.ts';
import { TrainyardError } from '../../core/errors.ts';
import { copyConfig } from '../../core/json.ts';
import { meanOf } from '../../core/statistics.ts';
import type { Json, LimitName, Message } from '../../core/types.ts';
import { type ConfiguredClass, configured, type GraderConfig } from './class-config.ts';
import { RolloutSample } from './samples.ts';
import type { Metadata } from './workflow-class.ts';

const MOST_METRICS = 256;

export class GraderContext<TConfig = GraderConfig> {
  /** The row's reference answer; null if it has none. */
  readonly label: Json | null;
  /** Keyed by the name of the agent or session, or `default` if the workflow called the model without one. */
  readonly samples: Readonly<Record<string, RolloutSample>>;
  readonly metadata: Metadata | null;
  readonly artifactsDir: string | null;
  readonly projectPath: string;
  readonly config: TConfig | null;
  /** The limit that cut the rollout short, if any. */
  readonly truncated: LimitName | null;

  constructor({ task, threads, artifactsDir, truncated }: GraderInput, config: TConfig | null = null) {
    this.label = task.answer ?? null;
    this.metadata = (task.metadata ?? null) as Metadata | null;
    this.artifactsDir = artifactsDir;
    this.projectPath = process.cwd();
    this.config = config;
    this.truncated = truncated ?? null;
    const { label } = this;
    const sampleOf = ([id, messages]: [string, readonly Message[]]) => [id, new RolloutSample({ id, messages, label })] as const;
    this.samples = Object.fromEntries(Object.entries(threads).map(sampleOf));
  }

  getSamples(): Readonly<Record<string, RolloutSample>> {
    return this.samples;
  }

  setSampleReward(sampleId: string, reward: number): void {
    const sample = Object.hasOwn(this.samples, sampleId) ? this.samples[sampleId] : undefined;
    if (sample === undefined) {
      const names = Object.keys(this.samples).join(', ') || 'none';
      throw failed(`Sample ${sampleId} not found; the samples are ${names}`);
    }
    sample.reward = reward;
  }

  /** For rollouts with a single sample; throws GRADER_FAILED otherwise. */
  setReward(reward: number): void {
    const [only, ...others] = Object.values(this.samples);
    if (only === undefined) throw failed('GraderContext has no sample to reward');
    if (others.length > 0) {
      throw failed(`setReward is for one sample, and there are ${others.length + 1}`, 'name them: setSampleReward(id, reward)');
    }
    only.reward = reward;
  }
}

export abstract class Grader<TConfig = GraderConfig> {
  readonly config: TConfig | null;

  constructor(config: TConfig | null = null) {
    this.config = config;
  }

  /** Must give every sample a reward or set its `removeSample`. */
  abstract grade(ctx: GraderContext<TConfig>): Promise<void>;

  static readonly [graderSymbol] = lower;
}

type GraderClass = ConfiguredClass<{ grade(ctx: GraderContext<unknown>): Promise<unknown> }>;

function lower(this: object, module: EntryModule): CoreGrader | undefined {
  const Class = this as GraderClass;
  const found = configured('grader', Class, Grader, module);
  if (found === undefined) return undefined;
  const { config, named } = found;
  return { [graderSymbol]: true, ...named, grade: (input) => gradeWith(Class, copyConfig(config) ?? null, input) };
}

async function gradeWith(Class: GraderClass, config: unknown, input: GraderInput): Promise<GraderResult | Ungraded> {
  const { answer, metadata } = input.task;
  if ((answer ?? null) === null && (metadata ?? null) === null) {
    throw failed('the task has neither an answer (the label) nor metadata: there is nothing to grade by');
  }
  const ctx = new GraderContext(input, config);
  await new Class(config).grade(ctx);
  return rewardOf(Object.values(ctx.samples));
}

function rewardOf(samples: readonly RolloutSample[]): GraderResult | Ungraded {
  if (samples.length === 0) throw failed('No samples after grading');
  const kept = samples.filter(({ removeSample }) => !removeSample);
  if (kept.length === 0) return { kind: 'ungraded', why: 'the grader removed every sample' };
  const rewards = kept.map(({ id, reward }): [string, number] => {
    if (reward === null) throw failed(`Sample ${id} has no reward after grading`);
    return [id, reward];
  });
  const removed = samples.filter(({ removeSample }) => removeSample).map(({ id }) => id);
  const parts = metricsOf(kept);
  return {
    value: meanOf(rewards.map(([, reward]) => reward)),
    byThread: Object.fromEntries(rewards),
    ...(removed.length > 0 ? { untrained: removed } : {}),
    ...(Object.keys(parts).length > 0 ? { parts } : {}),
  };
}

/** Each metric's mean over the samples that have it. Skips non-finite values: a bad metric is no reason to lose a reward. */
function metricsOf(samples: readonly RolloutSample[]): Record<string, number> {
  const all = samples.flatMap(({ metrics }) => Object.entries(metrics));
  const usable = all.filter(([name, value]) => Number.isFinite(value) && name !== '__proto__');
  const byName = [...Map.groupBy(usable, ([name]) => name)].slice(0, MOST_METRICS);
  return Object.fromEntries(byName.map(([name, found]) => [name, meanOf(found.map(([, value]) => value))]));
}

function failed(message: string, hint?: string): TrainyardError {
  return new TrainyardError('GRADER_FAILED', message, hint === undefined ? {} : { hint });
}
