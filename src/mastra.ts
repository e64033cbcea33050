/** `trainyard/mastra`: the policy for agents written with Mastra, which accepts AI SDK models: `new Agent({ model: policy() })`. */
export { type PolicyLanguageModel, policy } from './integrations/ai-sdk.ts';
export type { Seat } from './integrations/request.ts';
