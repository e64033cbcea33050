/** `trainyard diff`: two evaluations of the same tasks, compared task by task. Returns the exit code. */
import { styleText } from 'node:util';
import { printableLine } from '../core/describe.ts';
import { type Comparison, compare, measuredIn, type TaskChange } from '../run/compare.ts';
import { count, nameCell, percent, table } from './text.ts';

/** Tasks that are named of each kind; `--json` has all. */
const MOST = 10;

export async function diffCommand(a: string, b: string, { json }: { readonly json: boolean }): Promise<number> {
  const comparison = compare(await measuredIn(a), await measuredIn(b));
  console.log(json ? JSON.stringify({ type: 'diff', ...comparison }) : diffLines(comparison).join('\n'));
  return 0;
}

export function diffLines(comparison: Comparison): readonly string[] {
  const { a, b, tasks, success, meanReward, better, worse, sameSuccess } = comparison;
  const [low, high] = success.ci.map(points);
  const rows = [
    ['', 'A', 'B', 'difference', '95 % interval'],
    ['success', percent(success.a), percent(success.b), points(success.delta), `${low?.replace(' points', '')} to ${high}`],
    ...(meanReward === null ? [] : [rewardRow(meanReward)]),
  ];
  return [
    `A is ${printableLine(a)}`,
    `B is ${printableLine(b)}`,
    ...warnings(comparison).map((warning) => `${styleText('yellow', 'warning')} ${printableLine(warning)}`),
    '',
    ...table(rows),
    `Success of ${count(tasks, 'task')}: ${success.better} solved more often, ${success.worse} less often, ${success.same} as often; p = ${success.p.toPrecision(2)} (${verdict(success)})`,
    ...(meanReward === null
      ? []
      : [
          `Rewards of ${count(meanReward.tasks, 'task')}: ${meanReward.better} higher, ${meanReward.worse} lower, ${meanReward.same} the same`,
        ]),
    ...named('Solved more often', better),
    ...named('Solved less often', worse),
    ...named('Solved as often, with another reward', sameSuccess),
  ];
}

function rewardRow({ a, b, delta, ci }: NonNullable<Comparison['meanReward']>): readonly string[] {
  return [
    'mean reward',
    a.toFixed(3),
    b.toFixed(3),
    signed(delta, 3),
    ci === null ? 'no spread' : ci.map((end) => signed(end, 3)).join(' to '),
  ];
}

function verdict({ p, delta }: Comparison['success']): string {
  if (delta === 0) return 'no difference';
  if (p >= 0.05) return 'could well be chance';
  return delta > 0 ? 'B is better' : 'A is better';
}

function warnings({
  otherDifferences,
  earlierPolicies,
  failed,
  onlyInA,
  onlyInB,
  changedTasks,
  unfinished,
}: Comparison): readonly string[] {
  const list = (what: string, ids: readonly string[]): readonly string[] =>
    ids.length === 0
      ? []
      : [`${what}, not compared: ${ids.slice(0, 5).join(', ')}${ids.length > 5 ? ` and ${ids.length - 5} more` : ''}`];
  return [
    ...earlierPolicies,
    ...otherDifferences.map((difference) => `not only the policy differs: ${difference}`),
    ...(failed.a + failed.b === 0 ? [] : [`rollouts that failed count as not solved: ${failed.a} in A, ${failed.b} in B`]),
    ...list('only in A', onlyInA),
    ...list('only in B', onlyInB),
    ...list('another task under the same id', changedTasks),
    ...list('not finished', unfinished),
  ];
}

function named(title: string, changes: readonly TaskChange[]): readonly string[] {
  if (changes.length === 0) return [];
  const rows = changes
    .slice(0, MOST)
    .map(({ id, success, meanReward }) => [
      `  ${nameCell(id)}`,
      `${percent(success.a)} → ${percent(success.b)}`,
      meanReward === null ? 'no reward' : `reward ${meanReward.a.toFixed(3)} → ${meanReward.b.toFixed(3)}`,
    ]);
  const hidden = changes.length - MOST;
  return ['', `${title}:`, ...table(rows), ...(hidden > 0 ? [`  and ${hidden} more`] : [])];
}

/** Of two shares: 71 points more is not 71 % more. */
function points(share: number): string {
  return `${signed(100 * share, 1)} points`;
}

function signed(value: number, digits: number): string {
  return `${value >= 0 ? '+' : '−'}${Math.abs(value).toFixed(digits)}`;
}
