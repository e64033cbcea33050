import { request as httpRequest, type IncomingMessage } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import OpenAI from 'openai';
import { beforeAll, describe, expect, it } from 'vitest';
import type { Session, SessionSpec } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { type Script, type ScriptedEngine, scriptedEngine } from '../testing/scripted-engine.ts';
import { createRenderer, type Renderer } from '../tokens/renderer.ts';
import { loadTokenizer, type Tokenizer } from '../tokens/tokenizer.ts';
import { Gateway } from './gateway.ts';
import { listen } from './listener.ts';

type Chunk = OpenAI.ChatCompletionChunk;

const model = new URL('../../models/base', import.meta.url).pathname;
let tokenizer: Tokenizer;
let renderer: Renderer;
beforeAll(async () => {
  tokenizer = await loadTokenizer(model);
  renderer = createRenderer(tokenizer);
});

const LOOKUP = '<tool_call>{"name":"lookup","arguments":{"item": "Binklex glove"}}</tool_call><|im_end|>';
const ANSWER = 'It costs $81. 🙂<|im_end|>';
const say = (text: string): number[] => [...tokenizer.encodeRendered(text)];
const ask = [{ role: 'user' as const, content: 'How much is the "Binklex glove"?' }];
const tools = [{ type: 'function' as const, function: { name: 'lookup', description: 'price', parameters: { type: 'object' } } }];

/** Ids one by one, after a pause each. */
async function* slowly(ids: readonly number[], ms: number, signal?: AbortSignal): AsyncGenerator<readonly number[]> {
  for (const id of ids) {
    await sleep(ms, undefined, signal ? { signal } : {});
    yield [id];
  }
}

/**
 * More than the kernel takes off our hands, so that a client that does not read leaves the end of it with us: every chunk carries the
 * rollout's name, and here it is a long one.
 */
const longNamed = (): Options => ({
  reply: async () => [...Array(1500).fill(say('<tool_call>{"name":"f","arguments":0}</tool_call>')).flat(), ...say('<|im_end|>')],
  spec: { identity: { rolloutId: 'r'.repeat(4000), groupId: 'g1', taskId: 't1', purpose: 'train' } },
});

interface Options {
  readonly replies?: readonly string[];
  readonly reply?: Script['reply'];
  readonly spec?: Partial<SessionSpec>;
}

function open(options: Options = {}): { gateway: Gateway; session: Session; engine: ScriptedEngine } {
  const engine = scriptedEngine({
    vocabSize: 512,
    contextLength: 2_000_000,
    reply: options.reply ?? ((_, call, signal) => slowly(say(options.replies?.[call] ?? ANSWER), 0, signal)),
  });
  const gateway = new Gateway({ engine, renderer, modelName: 'policy' });
  return { gateway, engine, session: gateway.open(specOf('r1', options.spec)) };
}

function specOf(rolloutId: string, spec: Partial<SessionSpec> = {}): SessionSpec {
  return {
    identity: { rolloutId, groupId: 'g1', taskId: 't1', purpose: 'train' },
    roles: {},
    sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 1_000_000 },
    limits: { turns: 9, tokens: 1e9, deadlineMs: 1000 },
    seed: 1,
    signal: new AbortController().signal,
    ...spec,
  };
}

/** The stock client, over HTTP or in process. */
function clientOf(session: Session, inProcess = false): OpenAI {
  const { baseURL, apiKey, fetch } = session.model();
  return new OpenAI({ baseURL, apiKey, maxRetries: 0, ...(inProcess ? { fetch } : {}) });
}

const streaming = { model: 'policy', messages: ask, stream: true as const };
const body = JSON.stringify({ messages: ask, stream: true });

function post(session: Session, text: string = body, init: RequestInit = {}): Promise<Response> {
  const { baseURL, apiKey, fetch } = session.model();
  const headers = { authorization: `Bearer ${apiKey}`, ...(init.headers as Record<string, string>) };
  return fetch(`${baseURL}/chat/completions`, { method: 'POST', body: text, ...init, headers });
}

