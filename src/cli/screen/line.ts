/** One line of the screen: pieces of text, each in one style. Measured and cut as plain text; painted last. */
import { styleText } from 'node:util';
import { cellsOf, cutTo } from './width.ts';

export type Style = 'bold' | 'dim' | 'cyan' | 'green' | 'yellow' | 'red' | 'magenta';

export interface Piece {
  readonly text: string;
  readonly style?: Style;
}

export type Line = readonly Piece[];

export function piece(text: string, style?: Style): Piece {
  return style === undefined ? { text } : { text, style };
}

export function textOf(line: Line): string {
  return line.map(({ text }) => text).join('');
}

export function lineWidth(line: Line): number {
  return line.reduce((cells, { text }) => cells + cellsOf(text), 0);
}

export function cutLine(line: Line, columns: number): Line {
  if (lineWidth(line) <= columns) return line;
  const kept: Piece[] = [];
  let left = columns;
  for (const each of line) {
    const wanted = cellsOf(each.text);
    if (wanted >= left) {
      // One cell too many on purpose: the cut is marked even where the piece itself ends exactly at the edge.
      kept.push({ ...each, text: cutTo(`${each.text} `, left) });
      break;
    }
    kept.push(each);
    left -= wanted;
  }
  return kept;
}

/** The first of several ways to say it that fits, from long to short; the shortest is cut if even that is too long. */
export function firstThatFits(columns: number, ways: readonly Line[]): Line {
  return ways.find((way) => lineWidth(way) <= columns) ?? cutLine(ways.at(-1) ?? [], columns);
}

export function paint(line: Line, colour: boolean): string {
  if (!colour) return textOf(line);
  return line.map(({ text, style }) => (style === undefined ? text : styleText(style, text, { validateStream: false }))).join('');
}

/** Node's own rules for stdout: a terminal that has colours, NO_COLOR, FORCE_COLOR. */
export function wantsColour(): boolean {
  return styleText('bold', 'x') !== 'x';
}
