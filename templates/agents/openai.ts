/** The agent, with the official OpenAI client. */
import OpenAI from 'openai';
import type { ChatCompletionMessageParam, ChatCompletionTool } from 'openai/resources/chat/completions';
import { defineWorkflow } from 'trainyard';
import { z } from 'zod';
import { MAX_TURNS, runTool, SYSTEM, tools } from './task.ts';

export { grader } from './grader.ts';

const functions = tools.map(({ name, description, schema }): ChatCompletionTool => {
  return { type: 'function', function: { name, description, parameters: z.toJSONSchema(schema) } };
});

export default defineWorkflow(async (ctx) => {
  const client = new OpenAI(ctx.model().openai()); // ← the one line that matters: the model is the one being trained
  const messages: ChatCompletionMessageParam[] = [{ role: 'system', content: SYSTEM }, ...ctx.prompt];
  for (let turn = 0; turn < MAX_TURNS; turn++) {
    const completion = await client.chat.completions.create(
      { model: ctx.model().name, messages, ...(functions.length > 0 && { tools: functions }) },
      { signal: ctx.signal },
    );
    const reply = completion.choices[0]?.message;
    if (!reply?.tool_calls?.length) return reply?.content;
    messages.push(reply);
    for (const call of reply.tool_calls) {
      if (call.type !== 'function') continue;
      const content = runTool(call.function.name, call.function.arguments);
      messages.push({ role: 'tool', tool_call_id: call.id, content });
    }
  }
  return 'gave up';
});
