/** The shop agent with Strands. A Strands agent is one conversation, so it is made in `run`; its model and tools are made once. */
import { Agent, MaxTokensError, tool } from '@strands-agents/sdk';
import { defineWorkflow } from 'trainyard';
import { PolicyModel } from 'trainyard/strands';
import { calculator, lookup, MAX_TURNS, SYSTEM } from './shop.ts';

export { grader } from './shop.ts';

const model = new PolicyModel();
const tools = [
  tool({ name: 'lookup', description: lookup.description, inputSchema: lookup.schema, callback: lookup.run }),
  tool({ name: 'calculator', description: calculator.description, inputSchema: calculator.schema, callback: calculator.run }),
];

export default defineWorkflow(async (ctx) => {
  const agent = new Agent({ model, systemPrompt: SYSTEM, tools, printer: false });
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
