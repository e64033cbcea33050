/** `trainyard/strands`: the policy for agents written with Strands Agents. */
export type { Seat } from './integrations/request.ts';
export { PolicyModel, type PolicyModelConfig } from './integrations/strands.ts';
