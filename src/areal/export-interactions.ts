/**
 * A trajectory as AReaL's tensor rows, for whoever trains elsewhere: one row for each completion (`individual`), or one for each branch of the
 * conversation, its completions put together by exact token prefix (`concat`).
 *
 * Rows are those of `stitch`, the one place where masks are built, so every token is what was sampled and in `concat` each is trained once:
 * where branches share a beginning, it is masked in all but the first. What is not the policy's to train is left out; what was not
 * finished or not received is left out with a warning.
 */

import { TrainyardError } from '../core/errors.ts';
import { type Credit, credited, earnedBy } from '../core/reward.ts';
import { completionId } from '../core/turns.ts';
import type { Reward, Sample, Trajectory, Turn } from '../core/types.ts';
import { stitch } from '../tokens/stitch.ts';

/** Lists of lists have one row; the names are AReaL's. */
export interface TrajectoryTensors {
  readonly input_ids: readonly (readonly number[])[];
  readonly attention_mask: readonly (readonly number[])[];
  readonly loss_mask: readonly (readonly number[])[];
  readonly logprobs: readonly (readonly number[])[];
  /** Of the policy; -1 where the mask is 0. */
  readonly versions: readonly (readonly number[])[];
  readonly rewards: readonly number[];
}

export interface ExportOptions {
  readonly style: 'individual' | 'concat';
  /** How much of what a completion earned counts for the one before it in its branch. Absent: rewards as they are stored. */
  readonly discount?: number;
  /** Told what was left out. Default: a process warning. */
  readonly warn?: (message: string) => void;
}

/** By the id of the completion, in `concat` of the branch's last. Throws USAGE where there is no reward to export. */
export function exportInteractions(
  trajectory: Trajectory,
  { style, discount, warn = (message) => process.emitWarning(message) }: ExportOptions,
): Record<string, TrajectoryTensors> {
  if (style !== 'individual' && style !== 'concat') {
    throw new TrainyardError('USAGE', `style is ${JSON.stringify(style)}, expected "individual" or "concat"`);
  }
  const { rolloutId, groupId, grade } = trajectory;
  if (grade.kind !== 'graded') {
    throw new TrainyardError('USAGE', `rollout ${rolloutId} has no reward (${grade.kind}), so there is nothing to export`, {
      hint: 'export only trajectories whose grade.kind is "graded"',
    });
  }
  const graded = { grade: { ...grade, reward: discounted(grade.reward, trajectory.turns, discount) } };
  const turns = finished(trajectory, warn).filter((turn) => earnedBy(graded, turn) !== undefined);
  // As its "advantage" every token has its turn's index: so the row says which turn is its last.
  const options = { advantageOf: ({ index }: Turn) => index, weight: 1, rolloutId, groupId };
  const rows = style === 'concat' ? stitch(turns, options) : turns.flatMap((turn) => stitch([turn], options));
  return Object.fromEntries(
    rows.map((row) => {
      const last = turns.find(({ index }) => index === row.advantages.at(-1))!;
      return [completionId(trajectory, last.sampling.seed), tensorsOf(row, earnedBy(graded, last)!.reward)];
    }),
  );
}

function discounted(reward: Reward, turns: readonly Turn[], turnDiscount: number | undefined): Reward {
  if (turnDiscount === undefined) return reward;
  const credit: Credit = { turnDiscount, per: 'turn' };
  return credited(reward, turns, credit);
}

function finished({ rolloutId, turns, unanswered = [] }: Trajectory, warn: (message: string) => void): readonly Turn[] {
  if (unanswered.length > 0) warn(`rollout ${rolloutId}: ${unanswered.length} unfinished model calls are not exported`);
  const undelivered = turns.filter((turn) => turn.undelivered);
  if (undelivered.length > 0) warn(`rollout ${rolloutId}: ${undelivered.length} answers that nobody received are not exported`);
  return turns.filter((turn) => !turn.undelivered);
}

function tensorsOf({ tokens, mask, logprobs, versions }: Sample, reward: number): TrajectoryTensors {
  return {
    input_ids: [[...tokens]],
    attention_mask: [Array.from(tokens, () => 1)],
    loss_mask: [[...mask]],
    logprobs: [[...logprobs]],
    versions: [Array.from(versions, (version, i) => (mask[i] === 1 ? version : -1))],
    rewards: [reward],
  };
}
