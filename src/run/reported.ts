/** Scores as a run told them (events.jsonl, metrics.json) beside what its store gives: nobody has to believe a number that can be counted again. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { Store } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { RunEvent } from '../core/events.ts';
import type { Task, Trajectory } from '../core/types.ts';
import { evaluationId, type NumberedTask, numbered, scoreOf } from './evaluate.ts';
import { reportOf } from './evaluation-report.ts';
import { Results } from './evaluation-results.ts';
import { spread } from './held-out.ts';

/** A score in words, where it was told and as it is counted again. */
export interface ReportedScore {
  readonly where: string;
  readonly kept: string;
  readonly again: string;
}

/** What a run said on its way; a line that was cut off by a kill is no event. */
export function eventsIn(run: string): readonly RunEvent[] {
  const file = join(run, 'events.jsonl');
  const lines = existsSync(file) ? readFileSync(file, 'utf8').split('\n').slice(0, -1) : [];
  return lines.map((line, i) => {
    try {
      return JSON.parse(line) as RunEvent;
    } catch (cause) {
      throw new TrainyardError('STORE_FORMAT', `${file}: line ${i + 1} is no JSON`, {
        cause,
        hint: 'restore the file from a copy',
      });
    }
  });
}

/** Of the evaluations before, during and after training. */
export function trainingScores(
  events: readonly RunEvent[],
  trajectories: readonly Trajectory[],
  heldOut: readonly Task[],
  evalTasks: number,
): readonly ReportedScore[] {
  const kept = new Map(trajectories.map((trajectory) => [trajectory.rolloutId, trajectory]));
  const all = numbered(heldOut);
  return events.flatMap((event) => {
    if (event.type !== 'eval-end') return [];
    const tasks = event.when === 'during' ? spread(all, evalTasks) : all;
    const found = tasks.flatMap(({ number }) => kept.get(evaluationId(event.step, number)) ?? []);
    return [compared(`evaluation after step ${event.step}`, event.score, scoreOf(found))];
  });
}

/** Of an evaluation on its own, where it has come to its end. */
export async function evaluationScores(
  run: string,
  store: Store,
  tasks: readonly NumberedTask[],
  settings: { readonly n: number; readonly temperature: number },
): Promise<readonly ReportedScore[]> {
  const file = join(run, 'metrics.json');
  if (!existsSync(file)) return [];
  const results = new Results(tasks, settings.n);
  await results.recall(store);
  return [compared('metrics.json', JSON.parse(readFileSync(file, 'utf8')) as object, reportOf(results.byTask(), settings))];
}

/** The first number that differs, or both the same. */
function compared(where: string, kept: object, again: object): ReportedScore {
  const now = JSON.parse(JSON.stringify(again)) as Readonly<Record<string, unknown>>;
  const names = new Set([...Object.keys(kept), ...Object.keys(now)]);
  const then = kept as Readonly<Record<string, unknown>>;
  const name = ['n', ...names].find((one) => !isDeepStrictEqual(then[one], now[one]));
  const shown = (score: Readonly<Record<string, unknown>>): string =>
    name === undefined ? '' : `${name} ${JSON.stringify(score[name])}`;
  return { where, kept: shown(then), again: shown(now) };
}
