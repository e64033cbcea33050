import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { anyEvent } from '../../../test/fixtures/cli/any-event.ts';
import { evalEnd, progress, runStart, stepEnd } from '../../../test/fixtures/cli/events.ts';
import type { RunEvent } from '../../core/events.ts';
import { follow, startOf, type Title } from './state.ts';
import { lineWidth, textOf, viewOf } from './view.ts';

const TITLE: Title = { verb: 'train', entry: 'agent.ts', model: 'm', seed: 1, run: null };

function shown(events: readonly RunEvent[], columns = 80, rows = 24, title = TITLE): readonly string[] {
  const state = events.reduce((before, event, i) => follow(before, event, i), startOf(title, 0));
  return viewOf(state, columns, rows).map((line) => textOf(line).trimEnd());
}

const RUN: readonly RunEvent[] = [
  runStart(),
  evalEnd('before', 0, 0.032),
  ...Array.from({ length: 20 }, (_, i) => stepEnd({ step: i + 1, reward: i / 20 })),
  evalEnd('during', 20, 0.784),
  stepEnd({ step: 21, reward: 0.97 }),
  evalEnd('during', 21, 0.76),
  progress(),
];

describe('the view', () => {
  it('shows a run at 80 columns', () => {
    expect(shown(RUN)).toEqual([
      '',
      'Training examples/shop/agent.ts · models/base · seed 3 · runs/shop-1',
      '',
      expect.stringMatching(/^step {6}━{18}─{16} {2}21\/40 · 0:47 left$/),
      expect.stringMatching(/^now {7}━{20}─{14} {2}rolling out 37\/64$/),
      expect.stringMatching(/^reward {4}[ ⠀-⣿]+ 1\.00$/),
      expect.stringMatching(/^ {10}[ ⠀-⣿]+ 0\.97 last step$/),
      expect.stringMatching(/^ {10}[ ⠀-⣿]+$/),
      expect.stringMatching(/^ {10}[ ⠀-⣿]+ 0\.00$/),
      expect.stringMatching(/^held out {2}▁+▆+ +3\.2 % → 76\.0 % {2}★ 78\.4 % at 20$/),
      expect.stringMatching(/^time {6}█+▓+░+ {2}roll 60 %, train 30 %, save 10 %$/),
      'tokens/s  3K sampled, 2K trained',
      'groups    8 of 11 with signal',
    ]);
  });

  it('has a small row for each part and metric by its name, eight at most, and says how many more there are', () => {
    const steps = [0, 1, 2, 3].map((i) => stepEnd({ step: i + 1, parts: { format: i / 3 }, metrics: { tries: 6 - i } }));
    const text = shown([runStart(), ...steps, stepEnd({ step: 5, parts: { late: 0.5 }, ungraded: 2 })]);
    const rows = text.filter((line) => /format|late|tries/.test(line));
    expect(rows).toEqual([
      expect.stringMatching(/^parts {5}▁▃▆█ +1\.00 format$/),
      expect.stringMatching(/^ {10} {4}▅ +0\.50 late$/),
      expect.stringMatching(/^metrics {3}█▇▆▅ +3\.00 tries$/),
    ]);
    expect(text.at(-1)).toBe('ungraded  2 rollouts');
    const many = Object.fromEntries(Array.from({ length: 11 }, (_, i) => [`p${i}`, i]));
    const full = shown([runStart(), stepEnd({ parts: many })], 80, 40).join('\n');
    expect(full).toMatch(/7\.00 p7\n +\+3 more\n/);
    expect(full).not.toContain('p8');
    expect(shown([runStart(), stepEnd({ parts: many })], 80, 12).join('\n')).toContain('0.00 p0');
  });

  it('is never wider or higher than the terminal, whatever happens at whatever size', () => {
    const [anyColumns, anyRows] = [fc.integer({ min: 1, max: 200 }), fc.integer({ min: 1, max: 60 })];
    const fits = fc.property(fc.array(anyEvent, { maxLength: 25 }), anyColumns, anyRows, (events, columns, rows) => {
      const state = events.reduce((before, event, i) => follow(before, event, i * 0.7), startOf(TITLE, 0));
      const lines = viewOf(state, columns, rows);
      expect(lines.length).toBeLessThanOrEqual(rows);
      for (const line of lines) {
        expect(lineWidth(line)).toBeLessThanOrEqual(columns);
        expect(textOf(line)).not.toMatch(/\p{Cc}|NaN|Infinity|∞|undefined/u);
      }
    });
    fc.assert(fits, { numRuns: 300 });
  });

  it.each([200, 120, 80, 60, 40, 20])('says at %i columns which step it is, what it is doing and the reward', (columns) => {
    const text = shown(RUN, columns).join('\n');
    for (const said of ['21/40', 'rolling out 37/64', '0.97', '76.0 %']) expect(text).toContain(said);
    expect(text).not.toContain('…');
  });

  it('keeps what matters most on a low terminal', () => {
    expect(shown(RUN, 80, 1)).toEqual([expect.stringContaining('21/40')]);
    expect(shown(RUN, 80, 2)).toEqual([expect.stringContaining('21/40'), expect.stringContaining('rolling out')]);
    expect(shown(RUN, 80, 4).at(-1)).toMatch(/^held out/);
  });

  it('has no row for what has not happened', () => {
    const rows = [expect.stringMatching(/^step {6}─+ {2}0\/40$/), expect.stringMatching(/^now {7}─+ {2}evaluating$/)];
    expect(shown([runStart()]).slice(3)).toEqual(rows);
  });

  it('shows failures and stale groups of all steps once there are any', () => {
    const failing = stepEnd({ step: 22, failedRollouts: 1, staleGroups: 3 });
    const text = shown([...RUN, failing, stepEnd({ step: 23, failedGrades: 2, staleGroups: 1 })]);
    expect(text).toContain('groups    8 of 11 with signal, 4 stale so far');
    expect(text).toContain('failed    1 rollout, 2 gradings');
  });

  it('stars the last evaluation when it is the best, and says so when none was better than the first', () => {
    const evaluated = (...successes: readonly number[]): string | undefined =>
      shown([runStart(), ...successes.map((success, i) => evalEnd('during', i * 10, success))]).find((line) =>
        /^held/.test(line),
      );
    expect(evaluated(0.5)).toMatch(/ 50\.0 %$/);
    expect(evaluated(0.5, 0.75)).toMatch(/50\.0 % → ★ 75\.0 %$/);
    expect(evaluated(0.5, 0.25)).toMatch(/50\.0 % → 25\.0 % {2}★ 50\.0 % before$/);
  });

  it('says that this is the last step after Ctrl-C', () => {
    const text = shown([...RUN, { type: 'warning', code: 'INTERRUPTED', message: 'm' }]).join('\n');
    expect(text).toContain('last step: rolling out 37/64');
    expect(text).not.toContain(' left');
  });

  it('draws the curve over the whole run as far as the steps fit, and over the steps so far beyond', () => {
    const curveAt = (steps: number, taken: number): string => {
      const events = Array.from({ length: taken }, (_, i) => stepEnd({ step: i + 1, reward: 0 }));
      return /reward +(\S*)/.exec(shown([runStart({ steps, heldOut: 0 }), ...events], 80, 8).join('\n'))?.[1] ?? '';
    };
    expect(curveAt(34, 17).length).toBe(17);
    expect(curveAt(1_000_000, 9).length).toBe(9);
    expect(curveAt(1_000_000, 400).length).toBe(34);
  });

  it('of an evaluation on its own has a title and how far it is', () => {
    const title: Title = { ...TITLE, verb: 'eval', entry: 'examples/shop/agent.ts', model: '/x/models/base' };
    expect(shown([progress({ phase: 'evaluating', done: 125, of: 500 })], 80, 24, title)).toEqual([
      ...['', 'Evaluating examples/shop/agent.ts · models/base · seed 1', ''],
      expect.stringMatching(/^now {7}━{9}─{25} {2}evaluating 125\/500$/),
    ]);
  });
});
