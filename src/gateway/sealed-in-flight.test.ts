import { describe, expect, it } from 'vitest';
import { ANSWER, ask, open, say, slowly, until } from '../../test/fixtures/gateway/streams.ts';
import { listen } from './gateway.ts';

describe('a call in flight when its rollout ends', () => {
  it.each([
    ['sealed', 'over HTTP', 1],
    ['sealed', 'over HTTP', 3],
    ['sealed', 'in process', 1],
    ['cancelled', 'over HTTP', 1],
    ['cancelled', 'in process', 3],
  ])('hears that it has, whatever the engine says then (%s, %s, n: %i)', async (how, where, n) => {
    const rollout = new AbortController();
    const reply = (_: unknown, __: unknown, signal?: AbortSignal) => slowly(say(ANSWER.repeat(30)), 20, signal);
    const { gateway, session, engine } = open({ reply, spec: { signal: rollout.signal } });
    await using _ = await listen(gateway);
    const model = session.model();
    const headers = { authorization: `Bearer ${model.apiKey}`, 'content-type': 'application/json' };
    const body = JSON.stringify({ messages: ask, n });
    const ownFetch = where === 'in process' ? model.fetch : fetch;
    const answer = ownFetch(`${model.baseURL}/chat/completions`, { method: 'POST', headers, body });
    await until(() => engine.requests.length === n);
    if (how === 'sealed') session.seal();
    else rollout.abort(new Error('too late'));
    expect((await answer).status).toBe(410);
    expect(await (await answer).json()).toMatchObject({ error: { code: 'rollout_ended' } });
    expect(session.turns).toEqual([]);
  });
});
