/**
 * A workflow whose tools and model stand in its config, at the top of the module: the model is a placeholder until the agent is built
 * inside `run`. Tools are the framework's own affair. Answers questions about the shop's catalog.
 */
import { readFileSync } from 'node:fs';
import { tool } from '@strands-agents/sdk';
import { AgentWorkflow, AgentWorkflowConfig, type AgentWorkflowContext, Grader, type GraderContext } from 'trainyard/osmosis';
import { OsmosisRolloutModel, OsmosisStrandsAgent } from 'trainyard/osmosis/strands';

const catalog: Record<string, { price: number; stock: number }> = JSON.parse(
  readFileSync(new URL('../shop/catalog.json', import.meta.url), 'utf8'),
);

const lookup = tool({
  name: 'lookup',
  description: 'price and stock of an item',
  inputSchema: { type: 'object', properties: { item: { type: 'string' } }, required: ['item'] },
  callback: (input) => JSON.stringify(catalog[(input as { item: string }).item] ?? { error: 'unknown item' }),
});

const calculator = tool({
  name: 'calculator',
  description: 'work out a sum',
  inputSchema: { type: 'object', properties: { expression: { type: 'string' } }, required: ['expression'] },
  callback: (input) => {
    const [, left, right] = /^(\d{1,4})\*(\d{1,4})$/.exec((input as { expression: string }).expression) ?? [];
    return JSON.stringify(right === undefined ? { error: 'bad expression' } : { result: Number(left) * Number(right) });
  },
});

class ToolWorkflowConfig extends AgentWorkflowConfig {
  override name = 'tool-workflow';
  model = new OsmosisRolloutModel({ params: { temperature: 1.0 } });
  tools = [lookup, calculator];
  maxIterations = 8;
}

export const toolWorkflowConfig = new ToolWorkflowConfig();

export class ToolWorkflow extends AgentWorkflow<ToolWorkflowConfig> {
  async run(ctx: AgentWorkflowContext<ToolWorkflowConfig>): Promise<void> {
    const config = ctx.config ?? new ToolWorkflowConfig();
    const agent = new OsmosisStrandsAgent({
      name: 'shop-agent',
      model: config.model,
      tools: config.tools,
      systemPrompt: 'You are a shop assistant. Use the tools to answer.',
      messages: ctx.prompt,
      callbackHandler: null,
    });
    for (let i = 0; i < config.maxIterations; i++) {
      const result = await agent.invokeAsync();
      if (!result.lastMessage.content.some((block) => block.type === 'toolUseBlock')) break;
    }
  }
}

export class RightNumber extends Grader {
  async grade(ctx: GraderContext): Promise<void> {
    const [sample] = Object.values(ctx.getSamples());
    const numbers = sample?.messages.at(-1)?.content?.match(/\d+/g) ?? [];
    ctx.setReward(numbers.length === 1 && Number(numbers[0]) === ctx.label ? 1 : 0);
  }
}
