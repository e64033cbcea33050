/**
 * The baseline, a process of its own: the least that a gateway for training has to do. It parses the request, tokenises what is new in
 * it, asks the upstream with all ids, parses its JSON, keeps ids and log-probabilities as typed arrays, decodes them, and answers in Chat's
 * words. Node's HTTP server and undici's pool, nothing else: no sessions, no limits, no retries, no checks.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Message } from '../../src/core/types.ts';
import { loadMaterial, TOOLS } from './conversation.ts';
import { createPool } from './packages.ts';
import { generate } from './upstream-engine.ts';

/** As many results as a gateway would hold for its open rollouts. */
const KEPT = 4096;

const { tokenizer, renderer } = await loadMaterial();
const pool = createPool(`http://127.0.0.1:${process.argv[2]}`, 64);
const kept: object[] = [];
let asked = 0;

const known: Int32Array[] = [];

/** Ids of what was said before, which someone else remembers for it: by how many messages there are, since all conversations are the same. */
function soFar(messages: readonly Message[], fresh: number): Int32Array {
  const count = messages.length - fresh;
  known[count] ??= renderer.open(messages.slice(0, count), TOOLS);
  return known[count];
}

async function answer(text: string): Promise<string> {
  const body = JSON.parse(text) as { readonly model: string; readonly messages: readonly Message[] };
  const fresh = body.messages.slice(body.messages.findLastIndex(({ role }) => role === 'assistant') + 1);
  const written = fresh.map(({ role, content }) => `\n<|im_start|>${role}\n${content}<|im_end|>`).join('');
  const tail = tokenizer.encodeRendered(`${written}\n<|im_start|>assistant\n`);
  const before = soFar(body.messages, fresh.length);
  const promptIds = new Int32Array(before.length + tail.length);
  promptIds.set(before);
  promptIds.set(tail, before.length);
  const result = await generate(pool, `{"prompt":[${promptIds.join()}],"max_tokens":256,"temperature":1,"seed":1}`);
  kept[asked++ % KEPT] = { promptIds, ...result };
  const content = tokenizer.decode(result.ids.subarray(0, -1));
  const { length } = result.ids;
  return JSON.stringify({
    id: `chatcmpl-${asked}`,
    object: 'chat.completion',
    created: Math.floor(Date.now() / 1000),
    model: body.model,
    choices: [{ index: 0, message: { role: 'assistant', content, refusal: null }, logprobs: null, finish_reason: 'stop' }],
    usage: { prompt_tokens: promptIds.length, completion_tokens: length, total_tokens: promptIds.length + length },
  });
}

const server = createServer((incoming, outgoing) => {
  const chunks: Buffer[] = [];
  incoming.on('data', (chunk: Buffer) => chunks.push(chunk));
  incoming.once('end', async () => {
    const text = await answer(Buffer.concat(chunks).toString());
    outgoing.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }).end(text);
  });
});
server.keepAliveTimeout = 60_000;
process.on('disconnect', () => process.exit(0));
server.listen(0, '127.0.0.1', () => process.send!((server.address() as AddressInfo).port));
