/**
 * The ambient rollout: which rollout the running code belongs to, across awaits, timers and callbacks.
 *
 * Contexts nest: a rollout started inside another sees its own, and the outer one is back when it returns.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { ModelHandle, WorkflowContext } from './contracts.ts';
import { TrainyardError } from './errors.ts';

const storage = new AsyncLocalStorage<WorkflowContext>();

/** Runs `fn` as part of `ctx`'s rollout. */
export function runInRollout<T>(ctx: WorkflowContext, fn: () => T): T {
  return storage.run(ctx, fn);
}

/** The rollout that the calling code runs in, if any. */
export function currentRollout(): WorkflowContext | undefined {
  return storage.getStore();
}

/** The door to the policy of the rollout that the calling code runs in. Throws NO_ROLLOUT where there is none. */
export function ambientModel(role?: string): ModelHandle {
  const rollout = currentRollout();
  if (rollout !== undefined) return rollout.model(role);
  const asked = role === undefined ? 'the policy' : `the policy as role ${JSON.stringify(role)}`;
  throw new TrainyardError('NO_ROLLOUT', `${asked} was called outside of a rollout`, {
    hint: 'call the agent inside run(ctx), or give the model a handle: policy(ctx.model())',
  });
}
