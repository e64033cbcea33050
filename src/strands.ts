/** `trainyard/strands`: the policy for agents written with Strands Agents. */
export type { Seat } from './integrations/seat.ts';
export { PolicyModel, type PolicyModelConfig } from './integrations/strands.ts';