/** Sends the body over a socket of its own, which the test may stop reading or destroy. */
async function rawPost(session: Session, text: string = body): Promise<IncomingMessage> {
  const { baseURL, apiKey } = session.model();
  const request = httpRequest(`${baseURL}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${apiKey}` },
    agent: false,
  });
  request.on('error', () => undefined).end(text);
  return await new Promise((resolve) => request.once('response', (response) => resolve(response.on('error', () => undefined))));
}

async function all(chunks: AsyncIterable<Chunk>): Promise<Chunk[]> {
  const collected: Chunk[] = [];
  for await (const chunk of chunks) collected.push(chunk);
  return collected;
}

/** Data of the events in a raw body. */
const eventsOf = (text: string): string[] =>
  text
    .split('\n\n')
    .slice(0, -1)
    .map((event) => event.replace(/^data: /, ''));
const contentOf = (chunks: readonly Chunk[]) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('');
const until = async (condition: () => boolean): Promise<void> => {
  for (let i = 0; i < 400 && !condition(); i++) await sleep(5);
  expect(condition()).toBe(true);
};

describe('a streamed answer', () => {
  it('is written in the chunks that OpenAI sends', async () => {
    const { session } = open({ replies: ['Hm.<|im_end|>'] });
    const response = await post(
      session,
      JSON.stringify({ messages: ask, stream: true, stream_options: { include_usage: true } }),
    );
    expect(response.status).toBe(200);
    expect(response.headers.get('content-type')).toMatch(/^text\/event-stream/);
    const events = eventsOf(await response.text());
    expect(events.at(-1)).toBe('[DONE]');
    const [turn] = session.seal();
    const head = {
      id: expect.stringMatching(/^chatcmpl-r1-/),
      object: 'chat.completion.chunk',
      created: Math.floor(turn!.startedAt / 1000),
      model: 'policy',
    };
    const chunk = (delta: object, finish_reason: string | null = null) => ({
      ...head,
      choices: [{ index: 0, delta, logprobs: null, finish_reason }],
      usage: null,
    });
    const chunks = events.slice(0, -1).map((event) => JSON.parse(event) as Chunk);
    const [role, ...rest] = chunks;
    const [total, finish, ...text] = rest.toReversed();
    expect(role).toEqual(chunk({ role: 'assistant', content: null, refusal: null }));
    expect(text.toReversed()).toEqual(contentDeltas(text).map((content) => chunk({ content })));
    expect(contentDeltas(text).join('')).toBe('Hm.');
    expect(finish).toEqual(chunk({}, 'stop'));
    const completion_tokens = turn!.sampledIds.length;
    const prompt_tokens = turn!.promptIds.length;
    const usage = { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens };
    expect(total).toEqual({ ...head, choices: [], usage });
    expect(new Set(chunks.map(({ id }) => id)).size).toBe(1);
  });

  const contentDeltas = (reversed: readonly Chunk[]) => reversed.toReversed().map((chunk) => chunk.choices[0]?.delta.content);

  it('says nothing of usage where it was not asked for', async () => {
    const { session } = open();
    expect(await (await post(session)).text()).not.toContain('usage');
  });

  it.each([
    ['over HTTP', false],
    ['in process', true],
  ])('comes while it is sampled, %s', async (_, inProcess) => {
    const gate = Promise.withResolvers<void>();
    const { gateway, session } = open({
      reply: async function* () {
        yield say('One ');
        await gate.promise;
        yield say('two<|im_end|>');
      } as Script['reply'],
    });
    await using __ = await listen(gateway);
    const stream = await clientOf(session, inProcess).chat.completions.create(streaming);
    let text = '';
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? '';
      if (text === 'One ') {
        expect(session.turns).toEqual([]);
        gate.resolve();
      }
    }
    expect(text).toBe('One two');
    expect(session.seal().map(({ response }) => response.content)).toEqual(['One two']);
  });

  it.each([
    ['characters of several tokens', 'a 🙂 漢字 é<|im_end|>', 'stop'],
    ['a call', LOOKUP, 'tool_calls'],
    ['text and two calls', `  Let me see.${LOOKUP.replace('<|im_end|>', '')}\n${LOOKUP}`, 'tool_calls'],
    ['white space around a call', `\n ${LOOKUP.replace('<|im_end|>', ' <|im_end|>')}`, 'tool_calls'],
    ['a call that is none', '<tool_call>{"name":"lookup"}</tool_call> oh<|im_end|>', 'stop'],
    ['a call that is cut off', LOOKUP.slice(0, 40), 'length'],
    ['nothing', '<|im_end|>', 'stop'],
  ])('with %s is what the turn says', async (_, reply, finish) => {
    const { session } = open({ replies: [reply] });
    const chunks = await all(await clientOf(session, true).chat.completions.create({ ...streaming, tools }));
    const [turn] = session.seal();
    const { content, tool_calls: calls = [] } = turn!.response;
    const deltas = chunks.map(({ choices }) => choices[0]!.delta);
    expect([...turn!.sampledIds]).toEqual(say(reply));
    const texts = deltas.map((delta) => delta.content).filter((text) => text != null);
    expect(texts.length > 0 ? texts.join('') : null).toBe(content);
    expect(chunks.at(-1)!.choices[0]!.finish_reason).toBe(finish);
    const parts = deltas.flatMap(({ tool_calls }) => tool_calls ?? []);
    const put = calls.map((_call, index) => ({
      id: parts.find((part) => part.index === index)!.id,
      type: parts.find((part) => part.index === index)!.type,
      function: {
        name: parts
          .filter((part) => part.index === index)
          .map((part) => part.function?.name ?? '')
          .join(''),
        arguments: parts
          .filter((part) => part.index === index)
          .map((part) => part.function?.arguments ?? '')
          .join(''),
      },
    }));
    expect(put).toEqual(calls);
    expect(new Set(parts.map(({ index }) => index)).size).toBe(calls.length);
    expect(JSON.stringify(chunks)).not.toContain(reply.startsWith('a ') ? '\uFFFD' : '\0');
  });

  it('cut by length ends with that reason', async () => {
    const { session } = open();
    const chunks = await all(await clientOf(session, true).chat.completions.create({ ...streaming, max_tokens: 3 }));
    expect(chunks.at(-1)!.choices[0]!.finish_reason).toBe('length');
    expect(contentOf(chunks)).toBe(tokenizer.decode(say(ANSWER).slice(0, 3)));
  });

  it('is recorded as the same turn as one that is not streamed', async () => {
    const turnOf = async (stream: boolean) => {
      const { session } = open({ replies: [LOOKUP] });
      await (await post(session, JSON.stringify({ messages: ask, stream }))).text();
      const [{ startedAt, endedAt, ...turn }] = session.seal() as never as [{ startedAt: number; endedAt: number }];
      return turn;
    };
    expect(await turnOf(true)).toEqual(await turnOf(false));
  });

  it('works with an engine that tells its tokens only at the end', async () => {
    const { gateway, engine } = open();
    const silent = {
      ...engine,
      sample: (...[request, signal]: Parameters<typeof engine.sample>) => engine.sample(request, signal),
    };
    const session = new Gateway({ engine: silent, renderer, modelName: 'policy' }).open(specOf('r2'));
    expect(contentOf(await all(await clientOf(session, true).chat.completions.create(streaming)))).toBe('It costs $81. 🙂');
    expect(gateway.openSessions).toBe(1);
  });
});

