/** What only the agent-flow routes refuse, by code; docs/reference/agent-flow.md is kept equal to it by a test. */
import { Refusal, type RefusalOptions } from '../http/refusal.ts';

export const FLOW_REFUSALS = {
  /** A step contradicts what is known of its trajectory. */
  step_conflict: 409,
  /** A step that the gateway did not generate. */
  unknown_generation: 409,
  /** The trajectory is complete. */
  trajectory_complete: 409,
  /** The trajectory was registered or completed as something else. */
  trajectory_conflict: 409,
  /** Its group was handed out or dropped before. */
  group_closed: 409,
  /** A batch of this name was handed out from the other channel. */
  batch_conflict: 409,
  /** Lists that belong together have different lengths. */
  lengths_differ: 422,
  grader_failed: 500,
  no_grader: 503,
  /** As many complete groups wait as may. */
  pool_full: 503,
  store_failed: 503,
  store_full: 507,
} as const;
export type FlowRefusalCode = keyof typeof FLOW_REFUSALS;

export class FlowRefusal extends Refusal {
  constructor(code: FlowRefusalCode, message: string, options?: RefusalOptions) {
    super({ status: FLOW_REFUSALS[code], code }, message, options);
  }
}
