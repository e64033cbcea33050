import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { areUsual, chat } from './chat.ts';

const call = { id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } };

/** What the dialect makes of the messages, or which field it complains about. */
function read(messages: unknown): unknown {
  try {
    return chat.read({ messages }, {}).request.messages;
  } catch (thrown) {
    return { param: (thrown as { param?: string }).param };
  }
}

/** The same messages with one that only the schema reads before them. */
const bySchema = (messages: readonly unknown[]): unknown => {
  const all = read([{ role: 'user', content: [{ type: 'text', text: 'x' }] }, ...messages]);
  return Array.isArray(all) ? all.slice(1) : all;
};

describe('usual messages', () => {
  it.each([
    [{ role: 'user', content: 'hi' }, true],
    [{ role: 'developer', content: 'hi', name: 'a' }, true],
    [{ role: 'assistant', content: null, tool_calls: [call], refusal: null, annotations: [] }, true],
    [{ role: 'tool', content: '1', tool_call_id: 'a' }, true],
    [{ role: 'user', content: [{ type: 'text', text: 'hi' }] }, false],
    [{ role: 'critic', content: 'hi' }, false],
    [{ role: 'user', content: 1 }, false],
    [{ role: 'user', content: 'hi', name: 1 }, false],
    [{ role: 'tool', content: 'hi', tool_call_id: 1 }, false],
    [{ role: 'assistant', content: 'hi', reasoning: {} }, false],
    [{ role: 'assistant', content: 'hi', reasoning_content: 1 }, false],
    [{ role: 'assistant', content: 'hi', tool_calls: {} }, false],
    [{ role: 'assistant', tool_calls: [{ ...call, id: undefined }] }, false],
    [{ role: 'assistant', tool_calls: [{ ...call, type: 'custom' }] }, false],
    [{ role: 'assistant', tool_calls: [{ ...call, index: 0 }] }, false],
    [{ role: 'assistant', tool_calls: [{ ...call, function: { name: 'f', arguments: {} } }] }, false],
    [{ role: 'assistant', tool_calls: [{ ...call, function: { name: 'f', arguments: '', strict: true } }] }, false],
    [[], false],
    [null, false],
  ])('%j: %s', (message, usual) => {
    expect(areUsual([message])).toBe(usual);
  });

  it('are not an empty list, nor anything else', () => {
    for (const messages of [[], {}, null, undefined, 'user']) expect(areUsual(messages)).toBe(false);
  });

  it('are read as the schema reads them, whatever they hold', () => {
    const text = fc.constantFrom('', 'x', null, undefined, 1, ['x'], [{ type: 'text', text: 'x' }]);
    const calls = fc.constantFrom(
      undefined,
      null,
      [],
      [call],
      [call, { ...call, index: 1 }],
      [{ function: call.function }],
      [1],
      'x',
    );
    const message = fc.oneof(
      fc.record(
        {
          role: fc.constantFrom('system', 'developer', 'user', 'assistant', 'tool', 'other', 1),
          content: text,
          name: text,
          reasoning: text,
          reasoning_content: text,
          tool_calls: calls,
          tool_call_id: text,
          extra: fc.jsonValue(),
        },
        { requiredKeys: [] },
      ),
      fc.jsonValue(),
    );
    const later = (found: unknown): unknown => {
      const { param } = found as { param?: string };
      return param === undefined ? found : { param: param.replace(/^messages\.(\d+)/, (_, n) => `messages.${Number(n) - 1}`) };
    };
    fc.assert(
      fc.property(fc.array(message, { minLength: 1, maxLength: 3 }), (messages) => {
        expect(read(messages)).toEqual(later(bySchema(messages)));
      }),
      { numRuns: 2000 },
    );
  });
});
