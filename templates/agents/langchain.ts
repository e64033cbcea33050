/** The agent, with LangChain's `createAgent` (LangGraph). It is made once; `ChatPolicy` is the model of whichever rollout asks. */
import { createAgent, tool } from 'langchain';
import { defineWorkflow } from 'trainyard';
import { ChatPolicy } from 'trainyard/langchain';
import { MAX_TURNS, SYSTEM, tools } from './task.ts';

export { grader } from './grader.ts';

const agent = createAgent({
  model: new ChatPolicy(), // ← the one line that matters: the model is the one being trained
  systemPrompt: SYSTEM,
  tools: tools.map(({ name, description, schema, run }) => tool(run, { name, description, schema })),
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
