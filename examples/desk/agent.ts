/**
 * A clerk takes an order from a customer. Both are played by the policy; only the clerk is trained.
 *
 * The customer is a role that is not in `trainable`: it is sampled, and none of its tokens is ever learned from. What it wants stands
 * in its own system prompt, which the clerk does not see: the clerk has to ask. The base policy's clerk would rather guess.
 */
import OpenAI from 'openai';
import type { ChatCompletionMessageParam } from 'openai/resources/chat/completions';
import { defineGrader, defineWorkflow, type ModelHandle } from 'trainyard';

const MAX_TURNS = 4;

export default defineWorkflow({
  name: 'desk',
  roles: ['clerk', 'customer'],
  trainable: ['clerk'],

  async run(ctx) {
    const { want } = ctx.metadata as { readonly want: string };
    const clerk = seat(ctx.model('clerk'), 'You are a clerk. Take the order.');
    const customer = seat(ctx.model('customer'), `You are a customer. You want ${want}.`);

    let said = ctx.prompt[0]?.content ?? '';
    for (let turn = 0; turn < MAX_TURNS; turn++) {
      const reply = await clerk(said, ctx.signal);
      if (reply.startsWith('Order:')) return reply;
      said = await customer(reply, ctx.signal);
    }
    return 'no order';
  },
});

/** One side of the conversation: hears what the other said, remembers it, replies. */
function seat(model: ModelHandle, system: string) {
  const client = new OpenAI({ baseURL: model.baseURL, apiKey: model.apiKey });
  const messages: ChatCompletionMessageParam[] = [{ role: 'system', content: system }];
  return async (said: string, signal: AbortSignal): Promise<string> => {
    messages.push({ role: 'user', content: said });
    // Temperature 0 makes a steady customer. In training the clerk's is the run's: it has to try things out.
    const completion = await client.chat.completions.create({ model: model.name, messages, temperature: 0 }, { signal });
    const reply = completion.choices[0]?.message.content ?? '';
    messages.push({ role: 'assistant', content: reply });
    return reply;
  };
}

/** 1 if exactly what the customer wants was ordered. There is no `answer`: the customer's seat needs to know it, so it is in the metadata. */
export const grader = defineGrader(({ task, output }) => {
  const { want } = task.metadata as { readonly want: string };
  return output === `Order: you want ${want}.` ? 1 : 0;
});
