/**
 * What a model call costs the main thread outside the model: `npm run bench -- gateway`. A scripted engine answers at once; each session
 * is the shop agent's, two calls with a tool result between them. CPU time of the process per call, the client's share included, best
 * of several rounds that alternate between the ways of asking; ratios are to the first line.
 *
 * Ways: the plain `fetch` of the handle and of the platform, and the stock client on top of each.
 */
import OpenAI from 'openai';
import { SYSTEM_PROMPT, TOOLS } from '../models/shop-domain.ts';
import type { ModelHandle, Session } from '../src/core/contracts.ts';
import { Gateway } from '../src/gateway/gateway.ts';
import { listen } from '../src/gateway/listener.ts';
import { scriptedEngine } from '../src/testing/scripted-engine.ts';
import { createRenderer } from '../src/tokens/renderer.ts';
import { loadTokenizer } from '../src/tokens/tokenizer.ts';

const ROUNDS = 9;
const SESSIONS = 100;
const AT_ONCE = 20;

const tokenizer = await loadTokenizer(new URL('../models/base', import.meta.url).pathname);
const CALL = { name: 'lookup', arguments: '{"item": "Binklex glove"}' };
const LOOKUP = `<tool_call>{"name":"lookup","arguments":${CALL.arguments}}</tool_call><|im_end|>`;
const ANSWER = 'The Binklex glove costs $81.<|im_end|>';
const replies = [LOOKUP, ANSWER].map((text) => [...tokenizer.encodeRendered(text)]);
const engine = scriptedEngine({
  vocabSize: 512,
  contextLength: 4096,
  reply: ({ promptIds }) => replies[promptIds.includes(tokenizer.idOf('</tool_call>')!) ? 1 : 0]!,
});
const gateway = new Gateway({ engine, renderer: createRenderer(tokenizer), modelName: 'policy' });

const question = [
  { role: 'system' as const, content: SYSTEM_PROMPT },
  { role: 'user' as const, content: 'How much is the "Binklex glove"?' },
];
const conversation = (id: string) => [
  ...question,
  { role: 'assistant' as const, content: null, tool_calls: [{ id, type: 'function' as const, function: CALL }] },
  { role: 'tool' as const, tool_call_id: id, content: '{"price":81,"stock":3}' },
];
const tools = TOOLS as OpenAI.ChatCompletionTool[];

let opened = 0;
function open(): Session {
  return gateway.open({
    identity: { rolloutId: `r${opened++}`, groupId: 'g', taskId: 't', purpose: 'train' },
    roles: {},
    sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 64 },
    limits: { turns: 4, tokens: 1000, deadlineMs: 1000 },
    seed: 1,
    signal: new AbortController().signal,
  });
}

type Ask = (handle: ModelHandle, messages: OpenAI.ChatCompletionMessageParam[]) => Promise<unknown>;

function plainly(overHttp: boolean, stream: boolean): Ask {
  return async ({ baseURL, apiKey, fetch }, messages) => {
    const response = await (overHttp ? globalThis.fetch : fetch)(`${baseURL}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'policy', messages, tools, stream }),
    });
    if (!response.ok) throw new Error(await response.text());
    return stream ? await response.text() : await response.json();
  };
}

function withClient(overHttp: boolean, stream: boolean): Ask {
  return async ({ baseURL, apiKey, fetch }, messages) => {
    const client = new OpenAI({ baseURL, apiKey, ...(overHttp ? {} : { fetch }) });
    if (!stream) return await client.chat.completions.create({ model: 'policy', messages, tools });
    let chunks = 0;
    for await (const __ of await client.chat.completions.create({ model: 'policy', messages, tools, stream: true })) chunks++;
    return chunks;
  };
}

const ways: readonly (readonly [string, Ask])[] = [
  ['in process, fetch', plainly(false, false)],
  ['in process, fetch, streamed', plainly(false, true)],
  ['over HTTP, fetch', plainly(true, false)],
  ['over HTTP, fetch, streamed', plainly(true, true)],
  ['in process, client', withClient(false, false)],
  ['in process, client, streamed', withClient(false, true)],
  ['over HTTP, client', withClient(true, false)],
  ['over HTTP, client, streamed', withClient(true, true)],
];

/** Microseconds of CPU per call. */
async function measure(ask: Ask): Promise<number> {
  const before = process.cpuUsage();
  for (let done = 0; done < SESSIONS; done += AT_ONCE) {
    await Promise.all(
      Array.from({ length: AT_ONCE }, async () => {
        const session = open();
        await ask(session.model(), question);
        await ask(session.model(), conversation('call'));
        if (session.seal().length !== 2) throw new Error('a call was not recorded');
      }),
    );
  }
  const { user, system } = process.cpuUsage(before);
  return (user + system) / (2 * SESSIONS);
}

/** Microseconds of CPU per call, by way. */
export async function run(): Promise<Readonly<Record<string, unknown>>> {
  await using _ = await listen(gateway);
  const best = ways.map(() => Number.POSITIVE_INFINITY);
  for (let round = 0; round < ROUNDS; round++) {
    for (const [i, [, ask]] of ways.entries()) best[i] = Math.min(best[i]!, await measure(ask));
  }
  for (const [i, [name]] of ways.entries()) {
    console.log(`${name.padEnd(30)} ${best[i]!.toFixed(0).padStart(5)} µs  ×${(best[i]! / best[0]!).toFixed(2)}`);
  }
  return Object.fromEntries(ways.map(([name], i) => [name, best[i]]));
}
