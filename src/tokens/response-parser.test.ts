import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { PLAIN_FORMAT, parseAssistant, ResponseParser } from './response-parser.ts';

const tagged = (json: string) => `<tool_call>${json}</tool_call>`;

/** JSON text of a value in one of the many ways it can be written. */
const jsonText = fc
  .tuple(fc.jsonValue({ maxDepth: 4, noUnicodeString: false }), fc.constantFrom(0, 1, 2, '\t'), fc.boolean())
  .map(([value, indent, escaped]) => {
    const text = JSON.stringify(value, null, indent);
    const unit = (one: string) => `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`;
    return escaped ? text.replace(/[\u0080-\uffff]/g, unit) : text;
  });
const spacing = fc.constantFrom('', ' ', '\n', '\n\t ');
const plainText = fc.string({ unit: 'grapheme' }).filter((text) => !text.includes('tool_call'));
/** Text next to a call: words, often with white space at their end, or nothing else. */
const around = fc
  .tuple(fc.oneof(plainText, fc.constant('')), fc.constantFrom('', '\n', '\n\n', ' \n', ' '))
  .map((parts) => parts.join(''));
const beforeCallsOf = fc.constantFrom('', '\n', '\n\n');

/** Of the texts before, between and behind calls: all up to the last words, less what the template writes between those and a call. */
function contentOf(texts: readonly string[], beforeCalls: string): string | null {
  const last = texts.findLastIndex((text) => text.trim() !== '');
  if (last === -1) return null;
  const words = texts.slice(0, last + 1).join('');
  return last < texts.length - 1 && words.endsWith(beforeCalls) ? words.slice(0, words.length - beforeCalls.length) : words;
}

describe('reading tool calls', () => {
  it('finds generated calls, with their arguments as they were written, and the text around them', () => {
    const name = fc.string({ unit: 'grapheme', minLength: 1 });
    const part = fc.record({ before: around, name, args: jsonText, space: spacing, swap: fc.boolean() });
    fc.assert(
      fc.property(fc.array(part, { minLength: 1, maxLength: 4 }), around, beforeCallsOf, (parts, rest, beforeCalls) => {
        const text = parts.map(({ before, name, args, space: s, swap }) => {
          const members = [`"name"${s}:${s}${JSON.stringify(name)}`, `"arguments"${s}:${s}${args}`];
          return before + tagged(`${s}{${s}${(swap ? members.toReversed() : members).join(`${s},${s}`)}${s}}${s}`);
        });
        const parsed = parseAssistant(text.join('') + rest, { ...PLAIN_FORMAT, beforeCalls });
        expect(parsed.toolCalls).toEqual(parts.map(({ name, args }) => ({ name, arguments: args })));
        expect(parsed.content).toBe(contentOf([...parts.map(({ before }) => before), rest], beforeCalls));
      }),
      { numRuns: 500 },
    );
  });

  it('takes arguments of any JSON type as they are written, tags and braces inside of strings too', () => {
    for (const args of ['{"a":"}</tool_call>{\\"<tool_call>"}', '"{\\"a\\":1}"', '1.0', '[ 1 ]', 'null', '-0', '{"a":1,"a":2}']) {
      const toolCalls = [{ name: 'f', arguments: args }];
      expect(parseAssistant(tagged(`{"name":"f","arguments":${args}}`))).toEqual({ content: null, toolCalls });
    }
  });

  it('takes the last of members with the same name, at the top level only', () => {
    const text = tagged('{"arguments":{"name":"inner","arguments":1},"name":"a","\\u006eame":"b","id":7}');
    expect(parseAssistant(text).toolCalls).toEqual([{ name: 'b', arguments: '{"name":"inner","arguments":1}' }]);
  });

  it.each([
    ['bad JSON', tagged('{"name":"f","arguments":{}')],
    ['a trailing comma', tagged('{"name":"f","arguments":{},}')],
    ['something after the JSON', tagged('{"name":"f","arguments":{}} x')],
    ['no name', tagged('{"arguments":{}}')],
    ['an empty name', tagged('{"name":"","arguments":{}}')],
    ['a name that is no text', tagged('{"name":1,"arguments":{}}')],
    ['no arguments', tagged('{"name":"f"}')],
    ['no object', tagged('["f"]')],
    ['no closing tag', '<tool_call>{"name":"f","arguments":{}}'],
    ['no opening tag', '{"name":"f","arguments":{}}</tool_call>'],
    ['nothing', ''],
  ])('leaves a call with %s in the text', (_, text) => {
    expect(parseAssistant(text)).toEqual({ content: text, toolCalls: [] });
  });

  it('finds a good call after a bad one', () => {
    const good = tagged('{"name":"f","arguments":{}}');
    expect(parseAssistant(`<tool_call>{"name":"g" ${good}`)).toEqual({
      content: '<tool_call>{"name":"g" ',
      toolCalls: [{ name: 'f', arguments: '{}' }],
    });
  });

  it('survives very deep nesting', () => {
    const deep = '['.repeat(50_000) + ']'.repeat(50_000);
    expect(() => parseAssistant(tagged(`{"name":"f","arguments":${deep}}`))).not.toThrow();
  });

  it('holds white space back until it is known whose it is', () => {
    const call = tagged('{"name":"f","arguments":{}}');
    const parser = new ResponseParser({ ...PLAIN_FORMAT, beforeCalls: '\n\n' });
    const push = (text: string, last = false) =>
      parser.push(text, last).map((piece) => (piece.kind === 'text' ? piece.text : piece.kind));
    expect(push('I look.\n')).toEqual(['I look.']);
    expect(push('\n')).toEqual([]);
    expect(push('\n')).toEqual(['\n']);
    expect(push(call)).toEqual(['call']);
    expect(push(' ')).toEqual([]);
    expect(push(`\n${call}`)).toEqual(['call']);
    expect(push('So.\n')).toEqual(['\n\n \nSo.']);
    expect(push(call)).toEqual(['\n', 'call']);
    expect(push('\n', true)).toEqual([]);
    expect(parser.said.content).toBe('I look.\n\n\n \nSo.\n');
  });
});
