/** Five calls, one after another, and a grader that is content: what the workers of the benchmark run. */
import { defineGrader, defineWorkflow, type Message } from 'trainyard';

const TURNS = 5;

export default defineWorkflow(async (ctx) => {
  const messages: Message[] = [...ctx.prompt];
  for (let turn = 0; turn < TURNS; turn++) {
    const { message } = await ctx.model().generate({ messages });
    messages.push(message, { role: 'user', content: 'And with one more?' });
  }
  return messages.at(-2)?.content;
});

export const grader = defineGrader(({ output }) => (output === 'The total is 81.' ? 1 : 0));