describe('the stock client’s helpers', () => {
  it.each([
    ['over HTTP', false],
    ['in process', true],
  ])('put a stream together, %s', async (_, inProcess) => {
    const { gateway, session } = open({ replies: [LOOKUP] });
    await using __ = await listen(gateway);
    const stream = clientOf(session, inProcess).chat.completions.stream({ model: 'policy', messages: ask, tools });
    const message = await stream.finalMessage();
    const [turn] = session.seal();
    expect(message.tool_calls).toMatchObject(turn!.response.tool_calls as object);
    expect(message.content).toBe(null);
    expect((await stream.totalUsage()).completion_tokens).toBeTypeOf('number');
  });

  it('run tools over two streamed turns, the second extending the first', async () => {
    const { gateway, session } = open({ replies: [LOOKUP, ANSWER] });
    await using _ = await listen(gateway);
    const asked: unknown[] = [];
    const runner = clientOf(session).chat.completions.runTools({
      model: 'policy',
      stream: true,
      messages: ask,
      tools: [
        {
          type: 'function',
          function: {
            name: 'lookup',
            description: 'price',
            parameters: { type: 'object', properties: {} },
            parse: JSON.parse,
            function: (given: object) => {
              asked.push(given);
              return '{"price":81}';
            },
          },
        },
      ],
    });
    expect(await runner.finalContent()).toBe('It costs $81. 🙂');
    expect(asked).toEqual([{ item: 'Binklex glove' }]);
    const [first, second] = session.seal();
    const soFar = [...first!.promptIds, ...first!.sampledIds];
    expect([...second!.promptIds.subarray(0, soFar.length)]).toEqual(soFar);
  });
});

