import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { printableLine } from '../../core/describe.ts';
import { cutLine, firstThatFits, paint, piece, textOf } from '../screen/view.ts';
import { cellsOf, cutTo } from './text.ts';

describe('the width of a text', () => {
  it.each([
    ['plain', 5],
    ['über', 4],
    ['e\u0301', 1],
    ['漢字', 4],
    ['한글', 4],
    ['ﾊﾝ', 2],
    ['🚂', 2],
    ['❤\ufe0f', 2],
    ['a\u200bb', 2],
    ['━█▓░▁⣿★→·…', 10],
  ])('%j takes %i cells', (text, cells) => {
    expect(cellsOf(text)).toBe(cells);
  });
});

describe('cutting', () => {
  it('keeps what fits, marks what is missing, and never halves a character', () => {
    expect(cutTo('trainyard', 9)).toBe('trainyard');
    expect(cutTo('trainyard', 6)).toBe('train…');
    expect(cutTo('漢字漢字', 6)).toBe('漢字…');
    expect(cutTo('e\u0301e\u0301e\u0301', 2)).toBe('e\u0301…');
    expect(cutTo('ab', 1)).toBe('…');
    expect(cutTo('ab', 0)).toBe('');
  });

  it('never leaves more than was asked for, whatever the text', () => {
    fc.assert(
      fc.property(fc.array(fc.string({ unit: 'binary' })), fc.nat(30), (texts, columns) => {
        const line = texts.map((text) => piece(text));
        expect(cellsOf(textOf(cutLine(line, columns)))).toBeLessThanOrEqual(columns);
        expect(cellsOf(cutTo(texts.join(''), columns))).toBeLessThanOrEqual(columns);
      }),
    );
  });

  it('marks a line that is cut exactly between two pieces', () => {
    expect(textOf(cutLine([piece('abc'), piece('def')], 3))).toBe('ab…');
  });

  it('is the last resort: a shorter way to say it comes first', () => {
    const ways = [[piece('twelve of them')], [piece('twelve')], [piece('12')]];
    expect([20, 8, 2, 1].map((columns) => textOf(firstThatFits(columns, ways)))).toEqual(['twelve of them', 'twelve', '12', '…']);
  });
});

describe('painting', () => {
  it('adds colours only where they are wanted', () => {
    const line = [piece('a', 'red'), piece('b')];
    expect(paint(line, false)).toBe('ab');
    expect(paint(line, true)).toBe('\u001b[31ma\u001b[39mb');
  });
});

describe('text from elsewhere', () => {
  it('cannot move the cursor, set a title, copy to the clipboard, break a line or reverse it', () => {
    const shown = printableLine('\u001b[2J\u001b]52;c;aGk=\u0007\u009b1A\r\nx\u202ey\u2066z\u2028');
    expect(shown).toBe('·[2J·]52;c;aGk=··1A·⏎x·y·z·');
  });
});
