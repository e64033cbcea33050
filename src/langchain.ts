/** `trainyard/langchain`: the policy for agents written with LangChain and LangGraph. */
export { ChatPolicy, type ChatPolicySettings } from './integrations/langchain.ts';
export type { Seat } from './integrations/request.ts';
