/**
 * The ambient rollout: which rollout the running code belongs to, across awaits, timers and callbacks.
 *
 * Contexts nest: a rollout started inside another sees its own, and the outer one is back when it returns.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { WorkflowContext } from './contracts.ts';

const storage = new AsyncLocalStorage<WorkflowContext>();

/** Runs `fn` as part of `ctx`'s rollout. */
export function runInRollout<T>(ctx: WorkflowContext, fn: () => T): T {
  return storage.run(ctx, fn);
}

/** The rollout that the calling code runs in, if any. */
export function currentRollout(): WorkflowContext | undefined {
  return storage.getStore();
}
