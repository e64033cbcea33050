import { describe, expect, it } from 'vitest';
import { rowsOf, tidyRows } from './evaluation-rows.ts';

describe('rows of a task file', () => {
  it('are sorted, each once', () => {
    expect(rowsOf('10-12,3,7,11-13, 3', 20)).toEqual([3, 7, 10, 11, 12, 13]);
    expect(tidyRows('10-12,3,7,11-13, 3')).toBe('3,7,10-13');
    expect(tidyRows('2,1,3')).toBe('1-3');
  });

  it('are all of them where none are named', () => {
    expect(rowsOf(undefined, 3)).toEqual([1, 2, 3]);
  });

  it.each(['', ' ', '3,,5', 'x', '-3', '3-', '1.5', '1e3', '3 5', '0', '0-4', '5-3', '9999999999999999'])(
    'are refused when they are %j',
    (text) => {
      expect(() => rowsOf(text, 20)).toThrow(expect.objectContaining({ code: 'USAGE' }));
    },
  );

  it('are refused with everything that is wrong at once', () => {
    expect(() => tidyRows('5-3,x,0')).toThrow(/5 to 3 is the wrong way round; .*"x".*; rows are counted from 1, found "0"/);
  });

  it('are refused past the end of the file, however far, without counting them', () => {
    expect(() => rowsOf('3-900000000000000', 20)).toThrow(
      'expected rows from 1 to 20, the last of the file, found 900000000000000',
    );
  });
});
