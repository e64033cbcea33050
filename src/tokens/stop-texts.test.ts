import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { renderer, tokenizer } from '../../test/fixtures/tokens/base.ts';
import { parts } from '../../test/fixtures/tokens/pieces.ts';
import { beforeStop } from './response-parser.ts';

const [stopId = -1] = renderer.stopIds;

const words = fc.array(fc.constantFrom('a', 'b', 'ab', 'ba', ' ', '\n', '🙂', '漢', '<tool_call>', 'END'), { maxLength: 14 });
const stops = fc.array(fc.constantFrom('ab', 'abb', 'ba', 'b', 'END', 'aEND', '🙂', 'a🙂', '漢a', '</tool_call>'), {
  minLength: 1,
  maxLength: 3,
});
/** Any ids: characters in halves, and the id that ends a turn in the middle. */
const anyIds = fc.array(fc.oneof(fc.nat(530), fc.constant(stopId)), { maxLength: 30 });
const saidIds = fc.oneof(
  words.map((said) => [...tokenizer.encodeRendered(said.join(''))]),
  words.map((said) => said.flatMap((part) => [...tokenizer.encodeRendered(part)])),
  anyIds,
);

/** Whether these ids say a stop text, without a character that is not complete yet. */
const isSaid = (ids: readonly number[], stopTexts: readonly string[]): boolean => {
  const said = ids.at(-1) === stopId ? ids.slice(0, -1) : ids;
  return beforeStop(tokenizer.decode(said).replace(/\uFFFD+$/, ''), stopTexts) !== undefined;
};

describe('a stop text', () => {
  it('ends what is said before its first occurrence, whichever comes first', () => {
    expect(beforeStop('abc', ['c', 'b'])).toBe('a');
    expect(beforeStop('abc', ['x', ''])).toBeUndefined();
    const ids = tokenizer.encodeRendered('one END two<|im_end|>');
    expect(renderer.readResponse(ids, ['two', 'END']).content).toBe('one ');
    expect(renderer.readResponse(ids, ['three']).content).toBe('one END two');
    expect(renderer.readResponse(ids).content).toBe('one END two');
  });

  it('ends a tool call too, which then is none', () => {
    const ids = tokenizer.encodeRendered('<tool_call>{"name":"f","arguments":{}}</tool_call>');
    expect(renderer.readResponse(ids, ['}}'])).toEqual({ content: '<tool_call>{"name":"f","arguments":{', toolCalls: [] });
  });

  it('while sampling, ends the turn with the very id that completes it, and the pieces are what these ids say', () => {
    let stopped = 0;
    fc.assert(
      fc.property(saidIds, stops, fc.array(fc.nat(40), { maxLength: 30 }), (ids, stopTexts, cuts) => {
        const stream = renderer.streamResponse(stopTexts);
        const pieces = parts(Int32Array.from(ids), cuts).flatMap((part) => [...stream.push(part)]);
        const counts = ids.map((_, i) => i + 1);
        const expected = counts.find((count) => isSaid(ids.slice(0, count), stopTexts));
        expect(stream.stoppedAt).toBe(expected);
        if (expected !== undefined) stopped++;
        const kept = Int32Array.from(ids.slice(0, expected));
        const whole = renderer.readResponse(kept, stopTexts);
        pieces.push(...stream.end(kept, whole));
        const text = pieces.flatMap((piece) => (piece.kind === 'text' ? [piece.text] : [])).join('');
        expect(text).toBe(whole.content ?? '');
      }),
      { numRuns: 3000 },
    );
    expect(stopped).toBeGreaterThan(500);
  });

  it('while sampling, holds back only what may become one', () => {
    const stream = renderer.streamResponse(['END']);
    const push = (text: string) => stream.push(tokenizer.encodeText(text));
    expect(push('one E')).toEqual([{ kind: 'text', text: 'one ' }]);
    expect(push('N')).toEqual([]);
    expect(push('ough')).toEqual([{ kind: 'text', text: 'ENough' }]);
    expect(push('END')).toEqual([]);
    expect(push('more')).toEqual([]);
  });
});
