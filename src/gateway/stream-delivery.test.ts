import { getEventListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { Script } from '../../packages/testing/src/trajectories.ts';
import {
  ANSWER,
  all,
  arrivals,
  ask,
  body,
  type Chunk,
  clientOf,
  contentOf,
  eventsOf,
  longNamed,
  open,
  post,
  rawPost,
  say,
  slowly,
  streaming,
  textOf,
  until,
} from '../../test/fixtures/gateway/streams.ts';
import type { Session } from '../core/contracts.ts';
import { listen } from './gateway.ts';
import type { LiveSession } from './sessions.ts';

/** A stream over HTTP that is all sampled and of which nothing more is read. */
async function unreadStream() {
  const { gateway, session } = open(longNamed());
  const listener = await listen(gateway);
  const response = await rawPost(session);
  response.pause();
  await until(() => session.turns.length === 1);
  await arrivals();
  return { session, response, [Symbol.asyncDispose]: () => listener[Symbol.asyncDispose]() };
}

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

  const streamOf = (session: Session) => clientOf(session, true).chat.completions.create(streaming);
  const ways: Readonly<Record<string, (session: Session) => Promise<void>>> = {
    'breaks out of its loop': async (session) => {
      for await (const chunk of await streamOf(session)) if (chunk.choices[0]?.delta.content) break;
    },
    aborts: async (session) => {
      const stream = await streamOf(session);
      for await (const _ of stream) stream.controller.abort();
    },
    'cancels the body': async (session) => await (await post(session)).body!.cancel(),
  };
  it.each(Object.entries(ways))('in process, when it %s, does the same', async (_, leave) => {
    const seen = { aborted: 0 };
    const { session } = open({ reply: endless(seen) });
    await leave(session);
    await until(() => seen.aborted === 1);
    expect(session.seal()).toEqual([]);
  });

  it('reads no further in process, as over HTTP: the reason is thrown', async () => {
    const { session } = open({ reply: endless({ aborted: 0 }) });
    const hangUp = new AbortController();
    const reader = (await post(session, body, { signal: hangUp.signal })).body!.getReader();
    await reader.read();
    hangUp.abort(new Error('left'));
    await expect(reader.read()).rejects.toThrow('left');
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
    await using unread = await unreadStream();
    const { session, response } = unread;
    response.destroy();
    await arrivals();
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
    await using unread = await unreadStream();
    const { session, response } = unread;
    session.seal();
    const text = await textOf(response);
    expect(text.length).toBeGreaterThan(0);
    expect(text.includes('[DONE]')).toBe(false);
  });

  it('those that are over, read or given up, leave nothing on the signal of their rollout', async () => {
    const { gateway, session } = open({ replies: [ANSWER, ANSWER, 'word '.repeat(100)] });
    await using _ = await listen(gateway);
    const { signal } = session as LiveSession;
    const before = getEventListeners(signal, 'abort').length;
    await (await post(session)).text();
    expect(await textOf(await rawPost(session))).toContain('[DONE]');
    const reader = (await post(session)).body!.getReader();
    await reader.read();
    await reader.cancel();
    await until(() => getEventListeners(signal, 'abort').length === before);
  });
});
