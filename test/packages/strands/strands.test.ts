/** Agents written with `@strands-agents/sdk`, which always streams. */
import { Agent, type Model, tool } from '@strands-agents/sdk';
import { AnthropicModel } from '@strands-agents/sdk/models/anthropic';
import { OpenAIModel } from '@strands-agents/sdk/models/openai';
import { z } from 'zod';
import { testClients } from '../../fixtures/gateway/client-suite.ts';
import { type Client, type Converse, type Door, type Shop, withoutV1 } from '../../fixtures/gateway/shop-agent.ts';

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
    clientConfig: { baseURL: withoutV1(door.baseURL), ...configOf(door) },
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
  return async (questions) => {
    const assistant = new Agent({ model: connect(door), tools, systemPrompt: shop.system, printer: false });
    const answers: string[] = [];
    for (const question of questions) answers.push((await assistant.invoke(question)).toString());
    return answers;
  };
}

const clients: Client[] = [
  { name: 'strands, chat', dialect: 'chat', stream: true, agent: (door, shop) => agent(door, shop, openAI('chat')) },
];
void anthropic;

testClients(clients);
