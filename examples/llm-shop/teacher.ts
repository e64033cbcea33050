/**
 * A teacher for the shop: a server of the Chat Completions API that solves its tasks by rules. It stands for the strong model behind an API
 * that you have; `trainyard eval --engine openai --base-url` collects its successes as it would collect those.
 */
import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { pathToFileURL } from 'node:url';

interface Asked {
  readonly messages: readonly { readonly role: string; readonly content: string | null }[];
}

/** `baseURL` is for the agent's client. */
export async function startTeacher(port = 0): Promise<AsyncDisposable & { readonly baseURL: string }> {
  const server = createServer(async (request, response) => {
    if (request.method !== 'POST')
      return void response.end(JSON.stringify({ object: 'list', data: [{ id: 'teacher', object: 'model' }] }));
    const { messages } = JSON.parse(await textOf(request)) as Asked;
    const message = { role: 'assistant', ...answerTo(messages) };
    const usage = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 };
    const choices = [{ index: 0, message, finish_reason: 'tool_calls' in message ? 'tool_calls' : 'stop' }];
    const completion = { id: 'chatcmpl-teacher', object: 'chat.completion', created: 0, model: 'teacher', choices, usage };
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(completion));
  });
  server.listen(port, '127.0.0.1');
  await once(server, 'listening');
  const stop = async (): Promise<void> => {
    server.close();
    server.closeAllConnections();
  };
  return { baseURL: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`, [Symbol.asyncDispose]: stop };
}

/** A lookup first; then the one number that was asked for, in a sentence. */
export function answerTo(messages: Asked['messages']) {
  const question = messages.findLast(({ role }) => role === 'user')?.content ?? '';
  const item =
    /the (\w+ \w+?)(?: cost| are|\?)/.exec(question.replace('the price of ', '').replace('the stock of ', ''))?.[1] ?? '';
  const last = messages.at(-1);
  if (last?.role !== 'tool') {
    const call = { name: 'lookup', arguments: JSON.stringify({ item }) };
    return { content: null, tool_calls: [{ id: `call-${item.replace(' ', '-')}`, type: 'function', function: call }] };
  }
  const { price, stock } = JSON.parse(last.content ?? '{}') as { readonly price: number; readonly stock: number };
  return { content: /cost|price|How much/.test(question) ? `The ${item} costs $${price}.` : `There are ${stock} left.` };
}

async function textOf(request: IncomingMessage): Promise<string> {
  let text = '';
  for await (const chunk of request) text += chunk;
  return text;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  console.log(`the teacher answers at ${(await startTeacher(Number(process.argv[2] ?? 0))).baseURL}`);
}
