/**
 * `clipped` and `scaled`: a grader with its rewards kept within bounds, or multiplied and shifted. Rewards by turn, thread and role are
 * treated like the value. Whether the rollout is a success stays as the grader said it: it is decided before the number is changed.
 */
import type { Grader, GraderResult } from '../../core/contracts.ts';
import { defineGrader } from '../../core/define-grader.ts';
import type { Reward } from '../../core/types.ts';
import { checkOptionNames } from '../option-names.ts';
import { checkFinite, checkGrader, inherited, invalid, isSuccess, isUngraded, rewardOf } from './component.ts';

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

/** Its metric `clipped` is 1 where something was outside of the bounds. */
export function clipped(grader: Grader, options: ClipOptions): Grader {
  checkGrader(grader, 'clipped');
  checkOptionNames('clipped', options, ['min', 'max']);
  const { min, max } = options;
  if (min === undefined && max === undefined) throw invalid('clipped: expected min, max or both, found neither');
  if (min !== undefined) checkFinite(min, 'clipped: min');
  if (max !== undefined) checkFinite(max, 'clipped: max');
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

export function scaled(grader: Grader, options: ScaleOptions): Grader {
  checkGrader(grader, 'scaled');
  checkOptionNames('scaled', options, ['by', 'plus']);
  const { by = 1, plus = 0 } = options;
  checkFinite(by, 'scaled: by');
  checkFinite(plus, 'scaled: plus');
  return adjusted(`scaled(${grader.name})`, grader, (reward) => changedIn(reward, (value) => value * by + plus));
}

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
  const by = (['byTurn', 'byThread', 'byRole'] as const).flatMap((name) => {
    const given = reward[name];
    if (given === undefined) return [];
    return [[name, Object.fromEntries(Object.entries(given).map(([key, value]) => [key, change(value)]))] as const];
  });
  return { ...reward, value: change(reward.value), ...Object.fromEntries(by) };
}