describe('a stream that fails', () => {
  const engineFailure = () => new TrainyardError('ENGINE_FAILED', 'the engine broke');

  it('before its first token is an ordinary error', async () => {
    const { gateway, session } = open({
      reply: () => {
        throw engineFailure();
      },
    });
    await using _ = await listen(gateway);
    await expect(clientOf(session).chat.completions.create(streaming)).rejects.toMatchObject({
      status: 503,
      code: 'engine_failed',
    });
    const response = await post(session, JSON.stringify({ messages: [], stream: true }));
    expect({ status: response.status, type: response.headers.get('content-type') }).toEqual({
      status: 400,
      type: 'application/json',
    });
  });

  it.each([
    ['over HTTP', false],
    ['in process', true],
  ])('after it raises in the stock client, after all that was said, and is not recorded, %s', async (_, inProcess) => {
    const { gateway, session } = open({
      reply: async function* () {
        yield say('It costs');
        throw engineFailure();
      } as Script['reply'],
    });
    await using __ = await listen(gateway);
    const stream = await clientOf(session, inProcess).chat.completions.create(streaming);
    const chunks: Chunk[] = [];
    const reading = (async () => {
      for await (const chunk of stream) chunks.push(chunk);
    })();
    await expect(reading).rejects.toMatchObject({ code: 'engine_failed', message: expect.stringContaining('the engine broke') });
    expect(contentOf(chunks)).toBe('It costs');
    expect(session.seal()).toEqual([]);
  });

  it('because its rollout ended tells a client that waits, and records nothing', async () => {
    const { gateway, session } = open({
      reply: async function* (_, __, signal) {
        yield say('It costs');
        await sleep(10_000, undefined, signal ? { signal } : {});
      } as Script['reply'],
    });
    await using _ = await listen(gateway);
    const reading = Promise.all(
      [false, true].map(async (inProcess) => {
        const chunks: Chunk[] = [];
        const stream = await clientOf(session, inProcess).chat.completions.create(streaming);
        await expect(
          (async () => {
            for await (const chunk of stream) chunks.push(chunk);
          })(),
        ).rejects.toMatchObject({ code: 'rollout_ended' });
        return contentOf(chunks);
      }),
    );
    await sleep(60);
    expect(session.seal()).toEqual([]);
    expect(await reading).toEqual(['It costs', 'It costs']);
  });
});

