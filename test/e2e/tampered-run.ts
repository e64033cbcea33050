/** A small run with every kind of record in it: tools, two roles, marks, failures, parts and metrics of rewards. */
import { join } from 'node:path';
import { train } from '../../src/training/train.ts';
import { scratch } from '../cli/command.ts';
import { storeWith } from './small-run.ts';

const ENTRY = `
import OpenAI from 'openai';
import { defineGrader, defineWorkflow } from 'trainyard';
const parameters = { type: 'object', properties: { item: { type: 'string', description: 'its name' } }, required: ['item'] };
const tools: any[] = [{ type: 'function', function: { name: 'lookup', description: 'price of an item', parameters } }];
export default defineWorkflow(
  async (ctx) => {
    const model = ctx.model();
    const client = new OpenAI({ baseURL: model.baseURL, apiKey: model.apiKey });
    const messages: any[] = [{ role: 'system', content: 'You are a shop assistant. Use the tools to answer.' }, ...ctx.prompt];
    await client.chat.completions.create({ model: 'nobody', messages: [] }).catch(() => {});
    for (let turn = 0; turn < 2; turn++) {
      const [choice] = (await client.chat.completions.create({ model: model.name, messages, tools, max_tokens: 40, user: 'x' })).choices;
      messages.push(choice!.message);
      for (const call of choice!.message.tool_calls ?? []) messages.push({ role: 'tool', tool_call_id: call.id, content: '{"price":3}' });
      if (!choice!.message.tool_calls) messages.push({ role: 'user', content: 'Really?' });
    }
    await ctx.model('critic').generate({ messages: [{ role: 'user', content: 'Is it good?' }], maxTokens: 6, temperature: 0.5, stop: ['e'] });
    ctx.log('asked twice');
    if (ctx.rolloutId.endsWith('-3')) throw new Error('broken on purpose');
    const output = messages.at(-1).content ?? '';
    return { output, metadata: { length: output.length }, metrics: { said: output.length } };
  },
  { roles: { default: {}, critic: {} }, trainable: ['default'] },
);
export const grader = defineGrader(({ messages }) => {
  const text = JSON.stringify(messages.map(({ content, tool_calls }) => [content, tool_calls?.map((call) => call.function)]));
  const sum = [...text].reduce((codes, letter) => codes + letter.codePointAt(0)!, 0);
  if (sum % 7 === 0) throw new Error('nothing to grade');
  const parts = { even: (sum % 2) / 2, third: (sum % 3) / 2 };
  return { value: parts.even + parts.third, success: sum % 2 === 1, parts, metrics: { letters: text.length } };
});
`;

export async function tamperedHome() {
  const home = await scratch();
  const entry = await home.write('agent.ts', ENTRY);
  const line = (i: number) => JSON.stringify({ id: `t${i}`, prompt: `How much is the "blue lamp ${i}"?`, metadata: { i } });
  const tasks = await home.write('train.jsonl', Array.from({ length: 8 }, (_, i) => line(i)).join('\n'));
  const heldOut = await home.write('held-out.jsonl', Array.from({ length: 3 }, (_, i) => line(100 + i)).join('\n'));
  const run = join(home.dir, 'whole');
  const small = { group: 4, groupsPerStep: 2, threads: 1, graderRetries: 0, maxErrorShare: 1, transcripts: 1 };
  await train({ ...small, entry, tasks, heldOut, run, steps: 2, evalEvery: 1 }, undefined, {
    through: {
      store: (own) =>
        storeWith(own, {
          append: async (trajectory) => {
            await own.append(trajectory);
            const { rolloutId } = trajectory;
            const mark = { rolloutId, excluded: true, reason: 'a tool was down', at: 1 };
            if (/^g00000[1-9]-0$/.test(rolloutId)) await own.mark([mark, { ...mark, excluded: rolloutId === 'g000001-0' }]);
          },
        }),
    },
  });
  return { ...home, run };
}
