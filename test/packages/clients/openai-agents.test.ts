/** Agents written with `@openai/agents`, over both of its wire formats. */
import { Agent, MemorySession, OpenAIProvider, Runner, tool } from '@openai/agents';
import OpenAI from 'openai';
import { z } from 'zod';
import { testClients } from '../../fixtures/gateway/client-suite.ts';
import type { Client, Converse, Door, Shop } from '../../fixtures/gateway/shop-agent.ts';

interface Way {
  readonly useResponses: boolean;
  /** The server keeps the conversation: each request names the response it goes on from. */
  readonly named?: boolean;
  readonly stream: boolean;
}

function agent(door: Door, shop: Shop, { useResponses, named, stream }: Way): Converse {
  const { baseURL, apiKey, fetch, headers, timeout } = door;
  const openAIClient = new OpenAI({
    baseURL,
    apiKey,
    ...(fetch ? { fetch } : {}),
    ...(headers ? { defaultHeaders: headers } : {}),
    ...(timeout ? { timeout } : {}),
  });
  // The compiler takes this folder's copy of the client for another class than the one the agents package was checked with.
  const runner = new Runner({
    modelProvider: new OpenAIProvider({ openAIClient: openAIClient as never, useResponses }),
    tracingDisabled: true,
  });
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
    let previousResponseId: string | undefined;
    for (const question of questions) {
      const memory = named ? { ...(previousResponseId ? { previousResponseId } : {}) } : { session };
      const result = stream
        ? await runner.run(assistant, question, { ...memory, stream: true })
        : await runner.run(assistant, question, memory);
      if ('completed' in result) await result.completed;
      answers.push(result.finalOutput ?? '');
      previousResponseId = result.lastResponseId;
    }
    return answers;
  };
}

const ways = [
  { name: 'Responses', useResponses: true },
  { name: 'Responses by previousResponseId', useResponses: true, named: true },
  { name: 'Chat Completions', useResponses: false, quirks: { dropsThoughts: true } },
] as const;

const clients: Client[] = ways.flatMap((way) =>
  [false, true].map((stream) => ({
    name: `@openai/agents, ${way.name}${stream ? ', streamed' : ''}`,
    dialect: way.useResponses ? 'responses' : 'chat',
    stream,
    overflow: { status: 400, code: 'context_length_exceeded' },
    agent: (door, shop) => agent(door, shop, { ...way, stream }),
    quirks: 'quirks' in way ? way.quirks : {},
  })),
);

testClients(clients);
