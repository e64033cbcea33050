/** An agent as a program: a task on standard input, the policy where OPENAI_BASE_URL says, nothing else. */
import { text } from 'node:stream/consumers';
import OpenAI from 'openai';

const { rawPrompt } = JSON.parse(await text(process.stdin));
await new OpenAI().chat.completions.create({
  model: 'policy',
  messages: [
    { role: 'system', content: 'Sort the message: billing, shipping, returns or repairs?' },
    { role: 'user', content: rawPrompt },
  ],
});
