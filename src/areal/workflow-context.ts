/**
 * `workflowContext`: what code deep inside an episode asks about the rollout it runs in, and the HTTP client that all rollouts share.
 *
 * The rollout is the ambient one, so concurrent rollouts never see each other's. Scalars become the rollout's metrics; of several
 * under one name the mean is kept.
 */
import { currentRollout } from '../core/context.ts';
import type { WorkflowContext } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { getHttpClient, type HttpClient } from './http-client.ts';

type Scalars = Map<string, { sum: number; count: number }>;

const scalars = new WeakMap<WorkflowContext, Scalars>();

export interface WorkflowContextView {
  /** False outside of a rollout too. */
  readonly isEval: boolean;
  readonly taskId: string | undefined;
  /** Where numbers of this rollout belong. */
  statScope(): 'rollout' | 'eval-rollout';
  /** Shared by all rollouts of the process; a `fetch`. */
  getHttpClient(): HttpClient;
  readonly stats: {
    scalar(name: string, value: number): void;
  };
}

export const workflowContext: WorkflowContextView = {
  get isEval() {
    return currentRollout()?.purpose === 'eval';
  },
  get taskId() {
    return currentRollout()?.task.id;
  },
  statScope() {
    return this.isEval ? 'eval-rollout' : 'rollout';
  },
  getHttpClient,
  stats: { scalar },
};

/** From here on the rollout's scalars are kept. */
export function keepScalars(ctx: WorkflowContext): void {
  scalars.set(ctx, new Map());
}

export function scalarsOf(ctx: WorkflowContext): Readonly<Record<string, number>> {
  const kept = scalars.get(ctx) ?? new Map<never, never>();
  return Object.fromEntries([...kept].map(([name, { sum, count }]) => [name, sum / count]));
}

function scalar(name: string, value: number): void {
  const ctx = currentRollout();
  const kept = ctx && scalars.get(ctx);
  if (kept === undefined) {
    throw new TrainyardError('NO_ROLLOUT', `the scalar ${JSON.stringify(name)} was given outside of an episode`, {
      hint: 'call workflowContext.stats.scalar inside arunEpisode or run, or in what they await',
    });
  }
  if (!Number.isFinite(value))
    throw new TrainyardError('USAGE', `the scalar ${JSON.stringify(name)} is ${value}, expected a finite number`);
  const { sum, count } = kept.get(name) ?? { sum: 0, count: 0 };
  kept.set(name, { sum: sum + value, count: count + 1 });
}
