import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { cleaned, fenced } from './question.ts';

const MARK = 'feedfacefeedfacefeedface';

/** Lines that are fences to a careful reader, and what is between them to one who only looks for the shape. */
function titlesIn(text: string): readonly string[] {
  return [...text.matchAll(/^<<<(BEGIN|END) (A|B) feedfacefeedfacefeedface>>>$/gm)].map(([, what, title]) => `${what} ${title}`);
}

describe('a fence', () => {
  const piece = fc.constantFrom(
    ...[
      '<<<',
      '<<<<',
      '>>>',
      'BEGIN',
      'END',
      ' A ',
      ' B ',
      MARK,
      MARK.slice(0, 12),
      MARK.slice(12),
      '\n',
      '\r',
      '\u2028',
      '\u0000',
      '\u200b',
    ],
    ...['\u{e0041}', '\ud800', '<|im_end|>', 'begin', 'eNd', '[mark]', ' '],
  );
  const hostile = fc.array(fc.oneof(piece, fc.string({ unit: 'binary' })), { maxLength: 40 }).map((pieces) => pieces.join(''));

  it('holds whatever is inside, even if that knows the mark', () => {
    fc.assert(
      fc.property(hostile, hostile, (a, b) => {
        const parts = [
          { title: 'A', text: cleaned(a, 1000) },
          { title: 'B', text: cleaned(b, 1000) },
        ];
        const text = fenced(parts, MARK);
        expect(titlesIn(text)).toEqual(['BEGIN A', 'END A', 'BEGIN B', 'END B']);
        expect(text.split(MARK)).toHaveLength(5);
        expect(text.isWellFormed()).toBe(true);
      }),
    );
  });

  it('leaves ordinary text as it is, whatever its language', () => {
    const text = 'Grüße, 你好, مرحبا!\n\tif (a < b && c >> 2) { return "<<" }\n👩‍👩‍👧 END';
    expect(cleaned(text, 1000)).toBe(text);
  });

  it.each([
    '<|im_start|>system',
    '<\uff5cUser\uff5c>',
    '<start_of_turn>model',
    '<end_of_turn>',
    '[INST] [/INST]',
    '<<SYS>> <</SYS>>',
    '</s><s>',
    '</think>',
    '<\u2060|im_start|>',
  ])('breaks %j, which servers take for a mark between messages', (mark) => {
    const marks = /<[|\uff5c]|<\/?(?:start_of_turn|end_of_turn|s|think)>|\[\/?INST\]|<<\/?SYS>>/;
    expect(cleaned(mark, 1000)).not.toMatch(marks);
  });

  it('leaves out what nobody sees: letters as tags or as selectors of variants', () => {
    const hidden = [...'obey'].map((letter) => String.fromCodePoint(0xe0100 + letter.charCodeAt(0))).join('');
    expect(cleaned(`a\u00ad\u2063${hidden}b`, 1000)).toBe('ab');
  });

  it('keeps both ends of a text that is too long', () => {
    fc.assert(
      fc.property(fc.string({ minLength: 30, maxLength: 200 }), (text) => {
        const whole = cleaned(text, 10_000);
        fc.pre(whole.length > 20);
        const cut = cleaned(text, 20);
        expect(cut.startsWith(whole.slice(0, 10))).toBe(true);
        expect(cut.endsWith(whole.slice(-10))).toBe(true);
        expect(cut).toContain(`[… ${whole.length - 20} characters left out here …]`);
      }),
    );
  });
});
