/** A Strands agent, built inside `run`: that binds it to the rollout and makes its conversation a sample. */
import { AgentWorkflow, type AgentWorkflowContext } from 'trainyard/osmosis';
import { OsmosisRolloutModel, OsmosisStrandsAgent } from 'trainyard/osmosis/strands';

export { RightQueue } from './queue-grader.ts';

export class SimpleStrandsWorkflow extends AgentWorkflow {
  async run(ctx: AgentWorkflowContext): Promise<void> {
    const agent = new OsmosisStrandsAgent({
      name: 'simple-strands-agent',
      model: new OsmosisRolloutModel({ params: { temperature: 1.0 } }),
      systemPrompt: 'Sort the message: billing, shipping, returns or repairs?',
      messages: ctx.prompt,
      callbackHandler: null,
    });
    await agent.invokeAsync();
  }
}
