/** `trainyard eval`: flags → run/eval, for a new evaluation or one that is taken up again. Returns the exit code. */
import { resolve } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import type { Emit } from '../core/events.ts';
import { type EvaluationResult, evaluateOnly, resumeEvaluation } from '../run/eval.ts';
import { checkWritable, jsonReport, junitReport, writeReport } from '../run/evaluation-files.ts';
import { isReached } from '../run/evaluation-report.ts';
import { type EvaluationRequest, usualEvaluationRun } from '../run/evaluation-settings.ts';
import { checkpointIn } from '../run/run-checkpoint.ts';
import { EVAL_DEFAULTS } from '../run/settings.ts';
import { entryGiven } from './entry-given.ts';
import { guarded } from './guard.ts';
import { wayOn } from './lines.ts';
import { percent } from './phrases.ts';
import { openReport } from './report.ts';
import { withLimits } from './rollout-limits.ts';

/** Exit code of an evaluation below `--min-success`: it worked, and the answer is no. */
const NOT_GOOD_ENOUGH = 4;

export interface EvalFlags extends Partial<Omit<EvaluationRequest, 'entry'>> {
  readonly json: boolean;
  readonly turns?: number;
  readonly graderDeadline?: number;
  readonly checkpoint?: string;
  readonly resume?: string;
  readonly retryFailed?: boolean;
  readonly minSuccess?: number;
  readonly junit?: string;
  readonly report?: string;
}

export async function evalCommand(given: string | undefined, flags: EvalFlags): Promise<number> {
  checkFlags(flags);
  const { json, checkpoint, resume, retryFailed, minSuccess = 0, junit, report: reportFile, ...rest } = withLimits(flags);
  const settings = checkpoint === undefined ? rest : { ...rest, model: await checkpointIn(checkpoint) };
  const entry = resume === undefined ? entryGiven(given, settings.flows, 'eval') : (given ?? settings.flows);
  const { model = EVAL_DEFAULTS.model, seed = EVAL_DEFAULTS.seed } = settings;
  using report = openReport(json, { verb: 'eval', entry: entry ?? resume ?? '', model, seed, run: null });
  let run: string | null = null;
  let hasBegun = false;
  let name = entry ?? resume ?? '';
  const emit: Emit = (event) => {
    if (event.type === 'eval-start') {
      ({ run, entry: name } = event);
      hasBegun = true;
    }
    if (event.type === 'done' && 'success' in event && !isReached(minSuccess, event)) {
      const message = `success is ${percent(event.success)}, expected at least ${percent(minSuccess)}`;
      report.emit({ type: 'warning', code: 'BELOW_MIN_SUCCESS', message });
    }
    report.emit(event);
  };
  const onLeave = (): void => {
    report[Symbol.dispose]();
    if (run !== null) process.stderr.write(`${wayOn(run, 'eval').join('\n')}\n`);
  };
  const result = await guarded(emit, { steps: false, hasBegun: () => hasBegun, onLeave }, ({ stop }) => {
    const options = { watchStalls: true, retryFailed };
    if (resume === undefined) {
      const request = { ...settings, entry: entry ?? '', run: settings.run ?? usualEvaluationRun(entry ?? '') };
      return evaluateOnly(request, emit, stop, options);
    }
    const again = entry === undefined ? settings : { ...settings, entry };
    return resumeEvaluation({ ...again, run: resume }, emit, stop, options);
  });
  await writeReports(result, name, { junit, report: reportFile });
  return isReached(minSuccess, result) ? 0 : NOT_GOOD_ENOUGH;
}

/** Whatever is wrong with the flags beside each other, all of it. */
function checkFlags({ resume, run, retryFailed, checkpoint, model, junit, report }: EvalFlags): void {
  const problems = [
    ...(resume !== undefined && run !== undefined ? ['found both --resume and --run: --resume names the directory already'] : []),
    ...(checkpoint !== undefined && model !== undefined ? ['found both --checkpoint and --model: give one of them'] : []),
    ...(retryFailed && resume === undefined
      ? ['--retry-failed: expected --resume <run> beside it, whose failed rollouts are run again']
      : []),
    ...(junit !== undefined && report !== undefined && resolve(junit) === resolve(report)
      ? ['found the same file for --junit and --report: give two']
      : []),
  ];
  if (problems.length > 0) throw new TrainyardError('USAGE', problems.join('; '), { hint: 'see trainyard eval --help' });
  if (junit !== undefined) checkWritable(junit, '--junit', run ?? resume);
  if (report !== undefined) checkWritable(report, '--report', run ?? resume);
}

async function writeReports(
  { tasks, run: _, ...report }: EvaluationResult,
  name: string,
  files: { readonly junit: string | undefined; readonly report: string | undefined },
): Promise<void> {
  if (files.report !== undefined) await writeReport(files.report, jsonReport(name, report, tasks));
  if (files.junit !== undefined) await writeReport(files.junit, junitReport(name, tasks));
}
