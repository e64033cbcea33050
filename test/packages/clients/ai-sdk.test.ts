/** Agents written with the AI SDK (`ai`), through each of its providers. */
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, type LanguageModel, type ModelMessage, stepCountIs, streamText, tool } from 'ai';
import { expect, it } from 'vitest';
import { z } from 'zod';
import { testClients } from '../../fixtures/gateway/client-suite.ts';
import { scripted, serve } from '../../fixtures/gateway/served.ts';
import { ANSWERS, type Client, type Converse, type Door, QUESTIONS, Shop } from '../../fixtures/gateway/shop-agent.ts';

type Connect = (door: Door) => LanguageModel;

const settings = ({ baseURL, apiKey, fetch, headers }: Door) => ({
  baseURL,
  apiKey,
  ...(fetch ? { fetch } : {}),
  ...(headers ? { headers } : {}),
});

const providers: readonly {
  readonly name: string;
  readonly dialect: Client['dialect'];
  readonly connect: Connect;
  readonly dropsThoughts?: true;
}[] = [
  { name: 'openai()', dialect: 'responses', connect: (door) => createOpenAI(settings(door))(door.model) },
  { name: 'anthropic()', dialect: 'messages', connect: (door) => createAnthropic(settings(door))(door.model) },
  {
    name: 'openai.chat()',
    dialect: 'chat',
    connect: (door) => createOpenAI(settings(door)).chat(door.model),
    dropsThoughts: true,
  },
  {
    name: 'openai-compatible',
    dialect: 'chat',
    connect: (door) => createOpenAICompatible({ name: 'policy', ...settings(door) })(door.model),
  },
];

function agent(door: Door, shop: Shop, connect: Connect, stream: boolean): Converse {
  const tools = {
    lookup: tool({
      description: shop.lookupText,
      inputSchema: z.object({ item: z.string() }),
      execute: ({ item }) => shop.lookup(item),
    }),
    calculator: tool({
      description: shop.calculatorText,
      inputSchema: z.object({ expression: z.string() }),
      execute: ({ expression }) => shop.calculator(expression),
    }),
  };
  const model = connect(door);
  return async (questions) => {
    const messages: ModelMessage[] = [];
    const answers: string[] = [];
    for (const question of questions) {
      messages.push({ role: 'user', content: question });
      const asked = { model, system: shop.system, messages, tools, maxOutputTokens: 1024, stopWhen: stepCountIs(8) };
      if (stream) {
        const result = streamText({ ...asked, onError: () => undefined });
        for await (const part of result.fullStream) if (part.type === 'error') throw part.error;
        answers.push(await result.text);
        messages.push(...(await result.responseMessages));
      } else {
        const result = await generateText(asked);
        answers.push(result.text);
        messages.push(...result.responseMessages);
      }
    }
    return answers;
  };
}

const clients: Client[] = providers.flatMap(({ name, dialect, connect, ...drops }) =>
  [false, true].map((stream) => ({
    name: `ai, ${name}${stream ? ', streamed' : ''}`,
    dialect,
    stream,
    overflow: { statusCode: 400, isRetryable: false, responseBody: expect.stringContaining('context_length_exceeded') },
    agent: (door, shop) => agent(door, shop, connect, stream),
    quirks: { noTimeout: true, unmarkedRetries: true, ...drops },
  })),
);

testClients(clients);

it('ai, openai(): refers to what it was told by its id, and is understood', async () => {
  const bodies: string[] = [];
  const listening: typeof fetch = (input, init) => {
    bodies.push(String(init?.body));
    return fetch(input, init);
  };
  await using served = await serve(scripted());
  const converse = agent(
    { ...served.door, fetch: listening },
    new Shop(),
    (door) => createOpenAI(settings(door))(door.model),
    false,
  );
  expect(await converse(QUESTIONS)).toEqual(ANSWERS);
  expect(bodies[2]).toContain('"type":"item_reference"');
  expect(bodies[2]).not.toContain(ANSWERS[0]);
  expect(served.session.seal()[2]?.request.messages[5]).toMatchObject({ role: 'assistant', content: ANSWERS[0] });
});
