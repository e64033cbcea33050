/** Agents written with the `openai` package alone: the loop is the user's own, or the package's `runTools`. */
import OpenAI from 'openai';
import { testClients } from '../../fixtures/gateway/client-suite.ts';
import type { Client, Converse, Door, Shop } from '../../fixtures/gateway/shop-agent.ts';

const clientFor = ({ baseURL, apiKey, fetch, headers, timeout }: Door): OpenAI =>
  new OpenAI({
    baseURL,
    apiKey,
    ...(fetch ? { fetch } : {}),
    ...(headers ? { defaultHeaders: headers } : {}),
    ...(timeout ? { timeout } : {}),
  });

function chatAgent(door: Door, shop: Shop, stream: boolean): Converse {
  const client = clientFor(door);
  const tools = shop.tools as OpenAI.ChatCompletionTool[];
  return async (questions) => {
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'system', content: shop.system }];
    const answers: string[] = [];
    for (const question of questions) {
      messages.push({ role: 'user', content: question });
      for (;;) {
        const asked = { model: door.model, messages, tools };
        const { choices } = stream
          ? await client.chat.completions.stream(asked).finalChatCompletion()
          : await client.chat.completions.create(asked);
        const { message } = choices[0]!;
        messages.push(message);
        if (!message.tool_calls?.length) {
          answers.push(message.content ?? '');
          break;
        }
        for (const call of message.tool_calls) {
          if (call.type !== 'function') continue;
          messages.push({ role: 'tool', tool_call_id: call.id, content: shop.run(call.function.name, call.function.arguments) });
        }
      }
    }
    return answers;
  };
}

/** By default each request repeats the conversation; `named` continues the previous response by its id instead. */
function responsesAgent(
  door: Door,
  shop: Shop,
  { stream, named }: { readonly stream: boolean; readonly named: boolean },
): Converse {
  const client = clientFor(door);
  const tools = shop.tools.map((tool) => ({
    type: 'function',
    strict: false,
    ...tool.function,
  })) as OpenAI.Responses.FunctionTool[];
  return async (questions) => {
    const conversation: OpenAI.Responses.ResponseInputItem[] = [];
    const answers: string[] = [];
    let previous: string | undefined;
    for (const question of questions) {
      let news: OpenAI.Responses.ResponseInputItem[] = [{ role: 'user', content: question }];
      while (news.length > 0) {
        conversation.push(...news);
        const asked = {
          model: door.model,
          instructions: shop.system,
          tools,
          input: named ? news : conversation,
          ...(named && previous ? { previous_response_id: previous } : {}),
        };
        const response = stream ? await client.responses.stream(asked).finalResponse() : await client.responses.create(asked);
        conversation.push(...(response.output as OpenAI.Responses.ResponseInputItem[]));
        previous = response.id;
        news = [];
        for (const item of response.output) {
          if (item.type !== 'function_call') continue;
          news.push({ type: 'function_call_output', call_id: item.call_id, output: shop.run(item.name, item.arguments) });
        }
        if (news.length === 0) answers.push(response.output_text);
      }
    }
    return answers;
  };
}

function runToolsAgent(door: Door, shop: Shop, stream: boolean): Converse {
  const client = clientFor(door);
  const { tools } = shop;
  const runnable = tools.map((tool) => ({
    type: 'function' as const,
    function: {
      ...tool.function,
      function: (given: string) => shop.run(tool.function.name, given),
    },
  }));
  return async (questions) => {
    let messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'system', content: shop.system }];
    const answers: string[] = [];
    for (const question of questions) {
      const asked = { model: door.model, messages: [...messages, { role: 'user' as const, content: question }], tools: runnable };
      const runner = stream
        ? client.chat.completions.runTools({ ...asked, stream: true } as never)
        : client.chat.completions.runTools(asked as never);
      answers.push((await runner.finalContent()) ?? '');
      messages = [...runner.messages];
    }
    return answers;
  };
}

const overflow = { status: 400, code: 'context_length_exceeded' };

const clients: Client[] = [false, true].flatMap((stream) => [
  {
    name: `openai, Chat Completions${stream ? ', streamed' : ''}`,
    dialect: 'chat',
    stream,
    overflow,
    agent: (door, shop) => chatAgent(door, shop, stream),
  },
  {
    name: `openai, runTools${stream ? ', streamed' : ''}`,
    dialect: 'chat',
    stream,
    overflow,
    agent: (door, shop) => runToolsAgent(door, shop, stream),
    quirks: { dropsThoughts: true },
  },
  {
    name: `openai, Responses${stream ? ', streamed' : ''}`,
    dialect: 'responses',
    stream,
    overflow,
    agent: (door, shop) => responsesAgent(door, shop, { stream, named: false }),
  },
  {
    name: `openai, Responses by previous_response_id${stream ? ', streamed' : ''}`,
    dialect: 'responses',
    stream,
    overflow,
    agent: (door, shop) => responsesAgent(door, shop, { stream, named: true }),
  },
]);

testClients(clients);
