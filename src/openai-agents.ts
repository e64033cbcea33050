/** `trainyard/openai-agents`: the policy for agents written with the OpenAI Agents SDK. */
export { type PolicyModel, policy, policyProvider } from './integrations/openai-agents.ts';
export { RecordingSession } from './integrations/openai-agents-session.ts';
export type { Seat } from './integrations/seat.ts';
