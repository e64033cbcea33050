/**
 * Graders made of graders: `weighted`, a sum; `minimum` and `maximum`, the worst and the best of several; `gated`, one that is asked only where
 * another calls it a success; `clipped` and `scaled`, one with its rewards changed.
 *
 * Components of the first three are asked at the same time. Rewards by turn, thread or role are summed where every component gives them for
 * the same ones; where only some do the grading fails, because what the others earned there is not known.
 */
import type { Grader, GraderInput, GraderResult, Ungraded } from '../../core/contracts.ts';
import { defineGrader } from '../../core/define.ts';
import { TrainyardError } from '../../core/errors.ts';
import type { Reward } from '../../core/types.ts';
import { checkOptions } from '../options.ts';
import {
  type Components,
  checkFinite,
  checkGrader,
  checkNames,
  inherited,
  invalid,
  isSuccess,
  isUngraded,
  partsOf,
  rewardOf,
  rewardsOf,
  untrainedOf,
} from './component.ts';

export interface WeightedOptions {
  /** The component whose success is the whole's; absent: a sum of 1 or more is a success. */
  readonly success?: string;
}

const BY = ['byTurn', 'byThread', 'byRole'] as const;

/** `weighted({ correct: [grader, 0.8], format: [grader, 0.2] })`. Its parts are the components' own values, before weights. */
export function weighted(
  components: Readonly<Record<string, readonly [grader: Grader, weight: number]>>,
  options: WeightedOptions = {},
): Grader {
  checkOptions('weighted', options, { success: 'any' });
  const { success } = options;
  const names = checkedNames(components, 'weighted');
  const weights = names.map((name) => {
    const pair: unknown = components[name];
    if (!Array.isArray(pair) || pair.length !== 2) throw invalid(`weighted: ${name}: expected [grader, weight]`);
    checkGrader(pair[0], `weighted: ${name}`);
    checkFinite(pair[1], `weighted: the weight of ${name}`);
    return pair[1];
  });
  if (success !== undefined && !names.includes(success)) {
    throw invalid(`weighted: success is ${JSON.stringify(success)}, expected one of ${names.join(', ')}`);
  }
  const graders: Components = names.map((name) => [name, components[name]![0]]);
  return together('weighted', graders, (rewards) => {
    const value = sum(rewards.map((reward, i) => weights[i]! * reward.value));
    const deciding = success === undefined ? { value } : rewards[names.indexOf(success)]!;
    return { value, success: isSuccess(deciding), ...summedBy(names, rewards, weights) };
  });
}

/** The lowest of the values; a success where all are. */
export function minimum(components: Readonly<Record<string, Grader>>): Grader {
  return extreme('minimum', components, Math.min, (rewards) => rewards.every(isSuccess));
}

/** The highest of the values; a success where one is. */
export function maximum(components: Readonly<Record<string, Grader>>): Grader {
  return extreme('maximum', components, Math.max, (rewards) => rewards.some(isSuccess));
}

function extreme(
  kind: string,
  components: Readonly<Record<string, Grader>>,
  of: (...values: number[]) => number,
  success: (rewards: readonly Reward[]) => boolean,
): Grader {
  const names = checkedNames(components, kind);
  const graders: Components = names.map((name) => {
    checkGrader(components[name], `${kind}: ${name}`);
    return [name, components[name]];
  });
  return together(kind, graders, (rewards) => {
    const by = rewards.flatMap((reward) => BY.filter((name) => reward[name] !== undefined))[0];
    if (by !== undefined) throw badReward(`${kind}: a component gives ${by}, of which there is no ${kind}; use weighted`);
    return { value: of(...rewards.map((reward) => reward.value)), success: success(rewards) };
  });
}

function checkedNames(components: unknown, kind: string): readonly string[] {
  if (typeof components !== 'object' || components === null || Array.isArray(components)) {
    throw invalid(`${kind}: expected an object of graders by name, found ${components === null ? 'null' : typeof components}`);
  }
  const names = Object.keys(components);
  checkNames(names, kind);
  return names;
}

function together(kind: string, components: Components, combine: (rewards: readonly Reward[]) => Reward): Grader {
  const names = components.map(([name]) => name);
  const all = components.map(([, grader]) => grader);
  return defineGrader({
    name: `${kind}(${names.join(', ')})`,
    ...inherited(all, 'together'),
    async grade(input: GraderInput, ctx): Promise<GraderResult | Ungraded> {
      const rewards = await rewardsOf(components, input, ctx);
      if (isUngraded(rewards)) return rewards;
      const named = names.map((name, i) => [name, rewards[i]!] as const);
      return { ...combine(rewards), ...partsOf(named), ...untrainedOf(rewards) };
    },
  });
}

