/**
 * Compares two evaluations task by task, and tests whether the difference could be chance. Tasks are paired by id, and only if their rows
 * are identical; others are listed and left out. Works on evaluations and on the last full evaluation of training runs, whose rows are
 * unknown.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import { meanInterval, meanOf, shareDifferenceInterval, signFlipChance } from '../core/statistics.ts';
import type { Trajectory } from '../core/types.ts';
import { policyName } from '../engines/open-policy.ts';
import { readRunFile } from '../run/directory.ts';
import { evaluationIn } from '../run/plan.ts';
import { openStoreOf, requireDirectory } from '../run/run-store.ts';
import { EVAL_DEFAULTS } from '../settings/setting-rows.ts';
import { isApi } from '../settings/settings.ts';
import { API_DEFAULTS } from '../settings/table.ts';
import { meanRewardIn, Results, resultOf, solvedIn } from './results.ts';

export interface Measured {
  readonly run: string;
  /** Whose policy was measured, for people. */
  readonly model?: string | undefined;
  readonly tasks: ReadonlyMap<string, MeasuredTask>;
  readonly unfinished: readonly string[];
  /** Settings that must agree for the comparison to be about the policy alone. */
  readonly settings: Readonly<Record<string, unknown>>;
  /** Set for a training run that was not evaluated after its last step. */
  readonly earlier?: { readonly step: number; readonly of: number } | undefined;
}

export interface MeasuredTask {
  /** Of the task's row. Undefined if unknown. */
  readonly digest: string | undefined;
  readonly rollouts: number;
  readonly solved: number;
  /** Failed rollouts, which count as not solved. */
  readonly failed: number;
  readonly meanReward: number | null;
}

interface Sides {
  readonly a: number;
  readonly b: number;
  /** b − a, so positive if B is better. */
  readonly delta: number;
}

/** Number of tasks in which B is better than A, worse, or equal. */
interface Counts {
  readonly better: number;
  readonly worse: number;
  readonly same: number;
}

export interface TaskChange {
  readonly id: string;
  readonly success: Sides;
  /** Null if either side was never graded, or if the difference overflows. */
  readonly meanReward: Sides | null;
}

export interface Comparison {
  readonly a: string;
  readonly b: string;
  /** The models that were measured. */
  readonly models: { readonly a: string | null; readonly b: string | null };
  readonly tasks: number;
  /** `ci`: 95 % interval of the mean difference. `p`: probability of a difference at least as large by chance. Counts compare success. */
  readonly success: Sides & Counts & { readonly ci: readonly [number, number]; readonly p: number };
  /** Over tasks graded in both, with counts by reward alone. Null if there are none. */
  readonly meanReward: (Sides & Counts & { readonly ci: readonly [number, number] | null; readonly tasks: number }) | null;
  /** Failed rollouts of the compared tasks: not solved, although the policy may not be at fault. */
  readonly failed: { readonly a: number; readonly b: number };
  /** Largest change in success first. */
  readonly better: readonly TaskChange[];
  readonly worse: readonly TaskChange[];
  /** Same success but different reward; largest change first. */
  readonly sameSuccess: readonly TaskChange[];
  /** Not compared: tasks on one side only, tasks whose row differs, tasks that lack rollouts. */
  readonly onlyInA: readonly string[];
  readonly onlyInB: readonly string[];
  readonly changedTasks: readonly string[];
  readonly unfinished: readonly string[];
  /** Other differences, as text. */
  readonly otherDifferences: readonly string[];
  /** Training runs whose final policy is not the one compared, as text. */
  readonly earlierPolicies: readonly string[];
}

