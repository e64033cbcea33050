/** Why a training ends where it ends. */
import type { RunEnding } from '../core/events.ts';
import type { Harvest } from '../rollout/scheduler.ts';
import type { TrainSettings } from './settings.ts';
import { noSignal, nothingLeftToLearn, trajectoriesOf } from './signal.ts';

interface Reached {
  readonly settings: Pick<TrainSettings, 'steps' | 'maxTime' | 'maxTokens'>;
  readonly finish: AbortSignal;
  /** On `performance.now()`'s clock. */
  readonly since: number;
  readonly sampledTokens: number;
  readonly outOfPatience: boolean;
}

/** Undefined: another step is to be begun. */
export function endingAt(
  step: number,
  { settings, finish, since, sampledTokens, outOfPatience }: Reached,
): RunEnding | undefined {
  const { steps, maxTime = Number.POSITIVE_INFINITY, maxTokens = Number.POSITIVE_INFINITY } = settings;
  if (finish.aborted) return 'interrupted';
  if (step >= steps) return 'steps';
  if (outOfPatience) return 'patience';
  if (performance.now() - since > maxTime * 1000) return 'max-time';
  if (sampledTokens >= maxTokens) return 'max-tokens';
  return undefined;
}

/** Step after step no group had signal: because everything is solved, or because something is wrong. */
export function endingWithoutSignal({ withoutSignal }: Pick<Harvest, 'withoutSignal'>): RunEnding {
  const trajectories = trajectoriesOf(withoutSignal);
  if (nothingLeftToLearn(trajectories)) return 'solved';
  throw noSignal(trajectories);
}
