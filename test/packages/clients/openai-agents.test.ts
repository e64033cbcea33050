/** Agents written with `@openai/agents`, over both of its wire formats. */
import { Agent, MemorySession, OpenAIProvider, Runner, tool } from '@openai/agents';
import OpenAI from 'openai';
import { z } from 'zod';
import { testClients } from '../../fixtures/gateway/client-suite.ts';
import type { Client, Converse, Door, Shop } from '../../fixtures/gateway/shop-agent.ts';

interface Way {
  readonly useResponses: boolean;
  readonly stream: boolean;
}

function agent(door: Door, shop: Shop, { useResponses, stream }: Way): Converse {
  const { baseURL, apiKey, fetch, headers, timeout } = door;
  const openAIClient = new OpenAI({
    baseURL,
    apiKey,
    ...(fetch ? { fetch } : {}),
    ...(headers ? { defaultHeaders: headers } : {}),
    ...(timeout ? { timeout } : {}),
  });
  const runner = new Runner({ modelProvider: new OpenAIProvider({ openAIClient, useResponses }), tracingDisabled: true });
  const assistant = new Agent({
    name: 'assistant',
    model: door.model,
    instructions: shop.system,
    tools: [
      tool({
        name: 'lookup',
        description: shop.lookupText,
        parameters: z.object({ item: z.string() }),
        execute: ({ item }) => shop.lookup(item),
      }),
      tool({
        name: 'calculator',
        description: shop.calculatorText,
        parameters: z.object({ expression: z.string() }),
        execute: ({ expression }) => shop.calculator(expression),
      }),
    ],
  });
  return async (questions) => {
    const session = new MemorySession();
    const answers: string[] = [];
    for (const question of questions) {
      if (stream) {
        const result = await runner.run(assistant, question, { session, stream: true });
        await result.completed;
        answers.push(result.finalOutput ?? '');
      } else {
        answers.push((await runner.run(assistant, question, { session })).finalOutput ?? '');
      }
    }
    return answers;
  };
}

const clients: Client[] = [true, false].flatMap((useResponses) =>
  [false, true].map((stream) => ({
    name: `@openai/agents, ${useResponses ? 'Responses' : 'Chat Completions'}${stream ? ', streamed' : ''}`,
    dialect: useResponses ? 'responses' : 'chat',
    stream,
    overflow: { status: 400, code: 'context_length_exceeded' },
    agent: (door, shop) => agent(door, shop, { useResponses, stream }),
  })),
);

testClients(clients);