export async function measuredIn(run: string, url?: string): Promise<Measured> {
  requireDirectory(run, url);
  if (!existsSync(join(run, 'run.json'))) {
    throw new TrainyardError(
      'FILE_NOT_FOUND',
      `${run} holds no run.json, so it is no run`,
      'give the directories of two evaluations, such as runs/eval-<name>',
    );
  }
  const record = evaluationIn(run);
  await using store = await openStoreOf(run, { store: url });
  if (record === undefined) {
    const steps = (await store.manifests()).at(-1)?.step ?? 0;
    return measuredWhileTraining(run, await store.query({ purpose: 'eval' }), steps);
  }
  const { tasks, settings, sources } = record;
  const numbered = tasks.map(({ id, row }) => ({ task: { id, prompt: [] }, number: row }));
  const results = new Results(numbered, settings.n);
  await results.recall(store);
  const digests = new Map(tasks.map(({ id, digest }) => [id, digest]));
  const byTask = results.byTask();
  const { whole = [], unfinished = [] } = Object.groupBy(byTask, ({ rollouts }) =>
    rollouts.length === settings.n ? 'whole' : 'unfinished',
  );
  return {
    run,
    model: modelIn(settings),
    tasks: new Map(whole.map(({ id, rollouts }) => [id, measured(rollouts, digests.get(id))])),
    unfinished: unfinished.map(({ id }) => id),
    settings: { ...decisive(settings), code: sources },
  };
}

/** Uses the last evaluation with the most tasks; evaluations during training cover only some. */
function measuredWhileTraining(run: string, trajectories: readonly Trajectory[], steps: number): Measured {
  const bySteps = Map.groupBy(trajectories, ({ rolloutId }) => /^e(\d+)-\d+$/.exec(rolloutId)?.[1] ?? '');
  bySteps.delete('');
  const most = Math.max(0, ...[...bySteps.values()].map(({ length }) => length));
  const whole = [...bySteps].filter(([, { length }]) => length === most).toSorted(([a], [b]) => Number(a) - Number(b));
  const [step, last] = whole.at(-1) ?? ['0', []];
  const { settings } = z
    .object({ settings: z.looseObject({}) })
    .catch({ settings: {} })
    .parse(readRunFile(run));
  return {
    run,
    model: `${modelIn(settings)} after step ${Number(step)}`,
    tasks: new Map(last.map((trajectory) => [trajectory.taskId, measured([resultOf(trajectory)], undefined)])),
    unfinished: [],
    settings: { ...decisive(settings), n: 1, temperature: 0 },
    earlier: Number(step) < steps ? { step: Number(step), of: steps } : undefined,
  };
}

function measured(rollouts: Parameters<typeof solvedIn>[0], digest: string | undefined): MeasuredTask {
  const failed = rollouts.filter(({ ending }) => ending === 'failed').length;
  return { digest, rollouts: rollouts.length, solved: solvedIn(rollouts), failed, meanReward: meanRewardIn(rollouts) };
}

function modelIn({ engine, model, baseURL }: Record<string, unknown>): string {
  return policyName({ engine, model: String(model), baseURL } as Parameters<typeof policyName>[0]);
}

/** The usual limits behind an API are more generous, and count as the usual ones. */
function decisive({ limits, callTokens, ...rest }: Record<string, unknown>): Measured['settings'] {
  const isUsual =
    isApi(rest['engine']) && isDeepStrictEqual(limits, API_DEFAULTS.limits) && callTokens === API_DEFAULTS.limits.tokens;
  const { entry, flow, n, temperature, trainable, engine, context = 'the model’s own' } = rest;
  const { limits: usual, callTokens: usualTokens } = EVAL_DEFAULTS;
  return {
    entry,
    flow,
    n,
    temperature,
    trainable,
    ...(isUsual ? { limits: usual, callTokens: usualTokens } : { limits, callTokens }),
    // A server has its own.
    context: engine === undefined || engine === 'embedded' ? context : undefined,
  };
}

