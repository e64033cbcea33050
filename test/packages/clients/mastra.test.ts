/** Agents written with Mastra, whose model is named by a URL. */
import { Agent } from '@mastra/core/agent';
import { createTool } from '@mastra/core/tools';
import { expect } from 'vitest';
import { z } from 'zod';
import { testClients } from '../../fixtures/gateway/client-suite.ts';
import type { Client, Converse, Door, Shop } from '../../fixtures/gateway/shop-agent.ts';

interface Way {
  readonly api: 'chat' | 'responses';
  readonly stream: boolean;
}

function agent({ baseURL, apiKey, model, headers }: Door, shop: Shop, { api, stream }: Way): Converse {
  const lookup = createTool({
    id: 'lookup',
    description: shop.lookupText,
    inputSchema: z.object({ item: z.string() }),
    execute: async ({ item }) => shop.lookup(item),
  });
  const calculator = createTool({
    id: 'calculator',
    description: shop.calculatorText,
    inputSchema: z.object({ expression: z.string() }),
    execute: async ({ expression }) => shop.calculator(expression),
  });
  const assistant = new Agent({
    id: 'assistant',
    name: 'assistant',
    instructions: shop.system,
    tools: { lookup, calculator },
    maxRetries: 2,
    model: {
      id: `ours/${model}`,
      url: baseURL,
      apiKey,
      ...(api === 'responses' ? { api } : {}),
      ...(headers ? { headers } : {}),
    },
  });
  return async (questions) => {
    const messages: unknown[] = [];
    const answers: string[] = [];
    for (const question of questions) {
      messages.push({ role: 'user', content: question });
      const result = stream ? await assistant.stream(messages as never) : await assistant.generate(messages as never);
      answers.push(await result.text);
      messages.push(...(await result.response).messages!);
    }
    return answers;
  };
}

const clients: Client[] = (['chat', 'responses'] as const).flatMap((api) =>
  [false, true].map((stream) => ({
    name: `@mastra/core, ${api}${stream ? ', streamed' : ''}`,
    dialect: api,
    stream,
    overflow: { statusCode: 400, isRetryable: false, responseBody: expect.stringContaining('context_length_exceeded') },
    agent: (door, shop) => agent(door, shop, { api, stream }),
    quirks: { noTimeout: true, noFetch: true },
  })),
);

testClients(clients);
