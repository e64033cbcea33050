/**
 * Shows the live view: redrawn in place at most ten times a second, with what is final scrolling away above it as ordinary lines.
 *
 * Between two drawings the cursor waits, hidden, at the beginning of the view's first line, so that erasing downwards removes the
 * whole view, however a resized terminal has wrapped it. Whoever opened it must close it; nothing is drawn after that.
 */
import { StringDecoder } from 'node:string_decoder';
import { styleText } from 'node:util';
import type { RunEvent } from '../../core/events.ts';
import { describe, type Report } from '../print.ts';
import { ERASE_BELOW, ERASE_LINE_END, HIDE_CURSOR, SHOW_CURSOR, up } from '../text.ts';
import { follow, startOf, type Title, type ViewState } from './state.ts';
import { paint, viewOf } from './view.ts';

/** Where the screen is drawn. Sizes may change between two drawings. */
export interface Surface {
  readonly columns: () => number;
  readonly rows: () => number;
  readonly colour: boolean;
  write(text: string): void;
}

/** Milliseconds between two drawings. */
const FRAME = 100;
/** Milliseconds after which the clocks in the view are moved on, whether or not something happened. */
const TICK = 1000;

export class Screen {
  readonly #surface: Surface;
  #state: ViewState;
  /** What is on the terminal now; undefined if no view is. */
  #shown: string | undefined;
  #drawnAt = Number.NEGATIVE_INFINITY;
  #pending: NodeJS.Timeout | undefined;
  #tick: NodeJS.Timeout | undefined;
  #ended = false;

  constructor(surface: Surface, title: Title) {
    this.#surface = surface;
    this.#state = startOf(title, seconds());
  }

  readonly emit = (event: RunEvent): void => {
    this.#state = follow(this.#state, event, seconds());
    if (event.type === 'done' || (event.type === 'eval-end' && event.when === 'only')) this.#end(event.type === 'done');
    if (event.type === 'warning' || event.type === 'transcript' || this.#ended) {
      const lines = describe(event, this.#state.title.entry);
      if (lines.length > 0) this.above(lines.map((line) => `${line}\n`).join(''));
    }
    if (!this.#ended && this.#state.begun) this.#schedule();
  };

  /** Ordinary text above the view; whole lines, or the last words of a stream that has ended. */
  above(text: string): void {
    if (this.#shown === undefined) {
      this.#surface.write(text);
      return;
    }
    this.#shown = undefined;
    this.#surface.write(`${ERASE_BELOW}${text}${text.endsWith('\n') ? '' : '\n'}`);
    this.draw();
  }

  /** Another size, or back from the background: what is on the terminal cannot be relied upon. */
  redraw(): void {
    if (this.#ended || !this.#state.begun) return;
    this.#shown = undefined;
    this.#surface.write(ERASE_BELOW);
    this.draw();
  }

  /** Off the terminal, cursor shown, until the next drawing. */
  hide(): void {
    this.#clearTimers();
    if (this.#shown === undefined) return;
    this.#shown = undefined;
    this.#surface.write(`${ERASE_BELOW}${SHOW_CURSOR}`);
  }

  /** Leaves the last view standing: after an error or Ctrl-C it says how far the run came. */
  close(): void {
    this.#end(this.#state.title.verb === 'train');
  }

  #end(leaveView: boolean): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#clearTimers();
    if (!this.#state.begun) return;
    const last = leaveView ? this.#frame().map((line) => `${line}\n`) : [];
    this.#surface.write(`${this.#shown === undefined ? '' : ERASE_BELOW}${last.join('')}${SHOW_CURSOR}`);
    this.#shown = undefined;
  }

  #clearTimers(): void {
    clearTimeout(this.#pending);
    clearInterval(this.#tick);
    this.#pending = this.#tick = undefined;
  }

  #schedule(): void {
    const wait = this.#drawnAt + FRAME - performance.now();
    if (wait <= 0) this.draw();
    else this.#pending ??= setTimeout(() => this.draw(), wait).unref();
  }

  draw(): void {
    clearTimeout(this.#pending);
    this.#pending = undefined;
    this.#tick ??= setInterval(() => this.draw(), TICK).unref();
    this.#state = { ...this.#state, now: seconds() };
    this.#drawnAt = performance.now();
    const lines = this.#frame();
    const frame = lines.map((line) => `${line}${ERASE_LINE_END}`).join('\n');
    if (frame === this.#shown) return;
    this.#shown = frame;
    // Erased below the last line, not before the first: what stays the same never flickers.
    this.#surface.write(`${HIDE_CURSOR}\r${frame}${ERASE_BELOW.slice(1)}\r${up(lines.length - 1)}`);
  }

  /** One column and one row are left free: a full line would leave the cursor in a place on which terminals disagree. */
  #frame(): readonly string[] {
    const [columns, rows] = [Math.max(1, this.#surface.columns() - 1), Math.max(1, this.#surface.rows() - 1)];
    return viewOf(this.#state, columns, rows).map((line) => paint(line, this.#surface.colour));
  }
}

function seconds(): number {
  return performance.now() / 1000;
}

/**
 * The screen on this process's terminal: what the process writes goes above the view, a new size or a return from the background
 * redraws it, and whichever way the process ends, the terminal is left as it was found. Only SIGKILL is beyond it.
 */
export function attachScreen(title: Title): Report {
  const { stdout, stderr } = process;
  // Node's own rules for stdout: a terminal that has colours, NO_COLOR, FORCE_COLOR.
  const colour = styleText('bold', 'x') !== 'x';
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

/**
 * Catches what others write while the view is up, an agent's `console.log` or a warning of Node: until disposed, `take` gets each whole line
 * with its newline, and at the end what was left without one. What a child process writes to an inherited descriptor cannot be caught. Gives
 * the stream's own way to write.
 */
function catchWrites(stream: NodeJS.WriteStream, take: (text: string) => void) {
  const original = stream.write;
  const decoder = new StringDecoder('utf8');
  let begun = '';
  const write = (chunk: string | Uint8Array, encoding?: unknown, written?: unknown): boolean => {
    begun += typeof chunk === 'string' ? chunk : decoder.write(chunk);
    const end = begun.lastIndexOf('\n') + 1;
    const whole = begun.slice(0, end);
    begun = begun.slice(end);
    if (whole !== '') take(whole);
    const callback = typeof encoding === 'function' ? encoding : written;
    if (typeof callback === 'function') process.nextTick(() => callback());
    return true;
  };
  stream.write = write as typeof stream.write;
  return {
    write: (text: string): void => void original.call(stream, text),
    [Symbol.dispose]: () => {
      stream.write = original;
      if (begun !== '') take(begun);
    },
  };
}
