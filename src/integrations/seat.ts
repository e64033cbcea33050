/**
 * Whose model a framework's model object is: one given handle, or a role of whatever rollout the call happens in.
 *
 * The second is what lets one agent, made once for the whole program, serve thousands of rollouts at the same time: the rollout is looked
 * up at every call, never kept.
 */
import { ambientModel } from '../core/context.ts';
import type { ModelHandle } from '../core/contracts.ts';

/** A handle; or a role of the rollout that the calling code runs in; or nothing: that rollout's first role. */
export type Seat = ModelHandle | string | undefined;

/** The door to use for one call. Throws NO_ROLLOUT where there is no rollout to look into. */
export function handleOf(seat: Seat): ModelHandle {
  return typeof seat === 'object' ? seat : ambientModel(seat);
}

/** For frameworks that want to know the model's name without calling it. */
export function nameOf(seat: Seat): string {
  return typeof seat === 'object' ? seat.name : (seat ?? 'policy');
}
