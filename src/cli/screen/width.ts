/**
 * How many terminal cells a text takes, as an upper bound: terminals disagree on emoji sequences, and a line that is thought too
 * wide is merely cut early, while one thought too narrow would wrap and break the screen.
 */

/** Marks that sit on the character before them, and invisible joiners. U+FE0F is among them and may widen that character. */
const NO_CELL = /^[\p{Mn}\p{Me}\u200b-\u200d\u2060\ufeff]$/u;
const TWO_CELLS =
  /^(?:\p{Emoji_Presentation}|[\u1100-\u115f\u2e80-\u303e\u3041-\u4dbf\u4e00-\ua4cf\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6\u{16fe0}-\u{18fff}\u{1aff0}-\u{1b2ff}\u{1f200}-\u{1faff}\u{20000}-\u{3fffd}])$/u;

const graphemes = new Intl.Segmenter('en', { granularity: 'grapheme' });

/** Almost everything the screen draws: Latin letters, bars, blocks, braille. */
const ONE_CELL_EACH = /^[ -~\u00a0-\u02ff\u2026\u2192\u2500-\u259f\u2605\u2800-\u28ff]*$/;

export function cellsOf(text: string): number {
  if (ONE_CELL_EACH.test(text)) return text.length;
  let cells = 0;
  for (const character of text) cells += cellsOfOne(character);
  return cells;
}

function cellsOfOne(character: string): number {
  if (character === '\ufe0f') return 1;
  if (NO_CELL.test(character)) return 0;
  return TWO_CELLS.test(character) ? 2 : 1;
}

/** The longest beginning that fits, marked with … where something is missing; never half of a character. */
export function cutTo(text: string, columns: number): string {
  if (cellsOf(text) <= columns) return text;
  if (columns < 1) return '';
  let kept = '';
  let cells = 0;
  for (const { segment } of graphemes.segment(text)) {
    cells += cellsOf(segment);
    if (cells > columns - 1) break;
    kept += segment;
  }
  return `${kept}…`;
}

/**
 * Text from elsewhere (an agent's error, a path) on one line, without anything a terminal would obey: control characters, and
 * the marks that reverse the direction of what follows.
 */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is being removed
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g, (mark) => (mark === '\n' ? '⏎' : '·'));
}
