/** Agents written with Mastra, whose model is named by a URL. */
import { Agent } from '@mastra/core/agent';
import { RequestContext } from '@mastra/core/request-context';
import { createTool } from '@mastra/core/tools';
import { expect, it } from 'vitest';
import { z } from 'zod';
import type { ModelHandle } from '../../../src/core/contracts.ts';
import { testClients } from '../../fixtures/gateway/client-suite.ts';
import { answering, expectScripted, scripted, serve, specFor } from '../../fixtures/gateway/served.ts';
import { ANSWERS, type Client, type Converse, type Door, QUESTIONS, REPLIES, Shop } from '../../fixtures/gateway/shop-agent.ts';
import { say } from '../../fixtures/gateway/streams.ts';

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
    quirks: { noTimeout: true, noFetch: true, mergesCalls: true, unmarkedRetries: true },
  })),
);

testClients(clients);

it('@mastra/core: calls made one after the other are sent as if made at once when the conversation goes on: a fork that says so', async () => {
  const call = (sum: string): string => REPLIES[2]!.replace('3*81', sum);
  const replies = [call('3*81'), call('3*27'), REPLIES[1]!, REPLIES[3]!];
  const engine = scripted((_, place) => say(replies[place]!));
  await using served = await serve(engine);
  expect(await agent(served.door, new Shop(), { api: 'chat', stream: false })(QUESTIONS)).toEqual(ANSWERS);
  const turns = served.session.seal();
  expectScripted(turns, engine, replies);
  expect(turns.map(({ fork }) => fork)).toEqual([
    undefined,
    undefined,
    undefined,
    { cause: 'edited_message', also: ['dropped_tool_call'], from: 2, message: 2 },
  ]);
});

it('@mastra/core: a model resolved for each request serves many rollouts with one agent', async () => {
  await using served = await serve(scripted(answering()));
  const { gateway } = served;
  const sessions = ['a', 'b', 'c'].map((id) => gateway.open(specFor(id)));
  const assistant = new Agent({
    id: 'assistant',
    name: 'assistant',
    instructions: 'Answer.',
    model: ({ requestContext }) => {
      const { baseURL, apiKey, name } = requestContext.get('door') as ModelHandle;
      return { id: `ours/${name}` as const, url: baseURL, apiKey };
    },
  });
  await Promise.all(
    sessions.map((session, i) => {
      const requestContext = new RequestContext([['door', session.model()]]);
      return assistant.generate(`question ${i}`, { requestContext });
    }),
  );
  for (const [i, session] of sessions.entries()) {
    const [turn, ...others] = session.seal();
    expect(others).toEqual([]);
    expect(turn?.request.messages.at(-1)).toEqual({ role: 'user', content: `question ${i}` });
  }
});
