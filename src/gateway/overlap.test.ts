import { describe, expect, it } from 'vitest';
import { ask, open, post, say } from '../../test/fixtures/gateway/streams.ts';

const question = JSON.stringify({ messages: ask });
const codeOf = async (reply: Response) => ((await reply.json()) as { error?: { code: string } }).error?.code;

describe.each([
  ['turns', { turns: 1, tokens: 1000, deadlineMs: 1000 }],
  ['tokens', { turns: 9, tokens: 200, deadlineMs: 1000 }],
])('a call for which the %s may not last, because of one under way', (_, limits) => {
  const start = () => {
    const gate = Promise.withResolvers<void>();
    const opened = open({
      spec: { limits, sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 200 } },
      reply: async (_request, call, signal) => {
        const gone = new Promise((_resolve, reject) => signal?.addEventListener('abort', () => reject(signal.reason)));
        if (call === 0) await Promise.race([gate.promise, gone]);
        return say('word '.repeat(5));
      },
    });
    return { ...opened, gate };
  };

  it('is told to come back, and ends nothing', async () => {
    const { session, gate } = start();
    const first = post(session, question);
    const second = await post(session, question);
    expect([second.status, await codeOf(second), second.headers.get('retry-after')]).toEqual([429, 'too_many_calls', '1']);
    expect(session.limitHit).toBeUndefined();
    gate.resolve();
    expect((await first).status).toBe(200);
  });

  it('is answered if that one comes to nothing', async () => {
    const { session } = start();
    const left = new AbortController();
    const first = post(session, question, { signal: left.signal });
    await post(session, question);
    left.abort();
    await expect(first).rejects.toThrow();
    expect((await post(session, question)).status).toBe(200);
    expect(session.seal().length).toBe(1);
    expect(session.limitHit).toBeUndefined();
  });
});
