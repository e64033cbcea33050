/** Agents written with LangChain's `createAgent`, which is a LangGraph graph, through its OpenAI and Anthropic models. */
import { ChatAnthropic } from '@langchain/anthropic';
import type { BaseMessage } from '@langchain/core/messages';
import { ChatOpenAI } from '@langchain/openai';
import { createAgent, tool } from 'langchain';
import { z } from 'zod';
import { testClients } from '../../fixtures/gateway/client-suite.ts';
import type { Client, Converse, Door, Shop } from '../../fixtures/gateway/shop-agent.ts';

type Connect = (door: Door) => ChatOpenAI | ChatAnthropic;

const openAI =
  (useResponsesApi: boolean): Connect =>
  ({ model, apiKey, baseURL, fetch, headers, timeout }) =>
    new ChatOpenAI({
      model,
      apiKey,
      useResponsesApi,
      configuration: { baseURL, ...(fetch ? { fetch } : {}), ...(headers ? { defaultHeaders: headers } : {}) },
      ...(timeout ? { timeout } : {}),
    });

const anthropic: Connect = ({ model, apiKey, baseURL, fetch, headers, timeout }) =>
  new ChatAnthropic({
    model,
    apiKey,
    anthropicApiUrl: baseURL,
    clientOptions: {
      ...(fetch ? { fetch } : {}),
      ...(headers ? { defaultHeaders: headers } : {}),
      ...(timeout ? { timeout } : {}),
    },
  });

function agent(door: Door, shop: Shop, connect: Connect, stream: boolean): Converse {
  const assistant = createAgent({
    model: connect(door),
    systemPrompt: shop.system,
    tools: [
      tool(({ item }: { item: string }) => shop.lookup(item), {
        name: 'lookup',
        description: shop.lookupText,
        schema: z.object({ item: z.string() }),
      }),
      tool(({ expression }: { expression: string }) => shop.calculator(expression), {
        name: 'calculator',
        description: shop.calculatorText,
        schema: z.object({ expression: z.string() }),
      }),
    ],
  });
  return async (questions) => {
    let messages: BaseMessage[] = [];
    const answers: string[] = [];
    for (const question of questions) {
      const asked = { messages: [...messages, { role: 'user', content: question }] };
      if (stream) {
        // In the mode `messages` each model call is streamed; the mode `values` tells the state that came of it.
        for await (const [mode, chunk] of await assistant.stream(asked as never, { streamMode: ['messages', 'values'] })) {
          if (mode === 'values') messages = (chunk as { messages: BaseMessage[] }).messages;
        }
      } else {
        messages = (await assistant.invoke(asked as never)).messages as BaseMessage[];
      }
      answers.push(messages.at(-1)?.text ?? '');
    }
    return answers;
  };
}

const ways: readonly { readonly name: string; readonly dialect: Client['dialect']; readonly connect: Connect }[] = [
  { name: 'ChatOpenAI', dialect: 'chat', connect: openAI(false) },
  { name: 'ChatOpenAI with useResponsesApi', dialect: 'responses', connect: openAI(true) },
  { name: 'ChatAnthropic', dialect: 'messages', connect: anthropic },
];

const clients: Client[] = ways.flatMap(({ name, dialect, connect }) =>
  [false, true].map((stream) => ({
    name: `langchain, ${name}${stream ? ', streamed' : ''}`,
    dialect,
    stream,
    overflow: { name: 'ContextOverflowError' },
    agent: (door, shop) => agent(door, shop, connect, stream),
  })),
);

testClients(clients);
