/**
 * The screen on this process's terminal: what the process writes goes above the view, a new size or a return from the background
 * redraws it, and whichever way the process ends, the terminal is left as it was found. Only SIGKILL is beyond it.
 */
import type { Emit } from '../../core/events.ts';
import { wantsColour } from './line.ts';
import { catchWrites } from './outside-text.ts';
import { Screen } from './screen.ts';
import type { Title } from './state.ts';

export interface Report extends Disposable {
  readonly emit: Emit;
}

export function attachScreen(title: Title): Report {
  const { stdout, stderr } = process;
  const colour = wantsColour();
  const above = (text: string): void => screen.above(text);
  const outside = [catchWrites(stdout, above), ...(stderr.isTTY ? [catchWrites(stderr, above)] : [])];
  const screen = new Screen(
    { columns: () => stdout.columns || 80, rows: () => stdout.rows || 24, colour, write: (text) => outside[0]?.write(text) },
    title,
  );
  const redraw = (): void => screen.redraw();
  const suspend = (): void => {
    screen.hide();
    process.kill(process.pid, 'SIGSTOP');
  };
  const detach = (): void => {
    screen.close();
    for (const each of outside) each[Symbol.dispose]();
    stdout.off('resize', redraw);
    process.off('SIGTSTP', suspend).off('SIGCONT', redraw).off('exit', detach);
  };
  stdout.on('resize', redraw);
  process.on('SIGTSTP', suspend).on('SIGCONT', redraw).on('exit', detach);
  return { emit: screen.emit, [Symbol.dispose]: detach };
}
