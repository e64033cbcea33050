/**
 * The live view as a pure function (state, columns, rows) → lines. Lines never exceed the columns, nor their number the rows. Three columns
 * show name, chart and text. Narrow terminals drop the charts, then the names; low ones drop the least important rows first. Step bar,
 * reward curve and held-out success share one axis of steps.
 */
import { basename, sep } from 'node:path';
import { styleText } from 'node:util';
import { printableLine } from '../../core/describe.ts';
import type { Phase } from '../../core/events.ts';
import { hubNameOf } from '../../engines/model-path.ts';
import { agreementText, amount, cellsOf, count, cutTo, duration, percent } from '../output/text.ts';
import { type Axis, bar, blocks, curve, type Scale, scaleOf, shares } from './chart.ts';
import { secondsLeft, tokensPerSecond, type ViewState } from './state.ts';

/** Cells per column; 0 if it does not fit. */
interface Layout {
  readonly columns: number;
  readonly rows: number;
  readonly name: number;
  readonly picture: number;
  readonly words: number;
}

const GAP = 2;
/** Parts and metrics with a row; the rest is counted. */
const MOST_MEASURES = 8;
const PHASES: Readonly<Record<Phase, string>> = {
  evaluating: 'evaluating',
  'rolling-out': 'rolling out',
  training: 'training',
  saving: 'saving',
  teaching: 'warm start, step',
};

export function viewOf(state: ViewState, columns: number, rows: number): readonly Line[] {
  const layout = layoutFor(columns, rows);
  /** The lowest ranks are dropped first if rows are short. */
  const sections: readonly (readonly [rank: number, lines: readonly Line[]])[] = [
    [0, [[]]],
    [5, [titleLine(state, columns)]],
    [0, [[]]],
    [9, stepRow(state, layout)],
    [8, activityRow(state, layout)],
    [7, rewardRows(state, layout)],
    [6, successRow(state, layout)],
    // Earlier measures are kept longest.
    ...measureRows(state, layout).map((line, i) => [0.9 - i / 100, [line]] as const),
    [2, timeRow(state, layout)],
    [3, speedRow(state, layout)],
    [1, groupsRow(state, layout)],
    [0.95, agreementRow(state, layout)],
    [4, failuresRow(state, layout)],
    [3.5, ungradedRow(state, layout)],
  ];
  let left = Math.max(1, rows);
  const kept = new Set<readonly Line[]>();
  for (const [, lines] of sections.toSorted(([a], [b]) => b - a)) {
    if (lines.length > left) continue;
    left -= lines.length;
    kept.add(lines);
  }
  return sections.flatMap(([, lines]) => (kept.has(lines) ? lines.map((line) => cutLine(line, columns)) : []));
}

function layoutFor(columns: number, rows: number): Layout {
  const name = columns >= 34 ? 10 : 0;
  const wanted = columns >= 56 ? 34 : 18;
  const room = Math.min(60, columns - name - GAP - wanted);
  const picture = room >= 6 ? room : 0;
  return { columns, rows, name, picture, words: Math.max(0, columns - name - (picture > 0 ? picture + GAP : 0)) };
}

function row({ name, picture: width, words }: Layout, title: string, picture: Line, ways: readonly Line[]): Line {
  const named = name > 0 ? [piece(title.padEnd(name), 'dim')] : [];
  const drawn = width > 0 ? [...picture, piece(' '.repeat(Math.max(0, width - lineWidth(picture)) + GAP))] : [];
  return [...named, ...drawn, ...firstThatFits(words, ways)];
}

/** Uses the whole width for text. */
function wordsRow(layout: Layout, title: string, ways: readonly Line[]): readonly Line[] {
  const wide = { ...layout, picture: 0, words: Math.max(0, layout.columns - layout.name) };
  return [row(wide, title, [], ways)];
}

function titleLine({ title }: ViewState, columns: number): Line {
  const entry = piece(printableLine(title.entry), 'bold');
  const file = piece(printableLine(basename(title.entry)), 'bold');
  const rest = (...parts: readonly (string | null)[]): Line =>
    parts.filter((part) => part !== null).map((part) => piece(` · ${printableLine(part)}`, 'dim'));
  const verb = piece(title.verb === 'train' ? 'Training ' : 'Evaluating ');
  const model = hubNameOf(title.model) ?? title.model.split(sep).slice(-2).join(sep);
  const seed = `seed ${title.seed}`;
  return firstThatFits(columns, [
    [verb, entry, ...rest(model, seed, title.run)],
    [entry, ...rest(model, seed, title.run)],
    [file, ...rest(model, seed, title.run)],
    [file, ...rest(seed, title.run)],
    [file, ...rest(title.run)],
    [file, ...rest(title.run === null ? null : basename(title.run))],
    [file],
  ]);
}

