/** Two calls, the second one in ten times over HTTP with the OpenAI client: what every rollout of the soak runs. */
import OpenAI from 'openai';
import { defineGrader, defineWorkflow, type Message } from 'trainyard';

export default defineWorkflow(async (ctx) => {
  const model = ctx.model();
  const messages: Message[] = [...ctx.prompt];
  const { message } = await model.generate({ messages });
  messages.push(message, { role: 'user', content: 'And with one more?' });
  if (Number(ctx.task.id) % 10 > 0) return (await model.generate({ messages })).text;
  const client = new OpenAI({ baseURL: model.baseURL, apiKey: model.apiKey });
  const wanted = { model: model.name, messages: messages as OpenAI.ChatCompletionMessageParam[] };
  return (await client.chat.completions.create(wanted)).choices[0]?.message.content;
});

export const grader = defineGrader(({ output }) => (output === 'The total is 81.' ? 1 : 0));
