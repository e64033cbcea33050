import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { renderer, tokenizer } from '../../test/fixtures/tokens/base.ts';
import { parts, together } from '../../test/fixtures/tokens/pieces.ts';
import { parseAssistant, ResponseParser } from './response-parser.ts';
import { type Piece, piecesOf, ResponseStream, TextStream } from './response-stream.ts';
import { hermes, llama, mistral } from './tool-calls.ts';

const [stopId = -1] = renderer.stopIds;
const idsOf = (text: string): number[] => [...tokenizer.encodeRendered(text)];

/** Pieces of a text of calls, broken calls and words; more likely to be a call than chance would have it. */
const phrase = fc.oneof(
  fc.constantFrom('<tool_call>', '</tool_call>', '{"name":"f","arguments":', '{"a": "}</tool_call>"}', ...'}{"\\ \n'),
  fc.constantFrom('<tool_call>{"name":"f","arguments":{}}</tool_call>', '<tool', '_call>', '</', 'words', ...'🙂漢\uFFFD\u00A0'),
  fc.string({ unit: 'grapheme', maxLength: 6 }),
);
const text = fc.array(phrase, { maxLength: 14 }).map((phrases) => phrases.join(''));
const anyIds = fc.array(fc.oneof(fc.nat(530), fc.constantFrom(stopId, 3, 4)), { maxLength: 40 });

function streamed(pushed: readonly Int32Array[], all: Int32Array): readonly Piece[] {
  const stream = renderer.streamResponse();
  const pieces = pushed.flatMap((part) => [...stream.push(part)]);
  return [...pieces, ...stream.end(all, renderer.readResponse(all))];
}

describe('a response, while it is sampled', () => {
  it('is in the end what was said as a whole, however its ids arrive', () => {
    const sampled = fc.oneof(
      text.map((said) => idsOf(said)),
      text.map((said) => [...idsOf(said), stopId]),
      anyIds,
    );
    fc.assert(
      fc.property(sampled, fc.array(fc.nat(60), { maxLength: 40 }), fc.nat(60), (ids, cuts, unpushed) => {
        const all = Int32Array.from(ids);
        const pushed = parts(all.subarray(0, Math.max(0, ids.length - (unpushed % 4))), cuts);
        expect(together(streamed(pushed, all))).toEqual(renderer.readResponse(all));
      }),
      { numRuns: 3000 },
    );
  });

  it('gives each piece as soon as it is decided', () => {
    const stream = renderer.streamResponse();
    const push = (said: string) => stream.push(Int32Array.from(idsOf(said)));
    expect(push(' \n')).toEqual([]);
    expect(push('Let me')).toEqual([{ kind: 'text', text: ' \nLet me' }]);
    expect(push(' see <')).toEqual([{ kind: 'text', text: ' see ' }]);
    expect(push('b')).toEqual([{ kind: 'text', text: '<b' }]);
    expect(push('<tool_call>{"name":"f",')).toEqual([]);
    expect(push('"arguments":"</tool_call>"} ')).toEqual([]);
    expect(push('</tool_call>')).toEqual([{ kind: 'call', index: 0, call: { name: 'f', arguments: '"</tool_call>"' } }]);
    expect(push('<tool_call>{"name":"f","arguments":"\\\\\\"}')).toEqual([]);
    expect(push('</tool_call>')).toEqual([]);
    expect(push('"}</tool_call>')).toMatchObject([{ kind: 'call', index: 1, call: { arguments: '"\\\\\\"}</tool_call>"' } }]);
    for (const rest of ['{} no', ' ['])
      expect(push(`<tool_call>${rest}`)).toEqual(['<tool_call>', rest].map((said) => ({ kind: 'text', text: said })));
  });

  it.each([
    ['hermes', hermes, '<tool_call>', '{"name": "f", <'],
    ['mistral', mistral, '[TOOL_CALLS]', '[{"name": "f"}, T'],
    ['llama', llama, '', '{"name": "f", x'],
  ] as const)('is text as soon as it can be no call any more, in the words of %s', (_, format, mark, rest) => {
    const parser = new ResponseParser({ format, thinks: 'unmarked', beforeCalls: '' });
    expect(parser.push(mark + rest.slice(0, -1), false)).toEqual([]);
    const given = parser.push(`${rest.at(-1)} `, false).map((piece) => piece.kind === 'text' && piece.text);
    expect(given.join('')).toBe(`${mark}${rest} `);
  });

  it('never gives half a character, nor the id that ends it', () => {
    const bytes = tokenizer.encodeText('🙂');
    expect(bytes.length).toBeGreaterThan(1);
    const stream = new TextStream(tokenizer.decode, renderer.stopIds);
    const given = [...bytes, stopId].map((id) => stream.push([id]));
    expect(given).toEqual([...Array(bytes.length - 1).fill(''), '🙂', '']);
    expect(stream.end()).toBe('');
  });

  it('is refused at its end where a tokenizer writes tokens differently together than one by one', () => {
    const decode = (ids: readonly number[]) => (ids.length > 2 ? 'together' : 'apart'.slice(0, ids.length));
    const stream = new ResponseStream(decode, []);
    const ids = Int32Array.of(1, 2, 3);
    for (const id of ids) stream.push(Int32Array.of(id));
    expect(() => stream.end(ids, parseAssistant(decode([...ids])))).toThrow(/not what the sampled tokens say/);
  });

  it('decodes a bounded number of ids per token, however long it gets, also where bytes that make no character go on and on', () => {
    let most = 0;
    const decode = (ids: readonly number[]) => {
      most = Math.max(most, ids.length);
      return new TextDecoder().decode(Uint8Array.from(ids));
    };
    const stream = new TextStream(decode, []);
    for (let i = 0; i < 200; i++) expect(stream.push([0x78])).toBe('x');
    expect(most).toBeLessThan(4);
    const bytes = [...Array<number>(1000).fill(0x80), ...Buffer.from('漢'), ...Array<number>(1000).fill(0xf0)];
    const given = bytes.map((byte) => stream.push([byte])).join('');
    expect(most).toBeLessThan(100);
    expect(given + stream.end()).toBe(decode(bytes));
    expect(given.length).toBeGreaterThan(1990);
  });

  it('is the decoding of all its bytes, whichever they are and however they arrive', () => {
    const decode = (ids: readonly number[]) => new TextDecoder('utf-8', { ignoreBOM: true }).decode(Uint8Array.from(ids));
    const byte = fc.oneof(fc.constantFrom(0x80, 0xe6, 0xbc, 0xa2, 0xf0, 0x9f, 0x99, 0x82, 0xff, 0xed, 0xa0), fc.nat(255));
    fc.assert(
      fc.property(fc.array(fc.array(byte, { maxLength: 9 }), { maxLength: 60 }), (arriving) => {
        const stream = new TextStream(decode, [0x99]);
        const all = arriving.flat();
        const given = arriving.map((bytes) => stream.push(bytes)).join('');
        expect(given + stream.end()).toBe(decode(all.at(-1) === 0x99 ? all.slice(0, -1) : all));
      }),
      { numRuns: 1000 },
    );
  });

  it('that is whole already has the same pieces', () => {
    fc.assert(
      fc.property(text, (said) => {
        expect(together(piecesOf(parseAssistant(said)))).toEqual(parseAssistant(said));
      }),
    );
  });
});