export function compare(a: Measured, b: Measured): Comparison {
  const inBoth = [...a.tasks].flatMap(([id, left]) => {
    const right = b.tasks.get(id);
    return right === undefined ? [] : [{ id, left, right }];
  });
  const isSame = (left?: string, right?: string): boolean => left === undefined || right === undefined || left === right;
  const { pairs = [], changed = [] } = Object.groupBy(inBoth, ({ left, right }) =>
    isSame(left.digest, right.digest) ? 'pairs' : 'changed',
  );
  const unfinished = new Set([...a.unfinished, ...b.unfinished]);
  const missing = (from: Measured, to: Measured): readonly string[] =>
    [...from.tasks.keys()].filter((id) => !to.tasks.has(id) && !unfinished.has(id));
  const changedTasks = changed.map(({ id }) => id);
  const lists = { onlyInA: missing(a, b), onlyInB: missing(b, a), changedTasks, unfinished: [...unfinished] };
  if (pairs.length === 0) throw nothingInCommon(a, b, lists);
  const changes = pairs.map(({ id, left, right }) => ({
    id,
    success: sides(left.solved / left.rollouts, right.solved / right.rollouts),
    meanReward: rewardSides(left.meanReward, right.meanReward),
  }));
  const byDelta = (one: TaskChange, other: TaskChange): number =>
    other.success.delta - one.success.delta || rewardDelta(other) - rewardDelta(one) || (one.id < other.id ? -1 : 1);
  const sorted = changes.toSorted(byDelta);
  const successes = changes.map(({ success }) => success);
  return {
    a: a.run,
    b: b.run,
    models: { a: a.model ?? null, b: b.model ?? null },
    tasks: pairs.length,
    success: {
      ...changesOf(successes),
      ci: shareDifferenceInterval(successes.map(({ delta }) => delta)),
      // Integers: both success rates over their common denominator.
      p: signFlipChance(pairs.map(({ left, right }) => right.solved * left.rollouts - left.solved * right.rollouts)),
    },
    meanReward: rewardsOf(changes.flatMap(({ meanReward }) => meanReward ?? [])),
    failed: {
      a: pairs.reduce((sum, { left }) => sum + left.failed, 0),
      b: pairs.reduce((sum, { right }) => sum + right.failed, 0),
    },
    better: sorted.filter(({ success }) => success.delta > 0),
    worse: sorted.filter(({ success }) => success.delta < 0).toReversed(),
    sameSuccess: sorted
      .filter((change) => change.success.delta === 0 && rewardDelta(change) !== 0)
      .toSorted((one, other) => Math.abs(rewardDelta(other)) - Math.abs(rewardDelta(one))),
    ...lists,
    otherDifferences: differencesIn(a.settings, b.settings),
    earlierPolicies: [a, b].flatMap(({ run, earlier }) =>
      earlier === undefined ? [] : [`${run} was last evaluated on all tasks after step ${earlier.step}, and took ${earlier.of}`],
    ),
  };
}

function rewardDelta({ meanReward }: TaskChange): number {
  return meanReward?.delta ?? 0;
}

function sides(a: number, b: number): Sides {
  return { a, b, delta: b - a };
}

function rewardSides(a: number | null, b: number | null): Sides | null {
  return a === null || b === null || !Number.isFinite(b - a) ? null : sides(a, b);
}

function changesOf(all: readonly Sides[]): Sides & Counts {
  const count = (sign: number): number => all.filter(({ delta }) => Math.sign(delta) === sign).length;
  const means = sides(meanOf(all.map(({ a }) => a)), meanOf(all.map(({ b }) => b)));
  return { ...means, better: count(1), worse: count(-1), same: count(0) };
}

function rewardsOf(all: readonly Sides[]): Comparison['meanReward'] {
  if (all.length === 0) return null;
  return { ...changesOf(all), ci: meanInterval(all.map(({ delta }) => delta)), tasks: all.length };
}

function differencesIn(a: Measured['settings'], b: Measured['settings']): readonly string[] {
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])];
  return names.flatMap((name) => {
    const left = JSON.stringify(a[name]);
    const right = JSON.stringify(b[name]);
    // The code of a training run is unknown, and so is the context of a server.
    const isUnknown = (left === undefined || right === undefined) && (name === 'code' || name === 'context');
    if (left === right || isUnknown) return [];
    return [
      name === 'code' ? 'the code of the agent or the grader' : `${name}: ${left ?? 'not given'} and ${right ?? 'not given'}`,
    ];
  });
}

function nothingInCommon(a: Measured, b: Measured, lists: Pick<Comparison, 'changedTasks' | 'unfinished'>): TrainyardError {
  const empty = [a, b].find(({ tasks }) => tasks.size === 0);
  const changed = lists.changedTasks.length;
  const other = changed > 0 ? `${changed} have the same id and another content` : 'no task id is in both';
  const why = empty === undefined ? other : `${empty.run} has no task that was evaluated`;
  const isUnfinished = lists.unfinished.length > 0;
  const hint = isUnfinished ? 'finish them first: trainyard eval --resume <run>' : 'evaluate both on the same task file';
  return new TrainyardError('USAGE', `the two have no task in common: ${why}`, hint);
}