function stepRow(state: ViewState, layout: Layout): readonly Line[] {
  const { step, steps } = state;
  if (steps === 0) return [];
  const left = secondsLeft(state);
  const done = `${step}/${steps}`;
  const ways = left === null ? [done] : [`${done} · ${duration(left)} left`, `${done} ${duration(left)}`, done];
  const named = layout.name > 0 ? ways : [...ways.map((way) => `step ${way}`), ...ways];
  return [row(layout, 'step', barOf(step / steps, layout, 'cyan'), plain(named))];
}

function activityRow(state: ViewState, layout: Layout): readonly Line[] {
  const { activity, finishing, now } = state;
  if (activity === null) return [];
  const { phase, done, of, since } = activity;
  const what = of > 0 ? `${PHASES[phase]} ${done}/${of}` : PHASES[phase];
  const clock = now - since >= 1 ? [`${what} · ${duration(now - since)}`] : [];
  const ways = finishing ? [`last step: ${what}`, `last: ${what}`, what] : [...(of > 0 ? [] : clock), what];
  return [row(layout, 'now', barOf(of > 0 ? done / of : 0, layout, 'magenta'), plain(ways))];
}

function rewardRows(state: ViewState, layout: Layout): readonly Line[] {
  const { rewards, reward } = state;
  if (rewards.length === 0 || reward === null) return [];
  const scale = scaleOf(rewards);
  const now = piece(number(reward), 'bold');
  const height = layout.picture > 0 ? Math.max(1, Math.min(4, layout.rows - 12)) : 1;
  if (height < 3) {
    const width = layout.picture > 0 ? layout.picture : Math.max(0, layout.columns - layout.name - GAP - cellsOf(now.text));
    const small = { ...layout, picture: width, words: cellsOf(now.text) };
    return [row(small, 'reward', [piece(blocks(rewards, axisOf(state, width), scale, width, 'join'), 'green')], [[now]])];
  }
  return curve(rewards, axisOf(state, layout.picture * 2), scale, layout.picture, height).map((text, i) => {
    const words = i === 1 ? [now, piece(' last step', 'dim')] : [piece(edgeAt(i, height, scale), 'dim')];
    return row(layout, i === 0 ? 'reward' : '', [piece(text, 'green')], [words]);
  });
}

function edgeAt(line: number, height: number, { low, high }: Scale): string {
  if (line === 0) return number(high);
  return line === height - 1 ? number(low) : '';
}

function successRow(state: ViewState, layout: Layout): readonly Line[] {
  const { success, evaluations, steps } = state;
  if (success === null) return [];
  const { first, last, best } = success;
  const axis = axisOf(state, layout.picture * 2);
  const picture = steps === 0 ? [] : [piece(blocks(evaluations, axis, { low: 0, high: 1 }, layout.picture, 'hold'), 'yellow')];
  if (evaluations.length < 2) return [row(layout, 'held out', picture, [[piece(percent(first), 'bold')]])];
  const start = piece(`${percent(first)} → `);
  const star = piece('★ ', 'yellow');
  const end = piece(percent(last.value), 'bold');
  if (best.step === last.step) return [row(layout, 'held out', picture, [[start, star, end], [star, end], [end]])];
  const where = best.step === 0 ? ['before training', 'before'] : [`at step ${best.step}`, `at ${best.step}`];
  return [
    row(layout, 'held out', picture, [
      ...where.map((place) => [start, end, piece('  '), star, piece(`${percent(best.value)} ${place}`)]),
      [end, piece('  '), star, piece(percent(best.value))],
      [end],
    ]),
  ];
}

function measureRows(state: ViewState, layout: Layout): readonly Line[] {
  const { measures } = state;
  const rows = measures.slice(0, MOST_MEASURES).map(({ kind, name, points, last }, i) => {
    const title = measures[i - 1]?.kind === kind ? '' : kind;
    const drawn =
      points.length === 0 ? '' : blocks(points, axisOf(state, layout.picture), scaleOf(points), layout.picture, 'join');
    const words = cutLine([piece(number(last), 'bold'), piece(` ${printableLine(name)}`, 'dim')], layout.words);
    return row(layout, title, [piece(drawn, 'green')], [words]);
  });
  const more = measures.length - rows.length;
  return more > 0 ? [...rows, row(layout, '', [], [[piece(`+${more} more`, 'dim')]])] : rows;
}

