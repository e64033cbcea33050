/**
 * The numbers of an evaluation, computed in one place: the terminal, `--json`, metrics.json and the report files all show these.
 *
 * Every rollout that was run is in the denominator: one that failed or was not graded did not solve its task. Mean reward is over what was
 * graded, because a failure is not a reward of 0. Tasks count equally, whatever became of their rollouts.
 */
import type { EvaluationReport, TagReport } from '../core/events.ts';
import { meanInterval, meanOf, passAtK, passHatK, sharesInterval } from '../core/statistics.ts';
import type { RolloutResult, TaskResult } from './evaluation-results.ts';
import { meansIn } from './signal.ts';

/** Tasks of which nothing was run are left out. `n`: rollouts that each was to have. */
export function reportOf(
  results: readonly TaskResult[],
  { n, temperature }: { readonly n: number; readonly temperature: number },
): EvaluationReport {
  const tasks = results.filter(({ rollouts }) => rollouts.length > 0);
  // A task that lacks rollouts can only be asked about as many as it has.
  const fewest = tasks.reduce((least, { rollouts }) => Math.min(least, rollouts.length), n);
  const over = (of: (n: number, c: number, k: number) => number): Readonly<Record<string, number>> =>
    Object.fromEntries(
      triesOf(fewest).map((k) => [k, meanOf(tasks.map(({ rollouts }) => of(rollouts.length, solvedIn(rollouts), k)))]),
    );
  const tagged = tasks.flatMap((task) => task.tags.map((tag) => ({ tag, task })));
  const byTag = [...Map.groupBy(tagged, ({ tag }) => tag)].toSorted(([a], [b]) => (a < b ? -1 : 1));
  return {
    ...sharesOf(tasks, n),
    temperature,
    perTask: n,
    rollouts: tasks.reduce((sum, { rollouts }) => sum + rollouts.length, 0),
    passAtK: over(passAtK),
    passHatK: over(passHatK),
    ...meansIn(tasks.flatMap(({ rollouts }) => rollouts)),
    byTag: Object.fromEntries(
      byTag.map(([tag, alike]) => [
        tag,
        sharesOf(
          alike.map(({ task }) => task),
          n,
        ),
      ]),
    ),
  };
}

function sharesOf(tasks: readonly TaskResult[], n: number): TagReport {
  const shares = tasks.map(({ rollouts }) => solvedIn(rollouts) / rollouts.length);
  const rewards = tasks.flatMap(({ rollouts }) => meanRewardIn(rollouts) ?? []);
  const count = (ending: RolloutResult['ending']): number =>
    tasks.reduce((sum, { rollouts }) => sum + rollouts.filter((rollout) => rollout.ending === ending).length, 0);
  return {
    success: meanOf(shares),
    ci: sharesInterval(shares, n),
    n: tasks.length,
    failed: count('failed'),
    ungraded: count('ungraded'),
    meanReward: rewards.length === 0 ? null : meanOf(rewards),
    meanRewardCi: meanInterval(rewards),
  };
}

/** Whether success is at least this; what is only rounding, 0.8 as the mean of thirds and fifths, never decides. */
export function isReached(least: number, { success }: Pick<EvaluationReport, 'success'>): boolean {
  return success >= least - 1e-9;
}

export function solvedIn(rollouts: readonly RolloutResult[]): number {
  return rollouts.filter(({ ending }) => ending === 'solved').length;
}

/** Null where none was graded. */
export function meanRewardIn(rollouts: readonly RolloutResult[]): number | null {
  const rewards = rollouts.flatMap(({ reward }) => reward ?? []);
  return rewards.length === 0 ? null : meanOf(rewards);
}

/** 1, 2, 4 … up to n, and n itself. */
function triesOf(n: number): readonly number[] {
  const doubled = Array.from({ length: Math.floor(Math.log2(Math.max(1, n))) + 1 }, (_, i) => 2 ** i);
  return [...new Set([...doubled, n])].filter((k) => k >= 1);
}
