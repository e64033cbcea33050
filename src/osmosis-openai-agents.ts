/** `trainyard/osmosis/openai-agents`: agents of the OpenAI Agents SDK in an `AgentWorkflow`. Re-exports only. */
export { inputItems, OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel } from './osmosis/openai-agents.ts';
