/**
 * Charts made of characters: a bar, a braille curve, a row of blocks. Pure functions; each result has exactly the requested width in cells.
 * Points keep their step, so that a curve lines up with the progress bar above it.
 */

export interface Point {
  readonly step: number;
  readonly value: number;
}

/** Steps `from` (exclusive) to `from + span` (inclusive). */
export interface Axis {
  readonly from: number;
  readonly span: number;
}

export interface Scale {
  readonly low: number;
  readonly high: number;
}

/** More than any terminal has columns. Beyond this, neighbours are merged into their mean. */
const MOST_POINTS = 1024;
const BLOCKS = '▁▂▃▄▅▆▇█';
/** Bits of a braille cell, by dot row and dot column. */
const DOTS = [
  [0x01, 0x08],
  [0x02, 0x10],
  [0x04, 0x20],
  [0x40, 0x80],
] as const;

/** Points must arrive in step order. Skips non-finite values. */
export function withPoint(points: readonly Point[], point: Point): readonly Point[] {
  if (!Number.isFinite(point.value)) return points;
  const all = [...points, point];
  return all.length > MOST_POINTS ? mergeNeighbours(all) : all;
}

function mergeNeighbours(points: readonly Point[]): readonly Point[] {
  return points.flatMap((point, i) => {
    const { step, value } = points[i + 1] ?? point;
    return i % 2 === 1 ? [] : [{ step, value: (point.value + value) / 2 }];
  });
}

/** 0 to 1 if all values fit, otherwise the range of the values and 0. */
export function scaleOf(points: readonly Point[]): Scale {
  const values = points.map(({ value }) => value);
  const low = Math.min(0, ...values);
  const high = Math.max(...values);
  if (high <= 1 && low === 0) return { low: 0, high: 1 };
  return { low, high: high > low ? high : low + 1 };
}

export function bar(share: number, width: number): { readonly filled: string; readonly rest: string } {
  const filled = Math.round(within(share, 0, 1) * width);
  return { filled: '━'.repeat(filled), rest: '─'.repeat(width - filled) };
}

/** Divides the width among the parts, rounded so that they fill it exactly. */
export function shares(parts: readonly number[], width: number): readonly number[] {
  const total = parts.reduce((sum, part) => sum + part, 0);
  if (!(total > 0)) return parts.map(() => 0);
  let before = 0;
  return parts.map((part) => {
    const start = Math.round((before / total) * width);
    before += part;
    return Math.round((before / total) * width) - start;
  });
}

/** A curve with four dots per row and two per column. Ends at the last point. */
export function curve(points: readonly Point[], axis: Axis, scale: Scale, width: number, height: number): readonly string[] {
  const levels = columnValues(points, axis, width * 2, 'join').map((value) =>
    value === undefined ? undefined : Math.round(position(value, scale) * (height * 4 - 1)),
  );
  const cells = Array.from({ length: height }, () => new Uint8Array(width));
  levels.forEach((level, x) => {
    if (level === undefined) return;
    const before = levels[x - 1] ?? level;
    // A vertical stroke closes the gap of a steep segment.
    const [low, high] = before < level ? [before + 1, level] : [level, Math.max(level, before - 1)];
    for (let y = low; y <= high; y++) {
      const row = height * 4 - 1 - y;
      cells[row >> 2]![x >> 1]! |= DOTS[row & 3]![x & 1]!;
    }
  });
  return cells.map((row) => Array.from(row, (bits) => (bits === 0 ? ' ' : String.fromCodePoint(0x2800 + bits))).join(''));
}

/** `join` interpolates between points; `hold` keeps each value until the next. */
export function blocks(points: readonly Point[], axis: Axis, scale: Scale, width: number, between: 'join' | 'hold'): string {
  return columnValues(points, axis, width, between)
    .map((value) => (value === undefined ? ' ' : BLOCKS[Math.round(position(value, scale) * (BLOCKS.length - 1))]))
    .join('');
}

function position(value: number, { low, high }: Scale): number {
  return within((value - low) / (high - low), 0, 1);
}

/** Each column's mean (`join`) or last point (`hold`). Gaps between points are filled; columns after the last stay empty. */
function columnValues(points: readonly Point[], axis: Axis, columns: number, between: 'join' | 'hold'): (number | undefined)[] {
  const sums = new Float64Array(columns);
  const counts = new Uint32Array(columns);
  const scaled = (columns - 1) / Math.max(1, axis.span - 1);
  for (const { step, value } of points) {
    const column = within(Math.round((step - axis.from - 1) * scaled), 0, columns - 1);
    const isAdded = between === 'join';
    sums[column] = value + (isAdded ? sums[column]! : 0);
    counts[column] = 1 + (isAdded ? counts[column]! : 0);
  }
  const values: (number | undefined)[] = Array.from(sums, (sum, x) => (counts[x] === 0 ? undefined : sum / counts[x]!));
  return between === 'join' ? joined(values) : held(values);
}

function joined(values: readonly (number | undefined)[]): (number | undefined)[] {
  const filled = [...values];
  let last = -1;
  values.forEach((value, x) => {
    if (value === undefined) return;
    const from = values[last];
    for (let i = last + 1; from !== undefined && i < x; i++) filled[i] = from + ((value - from) * (i - last)) / (x - last);
    last = x;
  });
  return filled;
}

function held(values: readonly (number | undefined)[]): (number | undefined)[] {
  const end = values.findLastIndex((value) => value !== undefined);
  let last: number | undefined;
  return values.map((value, x) => {
    last = value ?? last;
    return x <= end ? last : undefined;
  });
}

function within(value: number, low: number, high: number): number {
  return Number.isNaN(value) ? low : Math.max(low, Math.min(high, value));
}
