/** Agents written with LangChain's `createAgent` and with a LangGraph graph that remembers, through OpenAI's and Anthropic's models. */
import { ChatAnthropic } from '@langchain/anthropic';
import { type BaseMessage, SystemMessage } from '@langchain/core/messages';
import { MemorySaver, MessagesAnnotation, StateGraph } from '@langchain/langgraph';
import { ToolNode, toolsCondition } from '@langchain/langgraph/prebuilt';
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

const toolsOf = (shop: Shop) => [
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
];

/** The conversation is the caller's to keep. */
function agent(door: Door, shop: Shop, connect: Connect, stream: boolean): Converse {
  const assistant = createAgent({ model: connect(door), systemPrompt: shop.system, tools: toolsOf(shop) });
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

/** A graph of one's own; its checkpoints keep the conversation, by thread. */
function graph(door: Door, shop: Shop, connect: Connect, stream: boolean): Converse {
  const tools = toolsOf(shop);
  const model = connect(door).bindTools(tools);
  const assistant = new StateGraph(MessagesAnnotation)
    .addNode('assistant', async ({ messages }) => ({
      messages: [await model.invoke([new SystemMessage(shop.system), ...messages])],
    }))
    .addNode('tools', new ToolNode(tools))
    .addEdge('__start__', 'assistant')
    .addConditionalEdges('assistant', toolsCondition)
    .addEdge('tools', 'assistant')
    .compile({ checkpointer: new MemorySaver() });
  let conversations = 0;
  return async (questions) => {
    const config = { configurable: { thread_id: `${conversations++}` } };
    const answers: string[] = [];
    for (const question of questions) {
      const asked = { messages: [{ role: 'user', content: question }] } as never;
      if (stream) for await (const _ of await assistant.stream(asked, { ...config, streamMode: 'messages' }));
      else await assistant.invoke(asked, config);
      const { values } = await assistant.getState(config);
      answers.push((values as { messages: BaseMessage[] }).messages.at(-1)?.text ?? '');
    }
    return answers;
  };
}

interface Way {
  readonly name: string;
  readonly dialect: Client['dialect'];
  readonly connect: Connect;
  readonly quirks?: Client['quirks'];
}

const ways: readonly Way[] = [
  { name: 'ChatOpenAI', dialect: 'chat', connect: openAI(false), quirks: { dropsThoughts: true } },
  { name: 'ChatOpenAI over Responses', dialect: 'responses', connect: openAI(true) },
  { name: 'ChatAnthropic', dialect: 'messages', connect: anthropic },
];

const clients: Client[] = ways.flatMap(({ name, dialect, connect, quirks = {} }) =>
  [false, true].flatMap((stream) =>
    Object.entries({ langchain: agent, langgraph: graph }).map(([framework, write]) => ({
      name: `${framework}, ${name}${stream ? ', streamed' : ''}`,
      dialect,
      stream,
      overflow: { name: 'ContextOverflowError' },
      agent: (door: Door, shop: Shop) => write(door, shop, connect, stream),
      quirks: { ...quirks, unmarkedRetries: true },
    })),
  ),
);

testClients(clients);
