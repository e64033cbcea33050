/**
 * The environment variables by which stock clients find the policy, in a process that runs one rollout after another: what an earlier
 * rollout left running finds those of its own rollout, whose key is dead, never those of the one that runs now. Else it would speak in
 * another's conversation.
 */
import { currentRollout } from '../core/context.ts';
import type { WorkflowContext } from '../core/contracts.ts';

const known = new WeakMap<WorkflowContext, Readonly<Record<string, string>>>();
let current: WorkflowContext | undefined;

/** From now on these are the process's; what `ctx` leaves running keeps them. */
export function enterEnvironment(ctx: WorkflowContext, variables: Readonly<Record<string, string>>): void {
  if (current === undefined) {
    // Written to itself: what stands for it, Node would not let be defined.
    process.env = new Proxy(process.env, { get: lookedUp, set: (whole, name, value) => Reflect.set(whole, name, value) });
  }
  current = ctx;
  known.set(ctx, variables);
  Object.assign(process.env, variables);
}

function lookedUp(whole: NodeJS.ProcessEnv, name: string | symbol): unknown {
  const asking = currentRollout();
  const left = asking === undefined || asking === current ? undefined : known.get(asking);
  return left !== undefined && typeof name === 'string' && Object.hasOwn(left, name) ? left[name] : Reflect.get(whole, name);
}
