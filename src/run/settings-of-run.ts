/** A new run takes over the settings of the run whose rollouts it trains from (`train --from`). Does not choose those rollouts. */
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import type { TrainFromRequest, TrainRequest, TrainSettings } from '../settings/check-settings.ts';
import { rowOf } from '../settings/setting-rows.ts';
import { isEvaluation, readRunFile } from './directory.ts';

/** Settings of the other run that do not carry over: they are about its machine, its way of sampling, or what it began with. */
function isOwn(name: string): boolean {
  const row = rowOf(name);
  return row?.isOwn === true || row?.mayChange === 'own';
}

/** The request, with the other run's settings where it has none of its own. */
export function withSettingsOf({ from, ...request }: TrainFromRequest): TrainRequest {
  const record = readRunFile(from, 'FILE_NOT_FOUND') as { readonly settings?: Partial<TrainSettings> };
  if (isEvaluation(record) || record.settings?.steps === undefined) {
    throw new TrainyardError(
      'USAGE',
      `from: expected the directory of a training run, found ${from}`,
      'an evaluation is never trained; to teach the successes of any run, use --warm-start',
    );
  }
  const kept = Object.fromEntries(Object.entries(record.settings).filter(([name]) => !isOwn(name)));
  const isHeldOutGiven = request.heldOut !== undefined || request.split !== undefined;
  const { heldOut: _, split: _split, ...others } = kept;
  const { loss = 'ppo', dualClip } = record.settings;
  // As with staleness: tokens of other policies need their weights corrected.
  const own = { loss: loss === 'ppo' && dualClip === undefined ? 'decoupled_ppo' : loss };
  const merged = { ...(isHeldOutGiven ? others : kept), ...own, ...defined(request), from } as Partial<TrainRequest>;
  const { entry } = merged;
  if (entry !== undefined) return { ...merged, entry };
  throw new TrainyardError('USAGE', `${from} was begun from TypeScript, so its entry is not known`, 'give the entry');
}
