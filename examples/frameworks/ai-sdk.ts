/** The shop agent with the AI SDK. The agent is made once; `policy()` is the model of whichever rollout asks. */
import { stepCountIs, ToolLoopAgent, tool } from 'ai';
import { defineWorkflow } from 'trainyard';
import { policy } from 'trainyard/ai-sdk';
import { calculator, lookup, MAX_TURNS, SYSTEM } from './shop.ts';

export { grader } from './shop.ts';

const agent = new ToolLoopAgent({
  model: policy(),
  instructions: SYSTEM,
  stopWhen: stepCountIs(MAX_TURNS),
  tools: {
    lookup: tool({ description: lookup.description, inputSchema: lookup.schema, execute: async (given) => lookup.run(given) }),
    calculator: tool({
      description: calculator.description,
      inputSchema: calculator.schema,
      execute: async (given) => calculator.run(given),
    }),
  },
});

export default defineWorkflow(async (ctx) => {
  const { text } = await agent.generate({ messages: ctx.prompt, abortSignal: ctx.signal });
  return text;
});
