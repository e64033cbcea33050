/** Agents written with `@strands-agents/sdk`, which always streams. */
import { Agent, type Model, tool } from '@strands-agents/sdk';
import { AnthropicModel } from '@strands-agents/sdk/models/anthropic';
import { OpenAIModel } from '@strands-agents/sdk/models/openai';
import { z } from 'zod';
import { testClients } from '../../fixtures/gateway/client-suite.ts';
import type { Client, Converse, Door, Shop } from '../../fixtures/gateway/shop-agent.ts';

type Connect = (door: Door) => Model;

const configOf = ({ fetch, headers, timeout }: Door) => ({
  ...(fetch ? { fetch } : {}),
  ...(headers ? { defaultHeaders: headers } : {}),
  ...(timeout ? { timeout } : {}),
});

const openAI =
  (api: 'chat' | 'responses', params: object = {}): Connect =>
  (door) =>
    new OpenAIModel({
      api,
      modelId: door.model,
      apiKey: door.apiKey,
      clientConfig: { baseURL: door.baseURL, ...configOf(door) },
      params,
    } as never);

const anthropic: Connect = (door) =>
  new AnthropicModel({
    modelId: door.model,
    apiKey: door.apiKey,
    clientConfig: { baseURL: door.baseURL, ...configOf(door) },
  });

function agent(door: Door, shop: Shop, connect: Connect): Converse {
  const tools = [
    tool({
      name: 'lookup',
      description: shop.lookupText,
      inputSchema: z.object({ item: z.string() }),
      callback: ({ item }) => shop.lookup(item),
    }),
    tool({
      name: 'calculator',
      description: shop.calculatorText,
      inputSchema: z.object({ expression: z.string() }),
      callback: ({ expression }) => shop.calculator(expression),
    }),
  ];
  const model = connect(door);
  return async (questions) => {
    const assistant = new Agent({ model, tools, systemPrompt: shop.system, printer: false });
    const answers: string[] = [];
    for (const question of questions) answers.push((await assistant.invoke(question)).toString());
    return answers;
  };
}

const overflow = { name: 'ContextWindowOverflowError' };
const clients: Client[] = [
  {
    name: 'strands, Responses',
    dialect: 'responses',
    stream: true,
    overflow,
    agent: (door, shop) => agent(door, shop, openAI('responses')),
  },
  {
    name: 'strands, Anthropic',
    dialect: 'messages',
    stream: true,
    overflow,
    agent: (door, shop) => agent(door, shop, anthropic),
  },
  {
    name: 'strands, Chat Completions',
    dialect: 'chat',
    stream: true,
    overflow,
    agent: (door, shop) => agent(door, shop, openAI('chat')),
    quirks: { forks: true },
  },
];

testClients(clients);
