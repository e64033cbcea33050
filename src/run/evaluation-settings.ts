/** The settings of an evaluation on its own: those of any evaluation, and how much of it there is. */
import { basename, dirname, resolve } from 'node:path';
import type { Entry } from '../rollout/discovery.ts';
import { tidyRows } from './evaluation-rows.ts';
import { type EvalRequest, type EvalSettings, evalSettings, freeRun } from './settings.ts';

export interface EvaluationSettings extends EvalSettings {
  /** Share of gradings that may fail before it stops; judged over 64 or more. */
  readonly maxErrorShare: number;
  /** Directory it is kept in; undefined: nothing is kept, and it cannot be taken up again. */
  readonly run: string | undefined;
  /** Rollouts per task. */
  readonly n: number;
  readonly temperature: number;
  /** Rows of the task file, such as 3,7,10-20; undefined: all. */
  readonly rows: string | undefined;
}

export type EvaluationRequest = EvalRequest &
  Partial<Pick<EvaluationSettings, 'run' | 'n' | 'temperature' | 'rows' | 'maxErrorShare'>>;

/** What failed is in the result, so an evaluation bears more of it than a training does. */
export const USUAL_ERROR_SHARE = 0.25;

/** Several rollouts of a task are to differ; a single one is to be the policy's best guess. */
function usualTemperature(n: number): number {
  return n > 1 ? 1 : 0;
}

export function evaluationSettings(request: EvaluationRequest): EvaluationSettings {
  const { n = 1, run, temperature = usualTemperature(n), maxErrorShare = USUAL_ERROR_SHARE } = request;
  const rows = request.rows === undefined ? undefined : tidyRows(request.rows);
  // One check for all of them, so that everything wrong is said at once.
  return evalSettings({ ...request, n, temperature, run, rows, maxErrorShare } as EvalRequest) as EvaluationSettings;
}

/** runs/eval-shop-20261115-081703. */
export function usualEvaluationRun(entry: string | Entry): string {
  return freeRun(`eval-${typeof entry === 'string' ? basename(dirname(resolve(entry))) : entry.workflow.name}`);
}
