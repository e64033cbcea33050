/** `trainyard/openai-agents`: the policy for agents written with the OpenAI Agents SDK. */
export { type PolicyModel, policy, policyProvider, RecordingSession } from './integrations/openai-agents.ts';
export type { Seat } from './integrations/request.ts';
