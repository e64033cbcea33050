/**
 * Shows the live view: redrawn in place at most ten times a second, with final output scrolling above it. Between redraws the hidden cursor
 * stays at the start of the view's first line, so erasing downwards removes the whole view, however a resized terminal has wrapped it.
 * Callers must close it; nothing is drawn after that.
 */
import { StringDecoder } from 'node:string_decoder';
import { styleText } from 'node:util';
import type { RunEvent } from '../../core/events.ts';
import { describe, plannedText, planText, type Report } from '../output/print.ts';
import { filtered, unfiltered } from '../output/terminal.ts';
import { ERASE_BELOW, ERASE_LINE_END, HIDE_CURSOR, SHOW_CURSOR, up } from '../output/text.ts';
import { follow, startOf, type Title, type ViewState } from './state.ts';
import { paint, viewOf } from './view.ts';

interface Surface {
  readonly columns: () => number;
  readonly rows: () => number;
  readonly colour: boolean;
  write(text: string): void;
}

/** Milliseconds between redraws. */
const FRAME = 100;
/** Milliseconds after which clocks in the view advance without an event. */
const TICK = 1000;

export class Screen {
  readonly #surface: Surface;
  #state: ViewState;
  /** What is on the terminal now. Undefined if no view is. */
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
    if ('plan' in event && event.plan !== undefined) this.above(`${planText(event.model, event.plan)}\n`);
    if ('planned' in event && event.planned !== undefined) this.above(`${plannedText(event.type, event.planned)}\n`);
    if (!this.#ended && this.#state.begun) this.#schedule();
  };

  /** Writes text above the view: whole lines, or the unterminated rest of a stream that has ended. */
  above(text: string): void {
    const clean = filtered(text, this.#surface.colour);
    if (this.#shown === undefined) {
      this.#surface.write(clean);
      return;
    }
    this.#shown = undefined;
    this.#surface.write(`${ERASE_BELOW}${clean}${clean.endsWith('\n') ? '' : '\n'}`);
    this.draw();
  }

  /** For a resize or a return from the background, after which the terminal's content is unknown. */
  redraw(): void {
    if (this.#ended || !this.#state.begun) return;
    this.#shown = undefined;
    this.#surface.write(ERASE_BELOW);
    this.draw();
  }

  /** Removes the view and shows the cursor until the next redraw. */
  hide(): void {
    this.#clearTimers();
    if (this.#shown === undefined) return;
    this.#shown = undefined;
    this.#surface.write(`${ERASE_BELOW}${SHOW_CURSOR}`);
  }

  /** Leaves the last view standing, to show how far the run came before an error or Ctrl-C. */
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
    // Erases after drawing, not before, so that unchanged parts do not flicker.
    this.#surface.write(`${HIDE_CURSOR}\r${frame}${ERASE_BELOW.slice(1)}\r${up(lines.length - 1)}`);
  }

  /** Leaves one column and one row free: terminals disagree on the cursor position after a full line. */
  #frame(): readonly string[] {
    const columns = Math.max(1, this.#surface.columns() - 1);
    const rows = Math.max(1, this.#surface.rows() - 1);
    return viewOf(this.#state, columns, rows).map((line) => filtered(paint(line, this.#surface.colour), this.#surface.colour));
  }
}

function seconds(): number {
  return performance.now() / 1000;
}

/** Shows other output above the view, redraws on resize and resume, and restores the terminal on any exit but SIGKILL. */
export function attachScreen(title: Title): Report {
  const { stdout, stderr } = process;
  // Follows Node's rules for stdout: color support, NO_COLOR, FORCE_COLOR.
  const colour = styleText('bold', 'x') !== 'x';
  const above = (text: string): void => screen.above(text);
  const write = unfiltered(stdout);
  const outside = [catchWrites(stdout, above), ...(stderr.isTTY ? [catchWrites(stderr, above)] : [])];
  const screen = new Screen({ columns: () => stdout.columns || 80, rows: () => stdout.rows || 24, colour, write }, title);
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
 * Redirects a stream's writes (an agent's `console.log`, Node warnings) until disposed: `take` gets whole lines, and at the end any rest.
 * Cannot catch writes of child processes to an inherited descriptor.
 */
function catchWrites(stream: NodeJS.WriteStream, take: (text: string) => void): Disposable {
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
    [Symbol.dispose]: () => {
      stream.write = original;
      if (begun !== '') take(begun);
    },
  };
}
