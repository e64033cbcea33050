/** `trainyard/osmosis/openai-agents`: agents of the OpenAI Agents SDK in an `AgentWorkflow`. Re-exports only. */
export { inputItems, OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel } from './integrations/osmosis-openai-agents.ts';
