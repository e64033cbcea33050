/** What an evaluation on its own looks like as plain lines: how it begins, and its numbers as a small table. */
import { styleText } from 'node:util';
import type { EvalDone, RunEvent, TagReport } from '../core/events.ts';
import { asCalled, count, figure, percent } from './phrases.ts';
import { cellsOf, cutTo, printable } from './screen/width.ts';

/** Parts and metrics that are shown, of each. */
const MOST_NAMES = 8;
/** Tags that are shown; all of them are in metrics.json. */
const MOST_TAGS = 20;

/** A tag or the id of a task is as long as somebody made it; a table stays readable. */
export const NAME_COLUMNS = 40;

export function evaluationStart(event: RunEvent & { readonly type: 'eval-start' }): readonly string[] {
  const { entry, tasks, perTask, temperature, seed, run, resumedAt, model, server } = event;
  const of = `${count(tasks, 'task')}${perTask === 1 ? '' : ` × ${perTask}`}`;
  const what = styleText('bold', printable(entry));
  const doing =
    resumedAt === undefined
      ? `Evaluating ${what} on ${of}`
      : `Going on with ${what}, ${resumedAt} of ${tasks * perTask} rollouts done`;
  return [
    `${doing}, temperature ${temperature}, seed ${seed}`,
    ...(server === undefined ? [] : [`Policy ${printable(model)}`]),
    ...(run === null ? [] : [`Run directory ${printable(run)}`]),
  ];
}

export function evaluationSummary(event: EvalDone): readonly string[] {
  const { run, passAtK, passHatK, perTask, byTag } = event;
  const tags = Object.entries(byTag);
  const rows = [
    ['', 'success', '95 % interval', 'mean reward', 'tasks', 'failed', 'ungraded'],
    rowOf('all', event),
    ...tags.slice(0, MOST_TAGS).map(([tag, report]) => rowOf(cutTo(printable(tag), NAME_COLUMNS), report)),
  ];
  const hidden = tags.length - MOST_TAGS;
  return [
    '',
    ...table(rows),
    ...(hidden > 0 ? [`${count(hidden, 'more tag')}: see metrics.json`] : []),
    ...(perTask === 1 ? [] : [`pass@k  ${chances(passAtK)}`, `pass^k  ${chances(passHatK)}`]),
    ...named('parts', event.parts),
    ...named('metrics', event.metrics),
    ...(run === null ? [] : kept(run, event)),
  ];
}

/** What graders measured, by name. */
function named(title: string, means: Readonly<Record<string, number>> = {}): readonly string[] {
  const shown = Object.entries(means).map(([name, mean]) => `${printable(name)} ${figure(mean, 3)}`);
  const more = shown.length > MOST_NAMES ? [`+${shown.length - MOST_NAMES} more`] : [];
  return shown.length === 0 ? [] : [`${title}  ${[...shown.slice(0, MOST_NAMES), ...more].join('   ')}`];
}

function kept(run: string, { failed }: EvalDone): readonly string[] {
  const again = failed === 0 ? [] : ['Run again what failed:', `  ${asCalled(`trainyard eval --resume ${run} --retry-failed`)}`];
  return [`Every rollout is in ${printable(run)}/store.sqlite, the numbers are in ${printable(run)}/metrics.json`, ...again];
}

function rowOf(name: string, { success, ci, meanReward, n, failed, ungraded }: TagReport): readonly string[] {
  const [low, high] = ci.map((end) => (100 * end).toFixed(1));
  const reward = meanReward === null ? 'none' : meanReward.toFixed(3);
  return [name, percent(success), `${low} – ${high} %`, reward, `${n}`, `${failed}`, `${ungraded}`];
}

function chances(byK: Readonly<Record<string, number>>): string {
  return Object.entries(byK)
    .map(([k, chance]) => `${k}: ${percent(chance)}`)
    .join('   ');
}

/** Columns as wide as their widest cell; the first to the left, the others to the right. */
export function table(rows: readonly (readonly string[])[]): readonly string[] {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => cellsOf(row[column] ?? ''))));
  return rows.map((row) =>
    row
      .map((cell, column) => {
        const padding = ' '.repeat((widths[column] ?? 0) - cellsOf(cell));
        return column === 0 ? cell + padding : padding + cell;
      })
      .join('   ')
      .trimEnd(),
  );
}
