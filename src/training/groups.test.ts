import { describe, expect, it } from 'vitest';
import { refuses } from '../../test/fixtures/refusal.ts';
import { gradedRollout, trainedTurn } from '../../test/fixtures/trained-rows.ts';
import type { Workflow } from '../core/contracts.ts';
import { defineWorkflow } from '../core/define.ts';
import type { Task, Trajectory } from '../core/types.ts';
import { type GroupBatch, START } from '../rollout/scheduler.ts';
import type { TrainPlan } from '../run/plan.ts';
import type { Rollouts } from '../run/rollouts.ts';
import type { TrainSettings } from '../settings/check-settings.ts';
import { TRAIN_DEFAULTS } from '../settings/setting-rows.ts';
import { makeBatch } from './batch.ts';
import { groupsOf, isAccepted } from './groups.ts';

const tasks: readonly Task[] = Array.from({ length: 50 }, (_, i) => ({ id: `t${i}`, prompt: [] }));
function ended(rolloutId: string, groupId: string, reward: number | undefined): Trajectory {
  const graded = gradedRollout(rolloutId, { value: reward ?? 0 }, [trainedTurn(0)], groupId);
  if (reward !== undefined) return graded;
  const outcome = { kind: 'failed', code: 'WORKFLOW_FAILED', message: '' } as const;
  return { ...graded, outcome, grade: { kind: 'ungraded', why: 'failed' } };
}

type RewardOf = (group: number, place: number) => number | undefined;

/** The first batch of a run whose rollouts earn this. */
async function firstBatch(
  settings: Partial<TrainSettings>,
  accepts: Workflow['accepts'] | undefined,
  rewardOf: RewardOf = (_, place) => place,
): Promise<GroupBatch> {
  const workflow = { ...defineWorkflow(async () => 'done'), name: 'picky', ...(accepts && { accepts }) };
  const rollouts = {
    run: async ({ rolloutId, groupId }: Trajectory) =>
      ended(rolloutId, groupId, rewardOf(numberOf(groupId), Number(rolloutId.at(-1)))),
  } as unknown as Rollouts;
  const plan = { settings: { ...TRAIN_DEFAULTS, ...settings }, tasks, entry: { workflow } } as unknown as TrainPlan;
  return await groupsOf(plan, { step: 0, groups: START }, rollouts, () => {}).take();
}

const numberOf = (groupId: string | undefined): number => Number(groupId?.slice(1));
/** Refuses the second, the fourth and the sixth group. */
const refusesThree = (group: readonly Trajectory[]): boolean => ![2, 4, 6].includes(numberOf(group[0]?.groupId));

describe('groups that a workflow does not accept', () => {
  it.each([
    ['make a dynamic batch smaller: of 8 with 3 refused, 5 are left', 1, [1, 3, 5, 7, 8]],
    ['are replaced in a fixed batch, which is exactly 8', 3, [1, 3, 5, 7, 8, 9, 10, 11]],
  ])('%s', async (_, refill, left) => {
    const { groups, withoutSignal } = await firstBatch({ groupsPerStep: 8, group: 2, refill }, refusesThree);
    expect(groups.map(({ groupId }) => numberOf(groupId))).toEqual(left);
    expect(withoutSignal.map(({ groupId }) => numberOf(groupId))).toEqual([2, 4, 6]);
  });

  it('are asked about only where there is something to learn', async () => {
    const asked: number[] = [];
    const accepts = (group: readonly Trajectory[]): boolean => asked.push(numberOf(group[0]?.groupId)) > 0;
    const rewardOf: RewardOf = (group, place) => (group % 2 === 0 ? 1 : place);
    await firstBatch({ groupsPerStep: 4, group: 2, refill: 1 }, accepts, rewardOf);
    expect(asked).toEqual([1, 3]);
  });

  it('end the run with a clear error where the question itself fails', async () => {
    const broken = (): boolean => {
      throw new Error('no rewards');
    };
    await refuses(
      firstBatch({ groupsPerStep: 2, group: 2 }, broken),
      'WORKFLOW_FAILED',
      /workflow picky was asked whether to accept group g000001 and threw Error: no rewards/,
    );
    const late = (async () => false) as unknown as () => boolean;
    expect(() => isAccepted({ name: 'picky', accepts: late }, [])).toThrowError(/returned Promise.*expected true or false/);
  });

  it('are looked at in a copy: what is changed there is trained as it was', () => {
    const group = ['a', 'b'].map((id) => ended(id, 'g', 1));
    const before = structuredClone(group);
    const accepts = (given: readonly Trajectory[]): boolean => {
      given[0]!.turns[0]!.logprobs.fill(-9);
      return (given as Trajectory[]).splice(0).length === 2;
    };
    expect(isAccepted({ name: 'greedy', accepts }, group)).toBe(true);
    expect(group).toEqual(before);
  });
});

describe('a group with a failed rollout', () => {
  const settings = { groupsPerStep: 2, group: 4, refill: 1 };
  const whole: RewardOf = (_, place) => place;

  it('is compared without it, and no other group changes', async () => {
    const holed: RewardOf = (group, place) => (group === 1 && place === 3 ? undefined : place);
    const [with3, with4] = await Promise.all([firstBatch(settings, undefined, holed), firstBatch(settings, undefined, whole)]);
    const firsts = ({ groups }: GroupBatch, group: string) => {
      const all = groups.flatMap(({ trajectories }) => trajectories);
      const { samples } = makeBatch(all, 'dr-grpo', 1);
      return samples.flatMap(({ groupId, advantages }) => (groupId === group ? [advantages.at(-1)] : []));
    };
    expect(firsts(with3, 'g000001')).toEqual([-1, 0, 1]);
    expect(firsts(with3, 'g000002')).toEqual([-1.5, -0.5, 0.5, 1.5]);
    expect(firsts(with4, 'g000002')).toEqual(firsts(with3, 'g000002'));
  });

  it('of which one is left is dropped: there is nothing to compare it with', async () => {
    const single: RewardOf = (group, place) => (group === 1 && place > 0 ? undefined : place);
    const { groups, withoutSignal } = await firstBatch(settings, undefined, single);
    expect([groups, withoutSignal]).toMatchObject([[{ groupId: 'g000002' }], [{ groupId: 'g000001' }]]);
  });
});
