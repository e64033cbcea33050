/** Agents written with `@strands-agents/sdk`, which always streams. */
import { Agent, type Model, tool } from '@strands-agents/sdk';
import { AnthropicModel } from '@strands-agents/sdk/models/anthropic';
import { OpenAIModel } from '@strands-agents/sdk/models/openai';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { testClients } from '../../fixtures/gateway/client-suite.ts';
import { expectScripted, scripted, serve } from '../../fixtures/gateway/served.ts';
import { ANSWERS, type Client, type Converse, type Door, QUESTIONS, REPLIES, Shop } from '../../fixtures/gateway/shop-agent.ts';

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
    maxTokens: 1024,
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
    for (const question of questions) {
      const { lastMessage } = await assistant.invoke(question);
      answers.push(lastMessage.content.map((block) => (block.type === 'textBlock' ? block.text : '')).join(''));
    }
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
    quirks: { dropsThoughts: true },
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

describe('strands, Chat Completions', () => {
  it('loses all but the last of several calls at once: a fork that says so; what was sampled is kept', async () => {
    const engine = scripted();
    await using served = await serve(engine);
    const shop = new Shop();
    expect(await agent(served.door, shop, openAI('chat'))(QUESTIONS)).toEqual(ANSWERS);
    expect(shop.calls).toEqual(['lookup Zorvex lamp', 'calculator 3*81']);
    const turns = served.session.seal();
    expectScripted(turns, engine, REPLIES);
    expect(turns[1]).toMatchObject({ fork: { cause: 'dropped_tool_call', from: 0, message: 2 } });
    expect(turns.map(({ after, fork }) => [after, fork?.cause])).toEqual([
      [undefined, undefined],
      [undefined, 'dropped_tool_call'],
      [1, undefined],
      [2, undefined],
    ]);
  });
});
