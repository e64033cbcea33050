import { describe, expect, it } from 'vitest';
import { ask, open, post, tools } from '../../test/fixtures/gateway/streams.ts';

describe('the words of a conversation', () => {
  it('are kept once, however many turns repeat them, and as each request wrote them', async () => {
    const { session } = open({ replies: ['Hm.<|im_end|>', 'Well.<|im_end|>'] });
    const call = { id: 'c', type: 'function', function: { name: 'lookup', arguments: '{}' } };
    const called = (content: string | null) => ({ role: 'assistant', content, tool_calls: [call] });
    const result = { role: 'tool', content: '3' };
    const more = [
      { role: 'assistant', content: 'Hm.' },
      { role: 'user', content: 'And now?' },
    ];
    for (const messages of [
      [...ask, called(''), result],
      [...ask, called(null), result, ...more],
    ]) {
      await post(session, JSON.stringify({ messages, tools }));
    }
    const [first, second] = session.seal();
    expect(second!.after).toBe(0);
    expect(second!.request.messages[0]).toBe(first!.request.messages[0]);
    expect(second!.request.tools).toBe(first!.request.tools);
    expect(second!.request.messages).toEqual([...ask, called(null), result, ...more]);
  });
});
