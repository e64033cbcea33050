/** `trainyard/ai-sdk`: the policy for agents written with the AI SDK. */
export { type PolicyLanguageModel, policy, type RoleOfModelId, redirectModelIds } from './integrations/ai-sdk.ts';
export type { Seat } from './integrations/request.ts';
