/**
 * `gated`: a grader that is asked only where another one, the gate, calls the rollout a success. For tests that are cheap and must hold
 * before an expensive judgement is worth anything.
 */
import type { Grader } from '../../core/contracts.ts';
import { defineGrader } from '../../core/define-grader.ts';
import { checkOptionNames } from '../option-names.ts';
import { checkFinite, checkGrader, inherited, isSuccess, isUngraded, partsOf, rewardOf, untrainedOf } from './component.ts';

export interface GatedOptions {
  /** The value where the gate is closed. Default 0. */
  readonly floor?: number;
}

/** Its parts are `gate` and, where it was asked, `score`. Where the gate is open, the reward is the grader's. */
export function gated(gate: Grader, grader: Grader, options: GatedOptions = {}): Grader {
  checkGrader(gate, 'gated: the gate');
  checkGrader(grader, 'gated: the grader');
  checkOptionNames('gated', options, ['floor']);
  const { floor = 0 } = options;
  checkFinite(floor, 'gated: floor');
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
