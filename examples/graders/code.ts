/**
 * An agent that writes JavaScript functions, graded by unit tests in a sandbox. The tests are the tasks' answers: the agent never sees them.
 *
 *   npm run trainyard -- eval examples/graders/code.ts --held-out examples/graders/code.jsonl
 *
 * The model that ships with Trainyard is too small to write code: give it another one.
 */
import OpenAI from 'openai';
import { defineWorkflow } from 'trainyard';
import { unitTests } from 'trainyard/graders';

export default defineWorkflow(async (ctx) => {
  const model = ctx.model();
  const client = new OpenAI({ baseURL: model.baseURL, apiKey: model.apiKey });
  const messages = [{ role: 'system' as const, content: 'Answer with one block of JavaScript.' }, ...ctx.prompt];
  const completion = await client.chat.completions.create({ model: model.name, messages }, { signal: ctx.signal });
  return completion.choices[0]?.message.content;
});

/** `partial`: code that passes some of its tests is better than code that passes none. */
export const grader = unitTests({ language: 'javascript', partial: true, timeoutMs: 5_000 });