describe('a client that hangs up', () => {
  const endless: (seen: { aborted: number }) => Script['reply'] = (seen) =>
    async function* (_: unknown, __: number, signal: AbortSignal | undefined) {
      try {
        for (let i = 0; i < 2000; i++) {
          await sleep(1, undefined, signal ? { signal } : {});
          yield say(`${i} `);
        }
      } finally {
        if (signal?.aborted) seen.aborted++;
      }
    } as Script['reply'];

  it('mid-stream cancels the engine’s work at once, leaves no turn and does not hurt its neighbour', async () => {
    const seen = { aborted: 0 };
    const cut = endless(seen);
    const { gateway, session } = open({
      reply: (request, call, signal) => (call === 0 ? cut(request, call, signal) : slowly(say(ANSWER), 10, signal)),
    });
    await using _ = await listen(gateway);
    const response = await rawPost(session);
    const neighbour = rawPost(session, JSON.stringify({ messages: [...ask, ...ask], stream: true })).then((r) => textOf(r));
    await new Promise((resolve) => response.once('data', resolve));
    response.destroy();
    await until(() => seen.aborted === 1);
    expect(eventsOf(await neighbour).at(-1)).toBe('[DONE]');
    expect(session.turns.map(({ response: { content } }) => content)).toEqual(['It costs $81. 🙂']);
    // The turn and tokens that were reserved for it are given back.
    await (await post(session, JSON.stringify({ messages: ask }))).text();
    expect(session.seal().length).toBe(2);
  });

  it.each([
    [
      'breaks out of its loop',
      async (stream: AsyncIterable<Chunk>) => {
        for await (const chunk of stream) if (chunk.choices[0]?.delta.content) break;
      },
    ],
    [
      'aborts',
      async (stream: AsyncIterable<Chunk> & { controller: AbortController }) => {
        for await (const _ of stream) stream.controller.abort();
      },
    ],
  ])('in process, when it %s, does the same', async (_, leave) => {
    const seen = { aborted: 0 };
    const { session } = open({ reply: endless(seen) });
    await leave(await clientOf(session, true).chat.completions.create(streaming));
    await until(() => seen.aborted === 1);
    expect(session.seal()).toEqual([]);
  });

  it('before the first token rejects in process as over HTTP', async () => {
    const { session } = open({ reply: async (_, __, signal) => sleep(10_000, [], signal ? { signal } : {}) });
    await expect(post(session, body, { signal: AbortSignal.timeout(10) })).rejects.toMatchObject({ name: 'TimeoutError' });
    expect(session.seal()).toEqual([]);
  });
});

describe('a stream that was sampled but not delivered', () => {
  it('is given again when its reader left, once, as the same turn; then the same question is a new one', async () => {
    const { session } = open();
    const left = await post(session);
    const reader = left.body!.getReader();
    await reader.read();
    await until(() => session.turns.length === 1);
    await reader.cancel();
    const again = await (await post(session)).text();
    expect(session.turns.length).toBe(1);
    const chunks = eventsOf(again)
      .slice(0, -1)
      .map((event) => JSON.parse(event) as Chunk);
    expect(contentOf(chunks)).toBe(session.turns[0]!.response.content);
    expect(chunks.at(-1)!.choices[0]!.finish_reason).toBe('stop');
    await (await post(session)).text();
    expect(session.seal().length).toBe(2);
  });

  it('over HTTP is given again after its socket was destroyed', async () => {
    const { gateway, session } = open(longNamed());
    await using _ = await listen(gateway);
    const response = await rawPost(session);
    response.pause();
    await until(() => session.turns.length === 1);
    await sleep(50);
    response.destroy();
    await sleep(50);
    const again = eventsOf(await textOf(await rawPost(session)));
    expect(session.turns.length).toBe(1);
    expect(again.at(-1)).toBe('[DONE]');
    const calls = again.slice(0, -1).flatMap((event) => (JSON.parse(event) as Chunk).choices[0]?.delta.tool_calls ?? []);
    const ids = calls.map(({ id }) => id).filter((id) => id !== undefined);
    expect(ids.join() === session.turns[0]!.response.tool_calls!.map(({ id }) => id).join()).toBe(true);
    // Now it was delivered: the same question again is a new one.
    await textOf(await rawPost(session));
    expect(session.seal().length).toBe(2);
  });

  it('is not to be confused with one that arrived: the same question ten times is ten turns', async () => {
    const { gateway, session } = open({ spec: { limits: { turns: 20, tokens: 1e9, deadlineMs: 1000 } } });
    await using _ = await listen(gateway);
    for (let i = 0; i < 10; i++) await all(await clientOf(session, i % 2 === 0).chat.completions.create(streaming));
    expect(session.seal().length).toBe(10);
  });

  it('and is asked for without `stream` is another question', async () => {
    const { session } = open();
    const reader = (await post(session)).body!.getReader();
    await reader.read();
    await until(() => session.turns.length === 1);
    await reader.cancel();
    const whole = await post(session, JSON.stringify({ messages: ask }));
    expect(await whole.json()).toMatchObject({ object: 'chat.completion' });
    expect(session.seal().length).toBe(2);
  });

  it('that its client marks as a retry is the one being sampled, or the one that was', async () => {
    const { session } = open();
    const retry = { headers: { 'x-stainless-retry-count': '1' } };
    const texts = await Promise.all([post(session), post(session, body, retry)].map(async (sent) => (await sent).text()));
    const later = await (await post(session, body, retry)).text();
    const contents = [...texts, later].map((text) =>
      contentOf(
        eventsOf(text)
          .slice(0, -1)
          .map((event) => JSON.parse(event) as Chunk),
      ),
    );
    expect(new Set(contents)).toEqual(new Set(['It costs $81. 🙂']));
    expect(session.seal().length).toBe(1);
  });
});

