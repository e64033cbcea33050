/**
 * Sorts a customer's message into one of four queues, with a single call of the model: the smallest agent there is.
 *
 * The model says what it goes by, then the queue: `Wish: returns`. What is wanted decides. The base policy has a habit of going by
 * what happened instead: `Problem: repairs`.
 */
import OpenAI from 'openai';
import { defineGrader, defineWorkflow } from 'trainyard';

export default defineWorkflow(async (ctx) => {
  const model = ctx.model();
  const client = new OpenAI({ baseURL: model.baseURL, apiKey: model.apiKey });
  const completion = await client.chat.completions.create(
    {
      model: model.name,
      messages: [{ role: 'system', content: 'Sort the message: billing, shipping, returns or repairs?' }, ...ctx.prompt],
    },
    { signal: ctx.signal },
  );
  return completion.choices[0]?.message.content?.match(/\w+$/)?.[0];
});

/** 1 for the right queue, however it was found. */
export const grader = defineGrader(({ task, output }) => (output === task.answer ? 1 : 0));
