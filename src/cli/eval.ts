/** `trainyard eval`: flags → run/eval. Returns the exit code. */
import { TrainyardError } from '../core/errors.ts';
import { evaluateOnly } from '../run/eval.ts';
import { EVAL_DEFAULTS, type EvalRequest } from '../run/settings.ts';
import { guarded } from './guard.ts';
import { openReport } from './report.ts';
import { withLimits } from './rollout-limits.ts';

export async function evalCommand(
  given: string | undefined,
  flags: Omit<EvalRequest, 'entry'> & { readonly json: boolean; readonly turns?: number },
): Promise<number> {
  const { json, ...settings } = withLimits(flags);
  // The list of flows is an entry, too.
  const entry = given ?? settings.flows;
  if (entry === undefined) {
    throw new TrainyardError('USAGE', 'missing required argument: entry', { hint: 'trainyard eval <entry>' });
  }
  const { model = EVAL_DEFAULTS.model, seed = EVAL_DEFAULTS.seed } = settings;
  using report = openReport(json, { verb: 'eval', entry, model, seed, run: null });
  await guarded(report.emit, { steps: false }, ({ stop }) =>
    evaluateOnly({ entry, ...settings }, report.emit, stop, { watchStalls: true }),
  );
  return 0;
}
