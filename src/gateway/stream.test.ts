import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { Script } from '../../packages/testing/src/trajectories.ts';
import {
  all,
  ask,
  type Chunk,
  clientOf,
  contentOf,
  eventsOf,
  failsAfter,
  LOOKUP,
  open,
  post,
  renderer,
  say,
  specOf,
  streaming,
  timeless,
  tools,
  until,
} from '../../test/fixtures/gateway/streams.ts';
import { TrainyardError } from '../core/errors.ts';
import { Gateway, listen } from './gateway.ts';

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
    const put = calls.map((_, index) => {
      const own = parts.filter((part) => part.index === index);
      const joined = (field: 'name' | 'arguments') => own.map((part) => part.function?.[field] ?? '').join('');
      return { id: own[0]!.id, type: own[0]!.type, function: { name: joined('name'), arguments: joined('arguments') } };
    });
    expect(put).toEqual(calls);
    expect(new Set(parts.map(({ index }) => index)).size).toBe(calls.length);
    expect(JSON.stringify(chunks)).not.toContain(reply.startsWith('a ') ? '\uFFFD' : '\0');
  });

  it('is recorded as the same turn as one that is not streamed', async () => {
    const turnOf = async (stream: boolean) => {
      const { session } = open({ replies: [LOOKUP] });
      await (await post(session, JSON.stringify({ messages: ask, stream }))).text();
      return timeless(session.seal());
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

describe('a stream that fails', () => {
  it('before its first token is an ordinary error', async () => {
    const { gateway, session } = open({
      reply: () => {
        throw new TrainyardError('ENGINE_FAILED', 'the engine broke');
      },
    });
    await using _ = await listen(gateway);
    await expect(clientOf(session).chat.completions.create(streaming)).rejects.toMatchObject({
      status: 502,
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
    const { gateway, session } = open({ reply: failsAfter('It costs') });
    await using __ = await listen(gateway);
    const stream = await clientOf(session, inProcess).chat.completions.create(streaming);
    const chunks: Chunk[] = [];
    const reading = (async () => {
      for await (const chunk of stream) chunks.push(chunk);
    })();
    await expect(reading).rejects.toMatchObject({
      code: 'engine_failed',
      message: expect.stringContaining('the engine is gone'),
    });
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
    const heard: Chunk[][] = [[], []];
    const reading = heard.map(async (chunks, i) => {
      for await (const chunk of await clientOf(session, i === 0).chat.completions.create(streaming)) chunks.push(chunk);
    });
    const ended = Promise.all(reading.map((read) => expect(read).rejects.toMatchObject({ code: 'rollout_ended' })));
    await until(() => heard.every((chunks) => contentOf(chunks) === 'It costs'));
    expect(session.seal()).toEqual([]);
    await ended;
  });
});
