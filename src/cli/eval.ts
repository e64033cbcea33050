/** `trainyard eval`: flags → settings → run/eval. */
import { evaluateOnly } from '../run/eval.ts';
import { beside, EVAL_DEFAULTS } from '../run/settings.ts';
import { guarded } from './guard.ts';
import { reporter } from './report.ts';
import type { TrainFlags } from './train.ts';

export async function evalCommand(
  entry: string,
  flags: Pick<TrainFlags, 'heldOut' | 'model' | 'concurrency' | 'seed' | 'transcripts' | 'json'>,
): Promise<void> {
  const settings = {
    ...EVAL_DEFAULTS,
    entry,
    heldOut: flags.heldOut ?? beside(entry, 'held-out.jsonl'),
    model: flags.model ?? EVAL_DEFAULTS.model,
    concurrency: flags.concurrency,
    seed: flags.seed,
    transcripts: flags.transcripts,
  };
  const emit = reporter(flags.json);
  await guarded(emit, (stop) => evaluateOnly(settings, emit, stop));
}
