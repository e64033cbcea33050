/** `trainyard train`: flags → run/train. */
import type { TrainRequest } from '../run/settings.ts';
import { train } from '../run/train.ts';
import { guarded } from './guard.ts';
import { reporter } from './report.ts';

export async function trainCommand(
  entry: string,
  flags: Omit<TrainRequest, 'entry'> & { readonly json: boolean },
): Promise<void> {
  const { json, ...settings } = flags;
  const emit = reporter(json);
  await guarded(emit, (stop) => train({ entry, ...settings }, emit, { stop, since: 0 }));
}
