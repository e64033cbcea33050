/** The agent, with Strands. A Strands agent is one conversation, so it is made in the workflow; its model and tools are made once. */
import { Agent, MaxTokensError, tool } from '@strands-agents/sdk';
import { defineWorkflow } from 'trainyard';
import { PolicyModel } from 'trainyard/strands';
import { MAX_TURNS, SYSTEM, tools } from './task.ts';

export { grader } from './grader.ts';

const model = new PolicyModel(); // ← the one line that matters: the model is the one being trained
const callable = tools.map(({ name, description, schema, run }) => {
  return tool({ name, description, inputSchema: schema, callback: run });
});

export default defineWorkflow(async (ctx) => {
  const agent = new Agent({ model, systemPrompt: SYSTEM, tools: callable, printer: false });
  const question = ctx.prompt.map(({ content }) => content).join('\n');
  try {
    const result = await agent.invoke(question, { limits: { turns: MAX_TURNS }, cancelSignal: ctx.signal });
    return result.toString().trim();
  } catch (thrown) {
    // Strands throws where an answer was cut off. The policy said too much: that is graded.
    if (thrown instanceof MaxTokensError) return 'said too much';
    throw thrown;
  }
});
