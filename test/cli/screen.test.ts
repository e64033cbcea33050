/** The screen's driver on a terminal: what stays, what goes, and in which state the terminal is left. */
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { Screen } from '../../src/cli/screen/screen.ts';
import type { RunEvent } from '../../src/core/events.ts';
import { done, evalEnd, progress, runStart, stepEnd } from '../fixtures/cli/events.ts';
import { Terminal } from './terminal.ts';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

function open(columns: number, rows: number, verb: 'train' | 'eval' = 'train') {
  const terminal = new Terminal(columns, rows);
  const size = { columns, rows };
  const written: string[] = [];
  const write = (text: string): void => {
    written.push(text);
    // The terminal's driver begins a new line at its first column.
    terminal.write(text.replaceAll('\n', '\r\n'));
  };
  const screen = new Screen(
    { columns: () => size.columns, rows: () => size.rows, colour: false, write },
    { verb, entry: 'agent.ts', model: 'models/base', seed: 1, run: null },
  );
  return { terminal, screen, size, written };
}

/** The lines of a view begin with one of these; what was printed in these tests never does. */
const OF_THE_VIEW = /^(?:$|Training|Evaluating|step|now|reward|held out|time|tokens|groups|failed| {10}|examples|agent)/;
const printedIn = (terminal: Terminal): readonly string[] => terminal.text.filter((line) => !OF_THE_VIEW.test(line));
const titlesIn = (terminal: Terminal): number => terminal.text.filter((line) => line.includes('agent.ts')).length;
const step = (n: number): RunEvent => stepEnd({ step: n, reward: n / 40, failedRollouts: n % 3 === 0 ? 1 : 0 });

