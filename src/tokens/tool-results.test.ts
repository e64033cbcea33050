import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Message } from '../core/types.ts';
import { inCallOrder } from './tool-calls.ts';

/** `a b` calls both; `>a` is a result of a, `>` one without an id, anything else a user's message. */
function messagesOf(script: readonly string[]): Message[] {
  return script.map((text, i): Message => {
    if (text.startsWith('>')) {
      const id = text.slice(1);
      return { role: 'tool', content: `${i}`, ...(id === '' ? {} : { tool_call_id: id }) };
    }
    if (!text.startsWith('calls')) return { role: 'user', content: text };
    const ids = text.split(' ').slice(1);
    const tool_calls = ids.map((id) => ({ id, type: 'function' as const, function: { name: 'f', arguments: '{}' } }));
    return { role: 'assistant', content: null, tool_calls };
  });
}

/** Where each message of the result stood before. */
const order = (...script: string[]): number[] => {
  const given = messagesOf(script);
  return inCallOrder(given).map((message) => given.indexOf(message));
};

describe('tool results', () => {
  it.each([
    ['are put in the order of their calls', ['calls a b c', '>c', '>a', '>b'], [0, 2, 3, 1]],
    ['keep their order if it is that already', ['calls a b', '>a', '>b'], [0, 1, 2]],
    ['may be fewer than the calls', ['calls a b c', '>c', '>a'], [0, 2, 1]],
    ['without ids count as those of the calls that no other result names', ['calls a b c', '>b', '>', '>a'], [0, 3, 1, 2]],
    ['without ids stand where their calls do', ['calls a b', '>', '>a'], [0, 2, 1]],
    ['without ids keep their order', ['calls a b c', '>', '>', '>'], [0, 1, 2, 3]],
    ['of two messages’ calls, too', ['calls a', 'calls b', '>b', '>a'], [0, 1, 3, 2]],
    ['of two messages’ calls, also where one has no id', ['calls a', 'calls b', '>', '>a'], [0, 1, 3, 2]],
    ['of unknown calls stay where they are', ['calls a b', '>x', '>b', '>a'], [0, 1, 3, 2]],
    ['of one call stay together, in their order', ['calls a b', '>b', '>a', '>b'], [0, 2, 1, 3]],
    ['of calls with one id answer them in turn', ['calls a b a', '>a', '>a', '>b'], [0, 1, 3, 2]],
    ['never pass a user’s message', ['calls a b', '>b', 'wait', '>a'], [0, 1, 2, 3]],
    ['behind a user’s message are ordered, too', ['calls a b', 'wait', '>b', '>a'], [0, 1, 3, 2]],
    ['never pass an assistant’s message', ['calls a b', '>b', 'calls c d', '>d', '>c', '>a'], [0, 1, 2, 4, 3, 5]],
    ['go by the latest calls, where ids begin anew', ['calls a b', '>b', '>a', 'calls b a', '>b', '>a'], [0, 2, 1, 3, 4, 5]],
    ['before any call stay where they are', ['>b', '>a', 'calls a b'], [0, 1, 2]],
  ])('%s', (_, script, expected) => {
    expect(order(...script)).toEqual(expected);
  });

  it('come out in one order, whichever they came in; nothing else moves, and nothing is lost', () => {
    const text = fc.constantFrom('calls a b c', 'calls b a', 'calls a a', '>a', '>b', '>c', '>', 'x');
    fc.assert(
      fc.property(fc.array(text, { maxLength: 12 }), (script) => {
        const given = messagesOf(script);
        const ordered = inCallOrder(given);
        expect(inCallOrder(ordered)).toEqual(ordered);
        expect(new Set(ordered)).toEqual(new Set(given));
        for (const [i, message] of given.entries()) if (message.role !== 'tool') expect(ordered[i]).toBe(message);
      }),
      { numRuns: 2000 },
    );
  });
});
