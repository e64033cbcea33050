/** The agent, with the OpenAI Agents SDK. It is made once; `policy()` is the model of whichever rollout asks. */
import { Agent, MaxTurnsExceededError, ModelBehaviorError, Runner, tool } from '@openai/agents';
import { defineWorkflow } from 'trainyard';
import { policy } from 'trainyard/openai-agents';
import { MAX_TURNS, SYSTEM, tools } from './task.ts';

export { grader } from './grader.ts';

const agent = new Agent({
  name: 'assistant',
  model: policy(), // ← the one line that matters: the model is the one being trained
  instructions: SYSTEM,
  tools: tools.map(({ name, description, schema, run }) => tool({ name, description, parameters: schema, execute: run })),
});
const runner = new Runner();

export default defineWorkflow(async (ctx) => {
  const question = ctx.prompt.map(({ content }) => content).join('\n');
  try {
    const { finalOutput } = await runner.run(agent, question, { maxTurns: MAX_TURNS, signal: ctx.signal });
    return finalOutput;
  } catch (thrown) {
    // An agent that never comes to an answer is a bad one, not a broken one: it is graded.
    if (thrown instanceof MaxTurnsExceededError || thrown instanceof ModelBehaviorError) return 'gave up';
    throw thrown;
  }
});
