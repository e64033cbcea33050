/** `trainyard/ai-sdk`: the policy for agents written with the AI SDK. */
export { type PolicyLanguageModel, policy } from './integrations/ai-sdk.ts';
export { type RoleOfModelId, redirectModelIds } from './integrations/ai-sdk-redirect.ts';
export type { Seat } from './integrations/seat.ts';
