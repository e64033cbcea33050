/** An OpenAI-compatible server that takes LATENCY_MS for an answer, which is always the same. In a process of its own; prints its port. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

const LATENCY_MS = Number(process.env['LATENCY_MS'] ?? 200);
const ANSWER = JSON.stringify({
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1,
  model: 'slow',
  choices: [{ index: 0, message: { role: 'assistant', content: 'The total is 81.' }, finish_reason: 'stop', logprobs: null }],
  usage: { prompt_tokens: 20, completion_tokens: 6, total_tokens: 26 },
});

const server = createServer((request, response) => {
  request.resume();
  request.on('end', () => {
    setTimeout(() => response.writeHead(200, { 'content-type': 'application/json' }).end(ANSWER), LATENCY_MS);
  });
});
server.keepAliveTimeout = 60_000;
server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port));
