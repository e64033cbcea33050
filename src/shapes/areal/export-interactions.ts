/**
 * Exports a trajectory as AReaL's tensor rows for training elsewhere: one row per completion (`individual`), or one per branch, joined by
 * exact token prefix (`concat`). `stitch` makes the rows, so every token is as sampled; in `concat` each is trained once, because a prefix
 * shared by branches is masked in all but the first. Turns that are not trained are omitted; unfinished and undelivered ones are omitted
 * with a warning.
 */
import { TrainyardError } from '../../core/errors.ts';
import { credited, earnedBy } from '../../core/reward.ts';
import { completionId } from '../../core/turns.ts';
import type { Sample, Trajectory, Turn } from '../../core/types.ts';
import { stitch } from '../../tokens/stitch.ts';

/** Every list of lists has exactly one row. The names are AReaL's. */
export interface TrajectoryTensors {
  readonly input_ids: readonly (readonly number[])[];
  readonly attention_mask: readonly (readonly number[])[];
  readonly loss_mask: readonly (readonly number[])[];
  readonly logprobs: readonly (readonly number[])[];
  /** Policy versions; -1 where the mask is 0. */
  readonly versions: readonly (readonly number[])[];
  readonly rewards: readonly number[];
}

export interface ExportOptions {
  readonly style: 'individual' | 'concat';
  /** The share of a completion's reward that is added to the completion before it in its branch. Absent: rewards as stored. */
  readonly discount?: number;
  /** Called with what was omitted. Default: a process warning. */
  readonly warn?: (message: string) => void;
}

/** Keyed by completion id; in `concat` by the id of the branch's last completion. Throws USAGE if the trajectory has no reward. */
export function exportInteractions(
  trajectory: Trajectory,
  { style, discount, warn = (message) => process.emitWarning(message) }: ExportOptions,
): Record<string, TrajectoryTensors> {
  if (style !== 'individual' && style !== 'concat') {
    throw new TrainyardError('USAGE', `style is ${JSON.stringify(style)}, expected "individual" or "concat"`);
  }
  const { rolloutId, groupId, grade } = trajectory;
  if (grade.kind !== 'graded') {
    throw new TrainyardError(
      'USAGE',
      `rollout ${rolloutId} has no reward (${grade.kind}), so there is nothing to export`,
      'export only trajectories whose grade.kind is "graded"',
    );
  }
  const reward =
    discount === undefined ? grade.reward : credited(grade.reward, trajectory.turns, { turnDiscount: discount, per: 'turn' });
  const graded = { grade: { ...grade, reward } };
  const turns = finished(trajectory, warn).filter((turn) => earnedBy(graded, turn) !== undefined);
  // Passes each turn's index as its "advantage", so that the row tells which turn is its last.
  const options = { advantageOf: ({ index }: Turn) => index, weight: 1, rolloutId, groupId };
  const rows = style === 'concat' ? stitch(turns, options) : turns.flatMap((turn) => stitch([turn], options));
  return Object.fromEntries(
    rows.map((row) => {
      const last = turns.find(({ index }) => index === row.advantages.at(-1))!;
      return [completionId(trajectory, last.sampling.seed), tensorsOf(row, earnedBy(graded, last)!.reward)];
    }),
  );
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
