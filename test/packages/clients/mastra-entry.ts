/** An entry whose agent is written with Mastra. */
import { Mastra } from '@mastra/core';
import { Agent } from '@mastra/core/agent';
import { defineGrader, defineWorkflow } from '../../../src/index.ts';
import { policy } from '../../../src/mastra.ts';

const agent = new Agent({ id: 'assistant', name: 'assistant', instructions: 'Answer.', model: policy() });
const mastra = new Mastra({ agents: { agent } });

export default defineWorkflow(async (ctx) => {
  const question = ctx.prompt.map(({ content }) => content).join('\n');
  return (await mastra.getAgent('agent').generate(question)).text;
});
export const grader = defineGrader(() => 1);
