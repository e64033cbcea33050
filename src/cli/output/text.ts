/** Text for terminals: formatting of numbers, names and commands shared by all output, display width, and the escape sequences in use. */
import { printableLine } from '../../core/describe.ts';
import type { RunEnding, StepReport } from '../../core/events.ts';

export function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

/** Fixed decimals, but small values keep two significant digits: 0.00042. */
export function figure(value: number, digits: number): string {
  return value === 0 || Math.abs(value) >= 10 ** (1 - digits) ? value.toFixed(digits) : `${Number(value.toPrecision(2))}`;
}

/** 12.3 s, 45 ms. */
export function took(seconds: number): string {
  return seconds < 0.1 ? `${Math.ceil(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`;
}

/** 0:07, 12:31, 3:05:09; days above that. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const two = (value: number): string => String(value).padStart(2, '0');
  const days = Math.floor(whole / 86_400);
  const hours = Math.floor(whole / 3600) % 24;
  const minutes = Math.floor(whole / 60) % 60;
  if (days > 99) return 'over 99 d';
  if (days > 0) return `${days} d ${hours} h`;
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** 840, 12.4K, 3.1M. */
export function amount(value: number): string {
  return new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 }).format(value);
}

export function count(n: number, noun: string): string {
  return `${n} ${noun}${n === 1 ? '' : 's'}`;
}

/** `format 1.00  tries 3.00  +2 more`. */
export function measures(all: readonly (readonly [string, number])[], most: number, digits: number, gap = '  '): string {
  const shown = all.slice(0, most).map(([name, value]) => `${printableLine(name)} ${figure(value, digits)}`);
  return [...shown, ...(all.length > most ? [`+${all.length - most} more`] : [])].join(gap);
}

export function agreementText({ ratio = 1, offPolicyKl = 0, clipped = 0, largestDifference }: Partial<StepReport>): string {
  const largest = largestDifference === undefined ? [] : [`largest difference ${figure(largestDifference, 3)}`];
  return [`ratio ${figure(ratio, 3)}`, `KL ${figure(offPolicyKl, 3)}`, ...largest, `${percent(clipped)} clipped`].join(' · ');
}

/** Why a run ended early. Null if it took all steps or a user ended it. */
export const STOPPED: Readonly<Record<RunEnding, string | null>> = {
  steps: null,
  solved: 'every rollout is perfect, there is nothing left to learn',
  'no-signal': 'the last tries had no group with two different rewards',
  patience: 'no evaluation on the way was better than an earlier one for as long as --patience allows',
  'max-time': 'the time it was given is used up',
  'max-tokens': 'the tokens it was given are used up',
  rollouts: 'all rollouts of the other run are used up',
  interrupted: null,
};

/** Whether it was called as an npm script of this repository. */
export const IS_NPM_SCRIPT = ['trainyard', 'demo'].includes(process.env['npm_lifecycle_event'] ?? '');

/** How the program was called, judging by npm's environment, so that users can type it again. */
const IS_LOCAL = process.env['npm_command'] === 'exec' || /^trainyard\b/.test(process.env['npm_lifecycle_script'] ?? '');
const CALLED_AS = IS_NPM_SCRIPT ? 'npm run trainyard --' : IS_LOCAL ? 'npx trainyard' : 'trainyard';

/** Rewrites commands in a text to match how this program was called. */
export function asCalled(text: string): string {
  return text.replaceAll(
    /\btrainyard (?=(?:train|eval|replay|diff|try|preflight|show|serve|curate|verify|tinker|model|export|init|view|doctor|sft|skyrl|help|--help)\b)/g,
    `${CALLED_AS} `,
  );
}

/** The first column is left-aligned, the others right-aligned. */
export function table(rows: readonly (readonly string[])[]): readonly string[] {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => cellsOf(row[column] ?? ''))));
  const padded = (cell: string, column: number): string => {
    const padding = ' '.repeat((widths[column] ?? 0) - cellsOf(cell));
    return column === 0 ? cell + padding : padding + cell;
  };
  return rows.map((row) => row.map(padded).join('   ').trimEnd());
}

export function nameCell(name: string): string {
  return cutTo(printableLine(name), 40);
}

/** Combining marks and invisible joiners. Includes U+FE0F, which may widen the character before it. */
const NO_CELL = /^[\p{Mn}\p{Me}\u200b-\u200d\u2060\ufeff]$/u;
const TWO_CELLS =
  /^(?:\p{Emoji_Presentation}|[\u1100-\u115f\u2e80-\u303e\u3041-\u4dbf\u4e00-\ua4cf\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6\u{16fe0}-\u{18fff}\u{1aff0}-\u{1b2ff}\u{1f200}-\u{1faff}\u{20000}-\u{3fffd}])$/u;
/** Nearly everything the screen draws: Latin letters, bars, blocks, braille. */
const ONE_CELL_EACH = /^[ -~\u00a0-\u02ff\u2026\u2192\u2500-\u259f\u2605\u2800-\u28ff]*$/;

/** Upper bound, since terminals disagree on emoji: too wide only cuts a line early, too narrow would wrap it and break the screen. */
export function cellsOf(text: string): number {
  if (ONE_CELL_EACH.test(text)) return text.length;
  let cells = 0;
  for (const character of text) {
    if (character === '\ufe0f') cells++;
    else if (!NO_CELL.test(character)) cells += TWO_CELLS.test(character) ? 2 : 1;
  }
  return cells;
}

/** Cuts at grapheme boundaries and marks the cut with …. */
export function cutTo(text: string, columns: number): string {
  if (cellsOf(text) <= columns) return text;
  if (columns < 1) return '';
  let kept = '';
  let cells = 0;
  for (const { segment } of new Intl.Segmenter('en', { granularity: 'grapheme' }).segment(text)) {
    cells += cellsOf(segment);
    if (cells > columns - 1) break;
    kept += segment;
  }
  return `${kept}…`;
}

const ESCAPE = '\u001b[';

export const HIDE_CURSOR = `${ESCAPE}?25l`;
export const SHOW_CURSOR = `${ESCAPE}?25h`;
export const ERASE_LINE_END = `${ESCAPE}K`;
/** From the start of this line to the end of the screen. */
export const ERASE_BELOW = `\r${ESCAPE}J`;

export function up(lines: number): string {
  return lines > 0 ? `${ESCAPE}${lines}A` : '';
}

/** The live view is for interactive, capable terminals only. */
export function wantsScreen(isTerminal: boolean, { TERM, CI }: NodeJS.ProcessEnv): boolean {
  const automatic = CI !== undefined && !['', '0', 'false'].includes(CI);
  return isTerminal && TERM !== 'dumb' && !automatic;
}