describe('the screen', () => {
  it('keeps every printed line, once and in order, and one view below, whatever comes in which order', () => {
    const action = fc.oneof(
      fc.constantFrom(runStart(), progress(), step(3), step(9), evalEnd('during', 9, 0.5), evalEnd('after', 9, 0.25)),
      fc.record({ print: fc.integer({ min: 1, max: 4 }) }),
      fc.record({ wait: fc.integer({ min: 1, max: 1500 }) }),
      fc.constant('suspend' as const),
    );
    const sizes = [fc.integer({ min: 45, max: 100 }), fc.integer({ min: 2, max: 30 })] as const;
    const holds = fc.property(fc.array(action, { maxLength: 30 }), ...sizes, (actions, columns, rows) => {
      const { terminal, screen } = open(columns, rows);
      const printed: string[] = [];
      screen.emit(runStart());
      for (const act of actions) {
        if (act === 'suspend') {
          screen.hide();
          expect(titlesIn(terminal)).toBe(0);
          expect(terminal.cursorShown).toBe(true);
          screen.redraw();
        } else if ('wait' in act) vi.advanceTimersByTime(act.wait);
        else if ('print' in act) {
          const lines = Array.from({ length: act.print }, (_, i) => `printed ${printed.length + i}`);
          screen.above(lines.map((line) => `${line}\n`).join(''));
          printed.push(...lines);
        } else screen.emit(act);
        expect(printedIn(terminal)).toEqual(printed);
        expect(titlesIn(terminal)).toBeLessThanOrEqual(1);
        expect(terminal.cursorShown).toBe(false);
      }
      screen.draw();
      const drawnOver = terminal.text;
      screen.redraw();
      expect(terminal.text).toEqual(drawnOver);
      screen.close();
      expect(printedIn(terminal)).toEqual(printed);
      expect(terminal.cursorShown).toBe(true);
    });
    fc.assert(holds);
  });

  it('prints warnings and transcripts above the view, and at the end what came of the run below it', () => {
    const { terminal, screen } = open(100, 30);
    screen.emit(runStart());
    screen.emit({ type: 'warning', code: 'ODD', message: 'something \u001b[2J is odd' });
    screen.emit({ type: 'transcript', when: 'before', taskId: 't1', lines: ['user: hello'], reward: 1 });
    screen.emit(step(40));
    screen.emit(evalEnd('after', 40, 0.78));
    screen.emit(done());
    screen.close();
    const lines = terminal.text.filter((line) => line !== '');
    expect(lines[0]).toBe('warning ODD: something ·[2J is odd');
    expect(lines[2]).toBe('    user: hello');
    expect(lines[3]).toMatch(/^Training/);
    expect(lines.findIndex((line) => /^step .* 40\/40$/.test(line))).toBeGreaterThan(3);
    expect(lines.findIndex((line) => line.startsWith('Done in 42 s'))).toBeGreaterThan(
      lines.findIndex((line) => /^groups/.test(line)),
    );
    expect(lines.filter((line) => /^now/.test(line))).toEqual([]);
    expect(terminal.cursorShown).toBe(true);
  });

  it('draws at most ten times a second, and not at all when nothing has changed', () => {
    const { screen, written } = open(80, 24);
    screen.emit(runStart({ heldOut: 0 }));
    const before = written.length;
    for (let ms = 0; ms < 1000; ms += 5) {
      screen.emit(progress({ done: ms }));
      vi.advanceTimersByTime(5);
    }
    expect(written.length - before).toBeLessThanOrEqual(10);
    expect(written.length - before).toBeGreaterThan(5);
    const after = written.length;
    for (let i = 0; i < 20; i++) vi.advanceTimersByTime(100);
    expect(written.length - after).toBeLessThanOrEqual(1);
  });

  it('shows the latest event soon, even if no other follows', () => {
    const { screen, terminal } = open(80, 24);
    screen.emit(runStart());
    screen.emit(progress({ done: 41 }));
    vi.advanceTimersByTime(100);
    expect(terminal.text.join('\n')).toContain('rolling out 41/64');
  });

  it('leaves nothing of the old view behind when it gets narrower or lower', () => {
    const { screen, terminal, size } = open(100, 30);
    screen.emit(runStart());
    screen.emit(step(1));
    for (const [columns, rows] of [
      [60, 30],
      [30, 12],
      [100, 5],
      [100, 30],
    ] as const) {
      Object.assign(size, { columns, rows });
      screen.redraw();
      expect(titlesIn(terminal)).toBe(1);
      expect(terminal.text.filter((line) => line.includes('1/40')).length).toBe(1);
      expect(terminal.text.filter((line) => line !== '').length).toBeLessThan(rows);
    }
  });

  it('leaves no row behind when the view itself gets shorter', () => {
    const { screen, terminal } = open(80, 24);
    screen.emit(runStart());
    screen.emit(evalEnd('before', 0, 0.1));
    screen.draw();
    expect(terminal.text.at(-1)).toMatch(/^held out/);
    const rows = terminal.text.length;
    screen.emit(evalEnd('after', 40, 0.1));
    screen.draw();
    expect(terminal.text.length).toBe(rows - 1);
    expect(terminal.text.filter((line) => /^held out/.test(line)).length).toBe(1);
  });

  it('shows nothing before there is something to see, and leaves nothing if there never was', () => {
    const { screen, terminal, written } = open(80, 24);
    screen.emit({ type: 'warning', code: 'ODD', message: 'early' });
    screen.redraw();
    screen.close();
    expect(terminal.text).toEqual(['warning ODD: early', '']);
    expect(written.length).toBe(1);
  });

  it('draws nothing after it was closed', () => {
    const { screen, written } = open(80, 24);
    screen.emit(runStart());
    screen.close();
    const before = written.length;
    screen.emit(progress());
    screen.redraw();
    screen.close();
    vi.advanceTimersByTime(5000);
    expect(written.length).toBe(before);
  });

  it('of an evaluation makes room for its result', () => {
    const { screen, terminal } = open(100, 24, 'eval');
    screen.emit(progress({ phase: 'evaluating', done: 3, of: 5 }));
    expect(terminal.text.join('\n')).toContain('evaluating 3/5');
    screen.emit(evalEnd('only', 0, 0.6));
    screen.close();
    expect(terminal.text).toEqual(['Success: 60.0 % of 500 tasks, at temperature 0 (4.0 s)', '']);
    expect(terminal.cursorShown).toBe(true);
  });
});
