/** How far rollouts may run ahead of the trainer: AReaL's capacity formula. Pure; counts in whatever unit the caller does. */
import type { Trajectory } from '../core/types.ts';

export interface Capacity {
  readonly staleness: number;
  /** The version being served, and so the number of batches trained. */
  readonly version: number;
  readonly batchSize: number;
  /** Accepted since the run began, trained ones included. What was rejected does not count. */
  readonly accepted: number;
  readonly running: number;
  readonly concurrency: number;
}

/** How many more may be started; negative when there are too many already. */
export function capacityOf({ staleness, version, batchSize, accepted, running, concurrency }: Capacity): number {
  const byConcurrency = Math.max(1, concurrency) - running;
  const byStaleness = (staleness + version + 1) * Math.max(1, batchSize) - (accepted + running);
  return Math.min(byConcurrency, byStaleness);
}

/** Versions between the oldest sampled token and this version; 0 where nothing was sampled. */
export function versionsBehind(trajectories: readonly Trajectory[], version: number): number {
  let oldest = version;
  for (const { turns } of trajectories) {
    for (const { policyVersion, model } of turns) if (model === undefined) oldest = Math.min(oldest, policyVersion);
  }
  return version - oldest;
}
