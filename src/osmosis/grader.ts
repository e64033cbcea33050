/**
 * `Grader`: a class with an async `grade(ctx)` that gives every sample its reward. Lowered to the core's grader: samples' rewards become
 * rewards by thread, and their mean is the rollout's. A sample without a reward is a failed grading, never 0.
 */
import { isConcrete, methodKind } from '../core/classes.ts';
import {
  type Grader as CoreGrader,
  type EntryModule,
  type GraderInput,
  type GraderResult,
  graderSymbol,
  type Ungraded,
} from '../core/contracts.ts';
import { describeThrown } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { copyConfig } from '../core/json.ts';
import { type GraderConfig, limitOf, nameMistake } from './config.ts';
import { configOf } from './config-of.ts';
import { GraderContext } from './grader-context.ts';
import type { RolloutSample } from './rollout-sample.ts';

const MOST_METRICS = 256;

export abstract class Grader<TConfig = GraderConfig> {
  readonly config: TConfig | null;

  constructor(config: TConfig | null = null) {
    this.config = config;
  }

  /** Gives every sample a reward, or takes it out. */
  abstract grade(ctx: GraderContext<TConfig>): Promise<void>;

  static readonly [graderSymbol] = lower;
}

function lower(this: object, module: EntryModule): CoreGrader | undefined {
  const Class = this as GraderClass;
  if (!isConcrete(Class, 'grade', Grader)) return undefined;
  const config = configOf('grader', module);
  const mistakes = mistakesOf(Class, config);
  for (const mistake of mistakes) module.problem(mistake);
  return mistakes.length > 0 ? undefined : lowered(Class, config);
}

type GraderClass = new (config: unknown) => { grade(ctx: GraderContext<unknown>): Promise<unknown> };

function mistakesOf(Class: GraderClass, config: GraderConfig | undefined): readonly TrainyardError[] {
  const mistakes: TrainyardError[] = [];
  const kind = methodKind(Class, 'grade');
  if (kind !== 'AsyncFunction') {
    mistakes.push(
      new TrainyardError('GRADER_INVALID', `${Class.name}.grade: expected an async method, found ${kind}`, {
        hint: 'write async grade(ctx) { … }',
      }),
    );
  }
  const name = config === undefined ? nameMistake(Class.name) : undefined;
  if (name !== undefined) mistakes.push(new TrainyardError('GRADER_INVALID', `the name of the grader class: ${name}`));
  try {
    new Class(copyConfig(config) ?? null);
  } catch (cause) {
    mistakes.push(
      new TrainyardError('GRADER_INIT_FAILED', `new ${Class.name}(config) threw ${describeThrown(cause)}`, { cause }),
    );
  }
  return mistakes;
}

function lowered(Class: GraderClass, config: GraderConfig | undefined): CoreGrader {
  const concurrency = limitOf(config);
  return {
    [graderSymbol]: true,
    name: (config?.name ?? Class.name).trim(),
    ...(concurrency === undefined ? {} : { concurrency }),
    grade: (input) => gradeWith(Class, copyConfig(config) ?? null, input),
  };
}

async function gradeWith(Class: GraderClass, config: GraderConfig | null, input: GraderInput): Promise<GraderResult | Ungraded> {
  const { answer, metadata } = input.task;
  if ((answer ?? null) === null && (metadata ?? null) === null) {
    throw failed('the task has neither an answer (the label) nor metadata: there is nothing to grade by');
  }
  const ctx = new GraderContext<unknown>(input, config);
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
    value: mean(rewards.map(([, reward]) => reward)),
    byThread: Object.fromEntries(rewards),
    ...(removed.length > 0 ? { untrained: removed } : {}),
    ...(Object.keys(parts).length > 0 ? { parts } : {}),
  };
}

/** Each metric's mean over the samples that have it. What is no finite number is left out: it is no reason to lose a reward. */
function metricsOf(samples: readonly RolloutSample[]): Record<string, number> {
  const values = new Map<string, number[]>();
  for (const { metrics } of samples) {
    for (const [name, value] of Object.entries(metrics)) {
      if (Number.isFinite(value) && name !== '__proto__') values.set(name, [...(values.get(name) ?? []), value]);
    }
  }
  return Object.fromEntries([...values].slice(0, MOST_METRICS).map(([name, all]) => [name, mean(all)]));
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function failed(message: string): TrainyardError {
  return new TrainyardError('GRADER_FAILED', message);
}
