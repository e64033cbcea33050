/** A config of one's own: a subclass with initialisers, one instance of it exported. At most four rollouts run at once. */
import { AgentWorkflow, AgentWorkflowConfig, type AgentWorkflowContext, ConcurrencyConfig } from 'trainyard/osmosis';
import { OsmosisRolloutModel, OsmosisStrandsAgent } from 'trainyard/osmosis/strands';

export { RightQueue } from './queue-grader.ts';

class SearchWorkflowConfig extends AgentWorkflowConfig {
  override name = 'search-workflow';
  maxIterations = 2;
  temperature = 1.0;
  override concurrency = new ConcurrencyConfig({ maxConcurrent: 4 });
}

export class SearchWorkflow extends AgentWorkflow<SearchWorkflowConfig> {
  async run(ctx: AgentWorkflowContext<SearchWorkflowConfig>): Promise<void> {
    const { maxIterations, temperature } = ctx.config ?? new SearchWorkflowConfig();
    const agent = new OsmosisStrandsAgent({
      name: 'search-agent',
      model: new OsmosisRolloutModel({ params: { temperature } }),
      systemPrompt: 'Sort the message: billing, shipping, returns or repairs?',
      messages: ctx.prompt,
    });
    for (let i = 0; i < maxIterations; i++) {
      const { lastMessage } = await agent.invoke(i === 0 ? [] : 'Which queue?');
      if (lastMessage.content.some((block) => block.type === 'textBlock' && /\w+: \w+$/.test(block.text))) break;
    }
  }
}

export const searchWorkflowConfig = new SearchWorkflowConfig();
