/** An agent of the OpenAI Agents SDK. The session, made inside `run`, is the sample; every run of the agent gets one. */
import { run } from '@openai/agents';
import { AgentWorkflow, type AgentWorkflowContext } from 'trainyard/osmosis';
import { inputItems, OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel } from 'trainyard/osmosis/openai-agents';

export { RightQueue } from './queue-grader.ts';

export class SimpleOpenAIWorkflow extends AgentWorkflow {
  async run(ctx: AgentWorkflowContext): Promise<void> {
    const agent = new OsmosisAgent({
      name: 'simple-openai-agent',
      instructions: 'Sort the message: billing, shipping, returns or repairs?',
      model: new OsmosisRolloutModel(),
      modelSettings: { temperature: 1.0, maxTokens: 64 },
    });
    const session = new OsmosisMemorySession({ name: 'simple-openai-agent' });
    await run(agent, inputItems(ctx.prompt), { session });
  }
}
