/** The shop agent with LangChain's `createAgent` (LangGraph). The agent is made once; `ChatPolicy` is the model of whichever rollout asks. */
import { createAgent, tool } from 'langchain';
import { defineWorkflow } from 'trainyard';
import { ChatPolicy } from 'trainyard/langchain';
import { calculator, lookup, MAX_TURNS, SYSTEM } from './shop.ts';

export { grader } from './shop.ts';

const agent = createAgent({
  model: new ChatPolicy(),
  systemPrompt: SYSTEM,
  tools: [
    tool(lookup.run, { name: 'lookup', description: lookup.description, schema: lookup.schema }),
    tool(calculator.run, { name: 'calculator', description: calculator.description, schema: calculator.schema }),
  ],
});

export default defineWorkflow(async (ctx) => {
  try {
    // One step of the graph for each model call, one for its tools.
    const limits = { recursionLimit: 2 * MAX_TURNS, signal: ctx.signal };
    const { messages } = await agent.invoke({ messages: ctx.prompt }, limits);
    return messages.at(-1)?.text;
  } catch (thrown) {
    // An agent that never comes to an answer is a bad one, not a broken one: it is graded.
    if (thrown instanceof Error && thrown.name === 'GraphRecursionError') return 'gave up';
    throw thrown;
  }
});
