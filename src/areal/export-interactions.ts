/**
 * Exports a trajectory as AReaL's tensor rows for training elsewhere: one row per completion (`individual`), or one per branch, joined by
 * exact token prefix (`concat`). `stitch` makes the rows, so every token is as sampled; in `concat` each is trained once, because a prefix
 * shared by branches is masked in all but the first. Turns that are not trained are omitted; unfinished and undelivered ones are omitted
 * with a warning.
 */
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { credited, earnedBy } from '../core/reward.ts';
import { completionId } from '../core/turns.ts';
import type { Sample, Trajectory, Turn } from '../core/types.ts';
import { stitch } from '../tokens/stitch.ts';

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
    throw new TrainyardError('USAGE', `rollout ${rolloutId} has no reward (${grade.kind}), so there is nothing to export`, {
      hint: 'export only trajectories whose grade.kind is "graded"',
    });
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

const REQUIRED = ['input_ids', 'attention_mask'];
const BY_TOKEN = ['input_ids', 'attention_mask', 'loss_mask', 'logprobs', 'versions'];

/**
 * Checks a row's keys, dimensions and lengths, and that its keys equal `expectedKeys`, those of the row before. Null, a rejected episode,
 * is valid. Returns the keys, to be passed with the next row. Throws USAGE with all mistakes.
 */
export function checkTrajectoryFormat(row: unknown, expectedKeys?: readonly string[]): readonly string[] | undefined {
  if (row === null) return expectedKeys;
  if (typeof row !== 'object' || Array.isArray(row) || row === undefined) {
    throw bad([`expected an object or null, found ${describeValue(row)}`]);
  }
  const given = row as Readonly<Record<string, unknown>>;
  const keys = Object.keys(given).toSorted();
  if (keys.length === 0) throw bad(['the row is empty']);
  const missing = REQUIRED.filter((key) => !(key in given)).map((key) => `${key} is missing`);
  const drifted =
    expectedKeys === undefined || expectedKeys.join() === keys.join()
      ? []
      : [`the keys are ${keys.join(', ')}, those of the row before were ${expectedKeys.join(', ')}`];
  const mistakes = [...missing, ...drifted, ...shapeMistakes(given)];
  if (mistakes.length > 0) throw bad(mistakes);
  return keys;
}

function shapeMistakes(given: Readonly<Record<string, unknown>>): string[] {
  const ids = given['input_ids'];
  const rows = Array.isArray(ids) ? ids.length : 0;
  const length = Array.isArray(ids) && Array.isArray(ids[0]) ? ids[0].length : 0;
  const twoD = BY_TOKEN.filter((key) => key in given).flatMap((key) => {
    const value = given[key];
    if (!Array.isArray(value) || !value.every((one) => Array.isArray(one) && one.every(Number.isFinite))) {
      return [`${key} is ${describeValue(value)}, expected rows of numbers`];
    }
    const wrong = value.length !== rows || value.some((one: readonly unknown[]) => one.length !== length);
    return wrong ? [`${key} is not ${rows} × ${length} like input_ids`] : [];
  });
  const { rewards } = given;
  const isRewards =
    rewards === undefined || (Array.isArray(rewards) && rewards.length === rows && rewards.every(Number.isFinite));
  return isRewards ? twoD : [...twoD, `rewards is ${describeValue(rewards)}, expected ${rows} numbers`];
}

function bad(mistakes: readonly string[]): TrainyardError {
  return new TrainyardError('USAGE', `not a trajectory: ${mistakes.join('; also: ')}`);
}
