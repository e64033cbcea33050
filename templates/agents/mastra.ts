/** The agent, with Mastra. It is made once; `policy()` is the model of whichever rollout asks. */
import { Agent } from '@mastra/core/agent';
import { createTool } from '@mastra/core/tools';
import { defineWorkflow } from 'trainyard';
import { policy } from 'trainyard/mastra';
import { MAX_TURNS, SYSTEM, tools } from './task.ts';

export { grader } from './grader.ts';

const agent = new Agent({
  id: 'assistant',
  name: 'assistant',
  model: policy(), // ← the one line that matters: the model is the one being trained
  instructions: SYSTEM,
  tools: Object.fromEntries(
    tools.map(({ name, description, schema, run }) => {
      return [name, createTool({ id: name, description, inputSchema: schema, execute: async (given) => run(given) })];
    }),
  ),
});

export default defineWorkflow(async (ctx) => {
  const question = ctx.prompt.map(({ content }) => content).join('\n');
  const { text } = await agent.generate(question, { maxSteps: MAX_TURNS, abortSignal: ctx.signal });
  return text;
});
