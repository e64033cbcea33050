/** The shop agent with the OpenAI Agents SDK. The agent is made once; `policy()` is the model of whichever rollout asks. */
import { Agent, MaxTurnsExceededError, Runner, tool } from '@openai/agents';
import { defineWorkflow } from 'trainyard';
import { policy } from 'trainyard/openai-agents';
import { calculator, lookup, MAX_TURNS, SYSTEM } from './shop.ts';

export { grader } from './shop.ts';

const agent = new Agent({
  name: 'assistant',
  model: policy(),
  instructions: SYSTEM,
  tools: [
    tool({ name: 'lookup', description: lookup.description, parameters: lookup.schema, execute: lookup.run }),
    tool({ name: 'calculator', description: calculator.description, parameters: calculator.schema, execute: calculator.run }),
  ],
});
const runner = new Runner();

export default defineWorkflow(async (ctx) => {
  const question = ctx.prompt.map(({ content }) => content).join('\n');
  try {
    const { finalOutput } = await runner.run(agent, question, { maxTurns: MAX_TURNS, signal: ctx.signal });
    return finalOutput;
  } catch (thrown) {
    // An agent that never comes to an answer is a bad one, not a broken one: it is graded.
    if (thrown instanceof MaxTurnsExceededError || isModelBehaviour(thrown)) return 'gave up';
    throw thrown;
  }
});

/** For instance a call of a tool that there is not. */
function isModelBehaviour(thrown: unknown): boolean {
  return thrown instanceof Error && thrown.name === 'ModelBehaviorError';
}
