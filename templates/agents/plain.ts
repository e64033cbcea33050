/** The agent, without any client: `ctx.model()` itself is asked. */
import { defineWorkflow, type Message, type Tool } from 'trainyard';
import { z } from 'zod';
import { MAX_TURNS, runTool, SYSTEM, tools } from './task.ts';

export { grader } from './grader.ts';

const functions = tools.map(({ name, description, schema }): Tool => {
  return {
    type: 'function',
    function: { name, description, parameters: z.toJSONSchema(schema) as Tool['function']['parameters'] },
  };
});

export default defineWorkflow(async (ctx) => {
  const model = ctx.model(); // ← the one line that matters: the model is the one being trained
  const messages: Message[] = [{ role: 'system', content: SYSTEM }, ...ctx.prompt];
  for (let turn = 0; turn < MAX_TURNS; turn++) {
    const { message } = await model.generate({ messages, ...(functions.length > 0 && { tools: functions }) });
    if (!message.tool_calls?.length) return message.content;
    messages.push(message);
    for (const call of message.tool_calls) {
      const content = runTool(call.function.name, call.function.arguments);
      messages.push({ role: 'tool', tool_call_id: call.id, content });
    }
  }
  return 'gave up';
});
