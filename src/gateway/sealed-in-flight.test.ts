import { describe, expect, it } from 'vitest';
import { ANSWER, ask, open, say, slowly, until } from '../../test/fixtures/gateway/streams.ts';
import { listen } from './listener.ts';

describe('a call in flight when its rollout ends', () => {
  it.each([
    ['over HTTP', 1, false],
    ['over HTTP', 3, false],
    ['in process', 1, true],
    ['in process', 3, true],
  ])('hears that it has, whatever the engine says when it is cancelled (%s, n: %i)', async (_, n, inProcess) => {
    const { gateway, session, engine } = open({ reply: (_, __, signal) => slowly(say(ANSWER.repeat(30)), 20, signal) });
    await using __ = await listen(gateway);
    const model = session.model();
    const headers = { authorization: `Bearer ${model.apiKey}`, 'content-type': 'application/json' };
    const body = JSON.stringify({ messages: ask, n });
    const ownFetch = inProcess ? model.fetch : fetch;
    const reply = ownFetch(`${model.baseURL}/chat/completions`, { method: 'POST', headers, body });
    await until(() => engine.requests.length === n);
    session.seal();
    expect((await reply).status).toBe(410);
    expect(await (await reply).json()).toMatchObject({ error: { code: 'rollout_ended' } });
    expect(session.turns).toEqual([]);
  });
});
