/**
 * What steps and completion say of a trajectory: which turns are trained, and what they earned.
 *
 * The reward of a step is what it earned at once. What is credited to its turn is what was earned from there on, as in any
 * reinforcement learning; the trajectory's own value is the sum of all. Where only the end was rewarded the two are the same for every
 * turn, and nothing is said by turn. The reward of the completion belongs to the last step.
 */
import type { Reward } from '../core/types.ts';
import type { FlowTrajectory } from './flow-trajectory.ts';

export interface FlowResult {
  /** Absent: all of them. */
  readonly trainedTurns?: readonly number[];
  /** Absent: nobody said, so a grader may. */
  readonly reward?: Reward;
}

export function flowResult({ steps, completion, session }: Pick<FlowTrajectory, 'steps' | 'completion' | 'session'>): FlowResult {
  const reward = rewardOf(steps, completion?.reward);
  const turns = completion?.turns ?? session.turns.length;
  const cut = turns < session.turns.length ? session.turns.slice(0, turns).map(({ index }) => index) : undefined;
  const trainedTurns = steps.length > 0 ? steps.map(({ turn }) => turn) : cut;
  return { ...(trainedTurns === undefined ? {} : { trainedTurns }), ...(reward === undefined ? {} : { reward }) };
}

function rewardOf(steps: FlowTrajectory['steps'], atTheEnd: number | undefined): Reward | undefined {
  if (atTheEnd === undefined && steps.every(({ reward }) => reward === undefined)) return undefined;
  let value = atTheEnd ?? 0;
  const fromThere = steps.toReversed().map((step) => {
    value += step.reward ?? 0;
    return [String(step.turn), value] as const;
  });
  const isSame = fromThere.every(([, earned]) => earned === value);
  return { value, ...(isSame ? {} : { byTurn: Object.fromEntries(fromThere.toReversed()) }), source: 'workflow' };
}
