/** `trainyard eval`: flags → run/eval. Returns the exit code. */
import { evaluateOnly } from '../run/eval.ts';
import { EVAL_DEFAULTS, type EvalRequest } from '../run/settings.ts';
import { entryGiven } from './entry-given.ts';
import { guarded } from './guard.ts';
import { openReport } from './report.ts';
import { withLimits } from './rollout-limits.ts';

export async function evalCommand(
  given: string | undefined,
  flags: Omit<EvalRequest, 'entry'> & { readonly json: boolean; readonly turns?: number },
): Promise<number> {
  const { json, ...settings } = withLimits(flags);
  const entry = entryGiven(given, settings.flows, 'eval');
  const { model = EVAL_DEFAULTS.model, seed = EVAL_DEFAULTS.seed } = settings;
  using report = openReport(json, { verb: 'eval', entry, model, seed, run: null });
  await guarded(report.emit, { steps: false }, ({ stop }) =>
    evaluateOnly({ entry, ...settings }, report.emit, stop, { watchStalls: true }),
  );
  return 0;
}
