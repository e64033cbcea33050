import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parts, together } from '../../test/fixtures/tokens/pieces.ts';
import { FORMATS } from './extension.ts';
import { type Assistant, parseAssistant, type ResponseFormat, ResponseParser } from './response-parser.ts';
import type { CallFormat } from './tool-calls.ts';
import { hermes } from './tool-calls.ts';

const tagged: ResponseFormat = { format: hermes, thinks: 'tagged', beforeCalls: '' };
const prompted: ResponseFormat = { format: hermes, thinks: 'prompted', beforeCalls: '' };
const call = '<tool_call>{"name":"f","arguments":{}}</tool_call>';

describe('thoughts, where the template has a place for them', () => {
  it.each<[string, Assistant]>([
    ['<think>\nHm.\n</think>\n\nHello', { reasoning: 'Hm.', content: 'Hello', toolCalls: [] }],
    ['<think>\n\n</think>\n\nHello', { reasoning: '', content: 'Hello', toolCalls: [] }],
    [' \n<think>a\n\nb</think> Hello\n', { reasoning: 'a\n\nb', content: ' Hello\n', toolCalls: [] }],
    ['<think>\nNever done\n', { reasoning: 'Never done', content: '', toolCalls: [] }],
    ['<think>', { reasoning: '', content: '', toolCalls: [] }],
    ['Hello', { content: 'Hello', toolCalls: [] }],
    [' <thin', { content: ' <thin', toolCalls: [] }],
    ['Hm.\n</think>\n\nHello', { content: 'Hm.\n</think>\n\nHello', toolCalls: [] }],
    [`<think>${call}</think>\n\n`, { reasoning: call, content: '', toolCalls: [] }],
    [`<think>a</think>\n\n${call}`, { reasoning: 'a', content: null, toolCalls: [{ name: 'f', arguments: '{}' }] }],
    [`<think>a</think>b<think>${call}</think>`, { reasoning: 'a', content: `b<think>${call}</think>`, toolCalls: [] }],
  ])('of %j are %j', (text, expected) => {
    expect(parseAssistant(text, tagged)).toEqual(expected);
  });

  it('go on from the prompt where that has opened them', () => {
    expect(parseAssistant('Hm.\n</think>\n\nHello', prompted)).toEqual({ reasoning: 'Hm.', content: 'Hello', toolCalls: [] });
    expect(parseAssistant(`Hm. ${call}`, prompted)).toEqual({ reasoning: `Hm. ${call}`, content: '', toolCalls: [] });
  });

  it('come piece by piece, without the line breaks around them', () => {
    const parser = new ResponseParser(tagged);
    const push = (text: string) => parser.push(text, false);
    expect(push('<thi')).toEqual([]);
    expect(push('nk>\n')).toEqual([]);
    expect(push('\nHm')).toEqual([{ kind: 'reasoning', text: 'Hm' }]);
    expect(push('\n')).toEqual([]);
    expect(push('so')).toEqual([{ kind: 'reasoning', text: '\nso' }]);
    expect(push('\n</thin')).toEqual([]);
    expect(push('k>\n')).toEqual([]);
    expect(push('\nOk')).toEqual([{ kind: 'text', text: 'Ok' }]);
  });
});

/** Tags, whole calls of every format, and the parts of them. */
const TAGS =
  '<think> </think> <think>\n \n</think>\n\n <tool_call> </tool_call> [TOOL_CALLS] <|python_tag|> <function=f> </function>';
const PARTS = '<parameter=a> \n1\n </parameter> </ <parameter= <|python words ; < <t > " \\ { } [ ]';
const phrase = fc.oneof(
  fc.constantFrom(...TAGS.split(' ')),
  fc.constantFrom(...PARTS.split(' '), '\n', ' '),
  fc.constantFrom(
    ...[call, '{"name":"f","arguments":{"a":"}</tool_call>"}}', '[TOOL_CALLS][{"name":"f","arguments":{}}]'],
    ...['{"name":"f","parameters":{}}', '{"name":"f","parameters":{"a":"\\\\\\""}}'],
    '<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>',
  ),
  fc.string({ unit: 'grapheme', maxLength: 4 }),
);
const CALLS: Readonly<Record<CallFormat['name'], string>> = {
  hermes: call,
  'qwen3-coder': '<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>',
  llama: '{"name":"f","parameters":{"a":"}"}}',
  mistral: '[TOOL_CALLS][{"name":"f","arguments":{"a":"]"}}]',
};
const speechText = fc
  .tuple(
    fc.constantFrom('', '', 'hm</think>\n', '<think>hm</think>\n'),
    fc.constantFrom('', ...Object.values(CALLS)),
    fc.array(phrase, { maxLength: 12 }),
  )
  .map(([thought, first, rest]) => thought + first + rest.join(''));
const beforeCallsOf = fc.constantFrom('', '\n', '\n\n', ' \n');

describe.each(FORMATS)('what is said in the format $name', (format) => {
  it.each(['unmarked', 'tagged', 'prompted'] as const)('is the same in any parts as at once, with thoughts %s', (thinks) => {
    const calls = { some: 0, none: 0 };
    fc.assert(
      fc.property(speechText, beforeCallsOf, fc.array(fc.nat(200), { maxLength: 60 }), (text, beforeCalls, cuts) => {
        const responseFormat = { format, thinks, beforeCalls };
        const expected = parseAssistant(text, responseFormat);
        calls[expected.toolCalls.length > 0 ? 'some' : 'none']++;
        const parser = new ResponseParser(responseFormat);
        const pieces = parts(text, cuts).flatMap((part) => parser.push(part, false));
        pieces.push(...parser.push('', true));
        expect(together(pieces, expected.reasoning !== undefined)).toEqual(expected);
        expect(parser.said).toEqual(expected);
      }),
      { numRuns: 2000 },
    );
    expect(calls.some).toBeGreaterThan(20);
    expect(calls.none).toBeGreaterThan(20);
  });

  it('has a call as soon as it is closed, and text as soon as it is none', () => {
    const parser = new ResponseParser({ format, thinks: 'tagged', beforeCalls: '\n' });
    const text = CALLS[format.name];
    const before = [...text.slice(0, -1)].flatMap((character) => [...parser.push(character, false)]);
    expect(before).toEqual([]);
    expect(parser.push(text.slice(-1), false)).toMatchObject([{ kind: 'call', index: 0, call: { name: 'f' } }]);
    expect(parser.push('word', false)).toEqual([{ kind: 'text', text: 'word' }]);
  });

  it('loses no text: what is no call is content', () => {
    fc.assert(
      fc.property(speechText, (text) => {
        const { content, toolCalls } = parseAssistant(text, { format, thinks: 'unmarked', beforeCalls: '\n' });
        if (toolCalls.length === 0) expect(content).toBe(text);
        for (const one of toolCalls) {
          expect(() => JSON.parse(one.arguments)).not.toThrow();
          // That of parameters in tags is put together here.
          if (format.name !== 'qwen3-coder') expect(text).toContain(one.arguments);
        }
      }),
      { numRuns: 2000 },
    );
  });
});
