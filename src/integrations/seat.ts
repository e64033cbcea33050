/**
 * Whose model a framework's model object is: one given handle, or a role of whatever rollout the call happens in.
 *
 * The second is what lets one agent, made once for the whole program, serve thousands of rollouts at the same time: the rollout is looked
 * up at every call, never kept.
 *
 * Imported by every integration, and so where frameworks are told to report to nobody.
 */
import { currentRollout } from '../core/context.ts';
import type { ModelHandle } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { quietFrameworks } from '../processes/environment.ts';

quietFrameworks();

/** A handle; or a role of the rollout that the calling code runs in; or nothing: that rollout's role `default`. */
export type Seat = ModelHandle | string | undefined;

/** The door to use for one call. Throws NO_ROLLOUT where there is no rollout to look into. */
export function handleOf(seat: Seat): ModelHandle {
  if (typeof seat === 'object') return seat;
  const rollout = currentRollout();
  if (rollout !== undefined) return rollout.model(seat);
  const asked = seat === undefined ? 'the policy' : `the policy as role ${JSON.stringify(seat)}`;
  throw new TrainyardError('NO_ROLLOUT', `${asked} was called outside of a rollout`, {
    hint: 'call the agent inside run(ctx), or give the model a handle: policy(ctx.model())',
  });
}

/** For frameworks that want to know the model's name without calling it. */
export function nameOf(seat: Seat): string {
  return typeof seat === 'object' ? seat.name : (seat ?? 'policy');
}
