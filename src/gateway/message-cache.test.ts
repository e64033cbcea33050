import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { GenerateRequest } from '../core/contracts.ts';
import type { Json } from '../core/types.ts';
import { isWrittenAs, readRequest } from './generate-request.ts';

const memory = {};

const call = fc.record({
  id: fc.string(),
  type: fc.constant('function'),
  function: fc.record({ name: fc.string(), arguments: fc.string() }),
});
const message = fc.oneof(
  fc.record({ role: fc.constantFrom('system', 'user', 'developer'), content: fc.string({ unit: 'grapheme' }) }),
  fc.record({ role: fc.constant('assistant'), content: fc.string() }),
  fc.record({ role: fc.constant('assistant'), content: fc.constant(null), tool_calls: fc.array(call, { minLength: 1 }) }),
  fc.record({ role: fc.constant('tool'), content: fc.string(), tool_call_id: fc.string(), name: fc.constant(undefined) }),
  fc.record({ role: fc.constant('user'), content: fc.constant([{ type: 'text', text: 'a part' }]), refusal: fc.constant(null) }),
);
const tool = fc.record({
  type: fc.constant('function'),
  function: fc.record({ name: fc.string({ minLength: 1 }), description: fc.string(), parameters: fc.jsonValue({ maxDepth: 2 }) }),
});

const requestOf = (fields: object): GenerateRequest => fields as GenerateRequest;

describe('the message cache', () => {
  it('changes nothing in what is read of a conversation that goes on', () => {
    const rounds = fc.array(fc.array(message, { minLength: 1, maxLength: 3 }), { minLength: 2, maxLength: 4 });
    const others = fc.record({ temperature: fc.constantFrom(0.5, undefined), stop: fc.constantFrom('a', undefined) });
    const tools = fc.option(fc.array(tool, { maxLength: 2 }), { nil: undefined });
    fc.assert(
      fc.property(rounds, tools, others, (said, given, rest) => {
        let cache: ReturnType<typeof readRequest>['cache'];
        const messages: unknown[] = [];
        for (const more of said) {
          messages.push(...more);
          const request = requestOf({ messages, tools: given, ...rest });
          const whole = readRequest(request, memory);
          const read = readRequest(request, memory, cache);
          expect(read.request).toEqual(whole.request);
          // Fields that nobody reads are counted when they are cached, and parts of a text as they came.
          if (!messages.some((one) => typeof (one as { content: unknown }).content === 'object'))
            expect(read.bytes).toBe(whole.bytes);
          cache = read.cache;
        }
      }),
    );
  });

  it('is kept as the same objects, which are not the caller’s', () => {
    const messages: object[] = [{ role: 'user', content: 'one' }];
    const { cache } = readRequest(requestOf({ messages }), memory);
    messages.push({ role: 'user', content: 'two' });
    const { request } = readRequest(requestOf({ messages }), memory, cache);
    expect(request.messages[0]).toBe(cache!.messages[0]);
    expect(request.messages[0]).not.toBe(messages[0]);
    const again = readRequest(requestOf({ messages: [...request.messages, { role: 'user', content: 'three' }] }), memory, cache);
    expect(again.request.messages[0]).not.toBe(request.messages[0]);
  });

  it('is read again where it was changed', () => {
    const first = { role: 'user', content: 'one' };
    const { cache } = readRequest(requestOf({ messages: [first] }), memory);
    first.content = 'other';
    const { request } = readRequest(requestOf({ messages: [first, { role: 'user', content: 'two' }] }), memory, cache);
    expect(request.messages.map(({ content }) => content)).toEqual(['other', 'two']);
  });

  it('leaves mistakes their places', () => {
    const first = { role: 'user', content: 'one' };
    const { cache } = readRequest(requestOf({ messages: [first] }), memory);
    const bad = requestOf({ messages: [first, { role: 'user', content: 3 }] });
    expect(() => readRequest(bad, memory, cache)).toThrow(expect.objectContaining({ param: 'messages.1.content' }));
  });

  it('is only what JSON would write in the same way', () => {
    fc.assert(
      fc.property(fc.anything(), fc.jsonValue(), (value, given) => {
        const json = given as Json;
        if (isWrittenAs(value, json)) expect(JSON.parse(JSON.stringify(value))).toEqual(json);
        expect(isWrittenAs(structuredClone(json), json)).toBe(true);
      }),
    );
    class Named {
      a = 1;
    }
    const hidden = Object.defineProperty({ a: 1 }, 'toJSON', { value: () => 2 });
    for (const value of [new Named(), hidden, { a: 1, b: () => 1 }, { a: 1, b: null }]) {
      expect(isWrittenAs(value, { a: 1 })).toBe(false);
    }
    expect(isWrittenAs([undefined], [])).toBe(false);
    expect(isWrittenAs({ a: 1, b: undefined }, { a: 1 })).toBe(true);
  });
});
