/** `trainyard train`: flags → run/train, for a new run or one that is taken up again. */
import { TrainyardError } from '../core/errors.ts';
import type { TrainSettings } from '../run/settings.ts';
import { resume, train } from '../run/train.ts';
import { guarded } from './guard.ts';
import { reporter } from './report.ts';

interface TrainFlags extends Partial<Omit<TrainSettings, 'entry'>> {
  readonly json: boolean;
  readonly resume?: string;
}

export async function trainCommand(entry: string | undefined, { json, resume: earlier, ...settings }: TrainFlags): Promise<void> {
  const emit = reporter(json);
  if (earlier !== undefined) {
    if (settings.run !== undefined) {
      throw new TrainyardError('USAGE', 'found both --resume and --run', { hint: '--resume names the directory already' });
    }
    const request = { ...settings, run: earlier, ...(entry === undefined ? {} : { entry }) };
    await guarded(emit, (stop) => resume(request, emit, { stop, since: 0 }));
    return;
  }
  if (entry === undefined) {
    throw new TrainyardError('USAGE', 'missing required argument: entry', {
      hint: 'trainyard train <entry>, or trainyard train --resume <run>',
    });
  }
  await guarded(emit, (stop) => train({ entry, ...settings }, emit, { stop, since: 0 }));
}
