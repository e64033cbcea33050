/** The agent, with the AI SDK. It is made once; `policy()` is the model of whichever rollout asks. */
import { stepCountIs, ToolLoopAgent, tool } from 'ai';
import { defineWorkflow } from 'trainyard';
import { policy } from 'trainyard/ai-sdk';
import { MAX_TURNS, SYSTEM, tools } from './task.ts';

export { grader } from './grader.ts';

const agent = new ToolLoopAgent({
  model: policy(), // ← the one line that matters: the model is the one being trained
  instructions: SYSTEM,
  stopWhen: stepCountIs(MAX_TURNS),
  tools: Object.fromEntries(
    tools.map(({ name, description, schema, run }) => {
      return [name, tool({ description, inputSchema: schema, execute: async (given) => run(given) })];
    }),
  ),
});

export default defineWorkflow(async (ctx) => {
  const { text } = await agent.generate({ messages: ctx.prompt, abortSignal: ctx.signal });
  return text;
});