function timeRow({ seconds: { rollout, train, save } }: ViewState, layout: Layout): readonly Line[] {
  const parts = [rollout, train, save].map((part) => Math.max(0, part));
  const total = parts.reduce((sum, part) => sum + part, 0);
  if (!(total > 0) || !Number.isFinite(total)) return [];
  const [a = 0, b = 0, c = 0] = shares(parts, layout.picture);
  const picture = [piece('█'.repeat(a), 'cyan'), piece('▓'.repeat(b), 'magenta'), piece('░'.repeat(c), 'dim')];
  const [roll, learn, keep] = parts.map((part) => `${Math.round(100 * (part / total))} %`);
  const short = [`roll ${roll}, train ${learn}, save ${keep}`, `${roll} rolling out`, `roll ${roll}`];
  return [row(layout, 'time', picture, plain([`rolling out ${roll}, training ${learn}, saving ${keep}`, ...short]))];
}

function speedRow(state: ViewState, layout: Layout): readonly Line[] {
  const speed = tokensPerSecond(state);
  if (speed === null) return [];
  const sampled = amount(speed.sampled);
  const trained = amount(speed.trained);
  const ways = [`${sampled} sampled, ${trained} trained`, `${sampled} / ${trained}`];
  return wordsRow(layout, 'tokens/s', plain(layout.name > 0 ? ways : [`${sampled} tokens/s`, `${sampled}/s`]));
}

function groupsRow({ groups, staleGroups }: ViewState, layout: Layout): readonly Line[] {
  if (groups === null) return [];
  const signal = `${groups.withSignal} of ${groups.all} with signal`;
  const stale = staleGroups > 0 ? [`${signal}, ${staleGroups} stale so far`, `${signal}, ${staleGroups} stale`] : [];
  return wordsRow(layout, 'groups', plain([...stale, signal, `${groups.withSignal}/${groups.all} signal`]));
}

/** Shows whether training sees the log-probabilities that were sampled. */
function agreementRow({ agreement }: ViewState, layout: Layout): readonly Line[] {
  if (agreement === null) return [];
  const [ratio] = agreementText(agreement).split(' · ');
  return wordsRow(layout, 'logprobs', plain([agreementText(agreement), `${ratio}`]));
}

function failuresRow({ failedRollouts: rollouts, failedGrades: grades }: ViewState, layout: Layout): readonly Line[] {
  if (rollouts + grades === 0) return [];
  const parts = [...(rollouts > 0 ? [count(rollouts, 'rollout')] : []), ...(grades > 0 ? [count(grades, 'grading')] : [])].join(
    ', ',
  );
  const ways = [layout.name > 0 ? parts : `${parts} failed`, `${rollouts + grades} failed`];
  return wordsRow(layout, 'failed', plain(ways, 'red'));
}

function ungradedRow({ ungraded }: ViewState, layout: Layout): readonly Line[] {
  return ungraded === 0 ? [] : wordsRow(layout, 'ungraded', plain([count(ungraded, 'rollout')]));
}

/** One dot per step until the chart is full; then the steps are compressed. */
function axisOf({ step, steps, resumedAt }: ViewState, dots: number): Axis {
  return { from: resumedAt, span: Math.max(step - resumedAt, Math.min(steps - resumedAt, dots), 1) };
}

function barOf(share: number, { picture }: Layout, style: Style): Line {
  const { filled, rest } = bar(share, picture);
  return [piece(filled, style), piece(rest, 'dim')];
}

function plain(ways: readonly string[], style?: Style): readonly Line[] {
  return ways.map((way) => [piece(way, style)]);
}

function number(value: number): string {
  if (!Number.isFinite(value)) return '–';
  return Math.abs(value) < 1000 ? value.toFixed(2) : amount(value);
}

/** A piece of a line in one style. Lines are measured and cut as plain text, and styled last. */
type Style = 'bold' | 'dim' | 'cyan' | 'green' | 'yellow' | 'red' | 'magenta';

interface Piece {
  readonly text: string;
  readonly style?: Style;
}

type Line = readonly Piece[];

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
  const [first, ...rest] = line;
  if (first === undefined) return [];
  const left = columns - cellsOf(first.text);
  // The extra space ensures that the cut is marked even if the piece ends exactly at the edge.
  return left > 0 ? [first, ...cutLine(rest, left)] : [{ ...first, text: cutTo(`${first.text} `, columns) }];
}

/** The first variant that fits, from long to short. Cuts the shortest if none does. */
export function firstThatFits(columns: number, ways: readonly Line[]): Line {
  return ways.find((way) => lineWidth(way) <= columns) ?? cutLine(ways.at(-1) ?? [], columns);
}

export function paint(line: Line, colour: boolean): string {
  if (!colour) return textOf(line);
  return line.map(({ text, style }) => (style === undefined ? text : styleText(style, text, { validateStream: false }))).join('');
}
