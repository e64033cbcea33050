/** `trainyard/osmosis/strands`: Strands agents in an `AgentWorkflow`. Re-exports only. */
export {
  OsmosisRolloutModel,
  OsmosisStrandsAgent,
  type OsmosisStrandsAgentConfig,
  type RolloutModelParams,
} from './integrations/strands.ts';