describe('many streams', () => {
  it('a hundred at once each get their own words', async () => {
    const { gateway, session } = open({
      spec: { limits: { turns: 100, tokens: 1e9, deadlineMs: 1000 } },
      reply: (_, call, signal) => slowly(say(`This is reply number ${call}. 🙂<|im_end|>`), 1, signal),
    });
    await using _ = await listen(gateway);
    const asked = Array.from({ length: 100 }, async (__, i) => {
      const messages = [{ role: 'user' as const, content: `question ${i}` }];
      const content = contentOf(
        await all(await clientOf(session, i % 2 === 0).chat.completions.create({ ...streaming, messages })),
      );
      return [messages[0]!.content, content];
    });
    const heard = new Map((await Promise.all(asked)) as [string, string][]);
    const turns = session.seal();
    expect(turns.length).toBe(100);
    for (const { request, response } of turns) expect(heard.get(request.messages[0]!.content!)).toBe(response.content);
  });

  it('one that is not read neither grows with every token nor holds up its neighbours', async () => {
    const { session } = open({
      reply: (_, call, signal) => slowly(say(call === 0 ? 'word '.repeat(100) : ANSWER), 0, signal),
    });
    const reader = (await post(session)).body!.getReader();
    await reader.read();
    expect(await (await post(session, JSON.stringify({ messages: ask }))).json()).toMatchObject({ object: 'chat.completion' });
    await until(() => session.turns.length === 2);
    const { value } = await reader.read();
    const rest = eventsOf(new TextDecoder().decode(value));
    expect(rest.length).toBeLessThan(5);
    expect(rest.at(-1)).toBe('[DONE]');
    expect(await reader.read()).toEqual({ done: true, value: undefined });
  });

  it('one over HTTP that is not read is cut when its rollout ends', async () => {
    const { gateway, session } = open(longNamed());
    await using _ = await listen(gateway);
    const response = await rawPost(session);
    response.pause();
    await until(() => session.turns.length === 1);
    await sleep(50);
    session.seal();
    const text = await textOf(response);
    expect(text.length).toBeGreaterThan(0);
    expect(text.includes('[DONE]')).toBe(false);
  });
});

async function textOf(response: IncomingMessage): Promise<string> {
  let text = '';
  response.setEncoding('utf8');
  try {
    for await (const chunk of response) text += chunk;
  } catch {
    // Cut off: what came is what there is.
  }
  return text;
}