function summedBy(names: readonly string[], rewards: readonly Reward[], weights: readonly number[]): Partial<Reward> {
  const summed = BY.flatMap((by) => {
    if (rewards.every((reward) => reward[by] === undefined)) return [];
    const keys = Object.keys(rewards.find((reward) => reward[by] !== undefined)![by]!);
    const other = rewards.findIndex((reward) => !sameKeys(reward[by], keys));
    if (other !== -1) {
      throw badReward(
        `weighted: ${by} of ${names[other]} is not for the same ones as another component's; expected all components to give it for the same ones, or none`,
      );
    }
    const total = (key: string): number => sum(rewards.map((reward, i) => weights[i]! * reward[by]![key]!));
    return [[by, Object.fromEntries(keys.map((key) => [key, total(key)]))] as const];
  });
  return Object.fromEntries(summed);
}

function sameKeys(given: Reward['byTurn'], keys: readonly string[]): boolean {
  return given !== undefined && Object.keys(given).length === keys.length && keys.every((key) => Object.hasOwn(given, key));
}

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);

function badReward(message: string): TrainyardError {
  return new TrainyardError('GRADER_BAD_REWARD', message);
}

export interface GatedOptions {
  /** The value where the gate is closed. Default 0. */
  readonly floor?: number;
}

/**
 * Asks the grader only where the gate calls the rollout a success: for tests that are cheap and must hold before an expensive judgement is
 * worth anything. Its parts are `gate` and, where it was asked, `score`. Where the gate is open, the reward is the grader's.
 */
export function gated(gate: Grader, grader: Grader, options: GatedOptions = {}): Grader {
  checkGrader(gate, 'gated: the gate');
  checkGrader(grader, 'gated: the grader');
  checkOptions('gated', options, { floor: 'number' });
  const { floor = 0 } = options;
  return defineGrader({
    name: `gated(${gate.name}, ${grader.name})`,
    ...inherited([gate, grader], 'in turn'),
    async grade(input, ctx) {
      const opened = await rewardOf('gate', gate, input, ctx);
      if (isUngraded(opened)) return opened;
      if (!isSuccess(opened)) {
        return { value: floor, success: false, ...partsOf([['gate', opened]]), ...untrainedOf([opened]) };
      }
      const score = await rewardOf('score', grader, input, ctx);
      if (isUngraded(score)) return score;
      const named = [['gate', opened] as const, ['score', score] as const];
      return { ...score, success: isSuccess(score), ...partsOf(named), ...untrainedOf([opened, score]) };
    },
  });
}

export interface ClipOptions {
  readonly min?: number;
  readonly max?: number;
}

export interface ScaleOptions {
  /** Default 1. */
  readonly by?: number;
  /** Added afterwards. Default 0. */
  readonly plus?: number;
}

/** Rewards kept within bounds. Its metric `clipped` is 1 where something was outside of them. */
export function clipped(grader: Grader, options: ClipOptions): Grader {
  checkGrader(grader, 'clipped');
  checkOptions('clipped', options, { min: 'number', max: 'number' });
  const { min, max } = options;
  if (min === undefined && max === undefined) throw invalid('clipped: expected min, max or both, found neither');
  const [low, high] = [min ?? -Infinity, max ?? Infinity];
  if (low > high) throw invalid(`clipped: min is ${low}, expected at most max, which is ${high}`);
  return adjusted(`clipped(${grader.name})`, grader, (reward) => {
    let outside = 0;
    const changed = changedIn(reward, (value) => {
      const kept = Math.min(high, Math.max(low, value));
      if (kept !== value) outside = 1;
      return kept;
    });
    return { ...changed, metrics: { ...reward.metrics, clipped: outside } };
  });
}

/** Rewards multiplied and shifted. */
export function scaled(grader: Grader, options: ScaleOptions): Grader {
  checkGrader(grader, 'scaled');
  checkOptions('scaled', options, { by: 'number', plus: 'number' });
  const { by = 1, plus = 0 } = options;
  return adjusted(`scaled(${grader.name})`, grader, (reward) => changedIn(reward, (value) => value * by + plus));
}

/**
 * Rewards by turn, thread and role are treated like the value. Whether the rollout is a success stays as the grader said it: it is decided
 * before the number is changed.
 */
function adjusted(name: string, grader: Grader, change: (reward: Reward) => GraderResult & object): Grader {
  return defineGrader({
    name,
    ...inherited([grader], 'in turn'),
    async grade(input, ctx) {
      const reward = await rewardOf(grader.name, grader, input, ctx);
      return isUngraded(reward) ? reward : { ...change(reward), success: isSuccess(reward) };
    },
  });
}

function changedIn(reward: Reward, change: (value: number) => number): Reward {
  const by = BY.flatMap((name) => {
    const given = reward[name];
    if (given === undefined) return [];
    return [[name, Object.fromEntries(Object.entries(given).map(([key, value]) => [key, change(value)]))] as const];
  });
  return { ...reward, value: change(reward.value), ...Object.fromEntries(by) };
}
