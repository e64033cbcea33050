/** The agent, with the official Anthropic client. */
import Anthropic from '@anthropic-ai/sdk';
import type { MessageParam, Tool } from '@anthropic-ai/sdk/resources/messages';
import { defineWorkflow } from 'trainyard';
import { z } from 'zod';
import { MAX_TURNS, runTool, SYSTEM, tools } from './task.ts';

export { grader } from './grader.ts';

const described = tools.map(({ name, description, schema }): Tool => {
  return { name, description, input_schema: { type: 'object', ...z.toJSONSchema(schema) } as Tool['input_schema'] };
});

export default defineWorkflow(async (ctx) => {
  const client = new Anthropic(ctx.model().anthropic()); // ← the one line that matters: the model is the one being trained
  const messages: MessageParam[] = ctx.prompt.map(({ role, content }) => {
    return { role: role === 'assistant' ? 'assistant' : 'user', content };
  });
  for (let turn = 0; turn < MAX_TURNS; turn++) {
    const reply = await client.messages.create(
      {
        model: ctx.model().name,
        max_tokens: 256,
        system: SYSTEM,
        messages,
        ...(described.length > 0 && { tools: described }),
      },
      { signal: ctx.signal },
    );
    const calls = reply.content.filter((block) => block.type === 'tool_use');
    if (calls.length === 0) return reply.content.map((block) => (block.type === 'text' ? block.text : '')).join('');
    messages.push({ role: 'assistant', content: reply.content });
    messages.push({
      role: 'user',
      content: calls.map(({ id, name, input }) => {
        return { type: 'tool_result', tool_use_id: id, content: runTool(name, JSON.stringify(input)) };
      }),
    });
  }
  return 'gave up';
});
