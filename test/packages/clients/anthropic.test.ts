/** Agents written with `@anthropic-ai/sdk` alone: the loop is the user's own, or the package's tool runner. */
import Anthropic from '@anthropic-ai/sdk';
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod';
import { expect, it } from 'vitest';
import { z } from 'zod';
import { testClients } from '../../fixtures/gateway/client-suite.ts';
import { expectLinear, scripted, serve } from '../../fixtures/gateway/served.ts';
import { type Client, type Converse, type Door, QUESTIONS, Shop } from '../../fixtures/gateway/shop-agent.ts';

const clientFor = ({ baseURL, apiKey, fetch, headers, timeout }: Door): Anthropic =>
  new Anthropic({
    baseURL,
    apiKey,
    ...(fetch ? { fetch } : {}),
    ...(headers ? { defaultHeaders: headers } : {}),
    ...(timeout ? { timeout } : {}),
  });

const textOf = (content: readonly { readonly type: string; readonly text?: string }[]): string =>
  content.map((block) => (block.type === 'text' ? block.text : '')).join('');

function agent(door: Door, shop: Shop, stream: boolean): Converse {
  const client = clientFor(door);
  const tools = shop.tools.map(({ function: { name, description, parameters } }) => ({
    name,
    description,
    input_schema: parameters,
  })) as Anthropic.Tool[];
  return async (questions) => {
    const messages: Anthropic.MessageParam[] = [];
    const answers: string[] = [];
    for (const question of questions) {
      messages.push({ role: 'user', content: question });
      for (;;) {
        const asked = { model: door.model, max_tokens: 1024, system: shop.system, messages, tools };
        const { content } = stream ? await client.messages.stream(asked).finalMessage() : await client.messages.create(asked);
        messages.push({ role: 'assistant', content });
        const results = content
          .filter((block) => block.type === 'tool_use')
          .map(({ id, name, input }) => ({ type: 'tool_result' as const, tool_use_id: id, content: shop.run(name, input) }));
        if (results.length === 0) {
          answers.push(textOf(content));
          break;
        }
        messages.push({ role: 'user', content: results });
      }
    }
    return answers;
  };
}

/** The runner first tries to keep the conversation at the server; told that it cannot, it sends the whole of it. */
function runnerAgent(door: Door, shop: Shop, stream: boolean): Converse {
  const client = clientFor(door);
  const tools = [
    betaZodTool({
      name: 'lookup',
      description: shop.lookupText,
      inputSchema: z.object({ item: z.string() }),
      run: ({ item }) => shop.lookup(item),
    }),
    betaZodTool({
      name: 'calculator',
      description: shop.calculatorText,
      inputSchema: z.object({ expression: z.string() }),
      run: ({ expression }) => shop.calculator(expression),
    }),
  ];
  return async (questions) => {
    let messages: Anthropic.Beta.BetaMessageParam[] = [];
    const answers: string[] = [];
    for (const question of questions) {
      messages.push({ role: 'user', content: question });
      const asked = { model: door.model, max_tokens: 1024, system: shop.system, messages, tools };
      if (stream) {
        const runner = client.beta.messages.toolRunner({ ...asked, stream: true });
        let last: Anthropic.Beta.BetaMessage | undefined;
        for await (const events of runner) last = await events.finalMessage();
        messages = [...runner.params.messages];
        answers.push(textOf(last?.content ?? []));
      } else {
        const runner = client.beta.messages.toolRunner(asked);
        const last = await runner;
        messages = [...runner.params.messages];
        answers.push(textOf(last.content));
      }
    }
    return answers;
  };
}

const overflow = { status: 400, type: 'invalid_request_error', message: expect.stringContaining('prompt is too long') };

const clients: Client[] = [false, true].flatMap((stream) => [
  {
    name: `@anthropic-ai/sdk, messages${stream ? ', streamed' : ''}`,
    dialect: 'messages',
    stream,
    overflow,
    agent: (door, shop) => agent(door, shop, stream),
  },
  {
    name: `@anthropic-ai/sdk, toolRunner${stream ? ', streamed' : ''}`,
    dialect: 'messages',
    stream,
    overflow,
    agent: (door, shop) => runnerAgent(door, shop, stream),
    quirks: { refusedFirst: 1 },
  },
]);

testClients(clients);

it('@anthropic-ai/sdk, toolRunner: told that the server keeps no threads, it sends the whole conversation', async () => {
  const bodies: { thread?: unknown; messages: unknown[] }[] = [];
  const listening: typeof fetch = (input, init) => {
    bodies.push(JSON.parse(String(init?.body)) as (typeof bodies)[number]);
    return fetch(input, init);
  };
  await using served = await serve(scripted());
  await runnerAgent({ ...served.door, fetch: listening }, new Shop(), false)(QUESTIONS.slice(0, 1));
  expect(bodies.map(({ thread, messages }) => [thread !== undefined, messages.length])).toEqual([
    [true, 1],
    [false, 1],
    [false, 3],
  ]);
  expectLinear(served.session.seal());
});
