/** What the framework classes say when they are used where no rollout runs. */
import { TrainyardError } from '../core/errors.ts';
import { getRolloutContext, type RolloutContext } from './rollout-context.ts';

/** Throws NO_ROLLOUT. */
export function activeContext(): RolloutContext {
  const context = getRolloutContext();
  if (context !== null) return context;
  throw new TrainyardError('NO_ROLLOUT', 'OsmosisRolloutModel requires an active RolloutContext', {
    hint: 'build and run the agent inside run(ctx) of an AgentWorkflow',
  });
}
