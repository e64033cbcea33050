/** `trainyard eval`: flags → run/eval. */
import { evaluateOnly } from '../run/eval.ts';
import type { EvalRequest } from '../run/settings.ts';
import { guarded } from './guard.ts';
import { reporter } from './report.ts';

export async function evalCommand(entry: string, flags: Omit<EvalRequest, 'entry'> & { readonly json: boolean }): Promise<void> {
  const { json, ...settings } = flags;
  const emit = reporter(json);
  await guarded(emit, (stop) => evaluateOnly({ entry, ...settings }, emit, stop));
}
